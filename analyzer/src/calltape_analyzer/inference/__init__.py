"""The tape as one program: the contract of ``torch.onnx.InputObserver``.

In come the calls of a tape. Out go dynamic shapes and representative arguments that hold for all of
them, with their evidence.
"""
