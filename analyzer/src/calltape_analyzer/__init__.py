"""Reads tapes: dynamic shapes and representative arguments for torch.export and torch.onnx.export."""

__version__ = "0.1.0"
