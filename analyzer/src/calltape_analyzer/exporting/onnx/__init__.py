"""From a program of torch to an ONNX model."""
