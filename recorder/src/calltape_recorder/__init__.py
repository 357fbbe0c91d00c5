"""Records every call of a PyTorch model to a tape, from inside an inference server."""

__version__ = "0.1.0"
