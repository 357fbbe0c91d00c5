"""The drop-in for ``torch.onnx.InputObserver``, which records on a tape.

Takes calls of a model that it watches; returns what its peers give: dynamic shapes, representative
arguments, and how far an exported model is off.
"""

from calltape_analyzer.observer.input_observer import InputObserver
from calltape_analyzer.observer.single_graph import (
    dynamic_dimensions as _infer_dynamic_dimensions,
)
from calltape_analyzer.observer.stored_calls import InputCandidate, ObserverInfo

__all__ = ["InputCandidate", "InputObserver", "ObserverInfo", "_infer_dynamic_dimensions"]
