"""Complex tensors of an ONNX model. ONNX Runtime has none: torch.onnx makes the real and the
imaginary part a last dimension of two floats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from calltape_analyzer.programs.conditions import Sized

__all__ = ["COMPLEX_OUTPUTS", "as_pairs", "complex_outputs", "from_pairs", "sizes_as_pairs"]

COMPLEX_OUTPUTS = "calltape_complex"
"""The name of the metadata that lists the outputs that are complex in the program."""
_PARTS = {"complex64": "float32", "complex128": "float64"}


def as_pairs(tensor: Any) -> Any:
    """A tensor as the model takes it: a complex one with its parts as a last dimension."""
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def sizes_as_pairs(tensor: Sized) -> Sized:
    """Dtype and sizes of :func:`as_pairs`."""
    part = _PARTS.get(tensor.dtype)
    return tensor if part is None else Sized(part, (*tensor.shape, 2))


def complex_outputs(metadata: Mapping[str, str]) -> frozenset[str]:
    """The names of the outputs that are complex in the program.

    Args:
        metadata: of the model. A file may be anybody's: other content names no output.
    """
    try:
        names = json.loads(metadata.get(COMPLEX_OUTPUTS, "[]"))
    except ValueError:
        return frozenset()
    if not isinstance(names, list):
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str))


def from_pairs(tensor: Any) -> Any:
    """A complex tensor of pairs of floats. Another tensor stays as it is."""
    import torch

    is_pairs = tensor.dtype in (torch.float32, torch.float64) and tensor.shape[-1:] == (2,)
    return torch.view_as_complex(tensor.contiguous()) if is_pairs else tensor
