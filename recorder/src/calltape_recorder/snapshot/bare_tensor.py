"""Reads a tensor by what torch has in C++, whatever its class or its attributes say.

The class of a tensor may have a property named ``shape``, and any tensor an attribute with the name
``data_ptr``. Their code must not run in a call of the host. Nobody can replace what is no method
(``leaf.dtype``) on a tensor of the plain class, so there it is read as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

__all__ = [
    "as_subclass",
    "data_ptr",
    "detach",
    "device_of",
    "dtype_of",
    "is_conj",
    "is_contiguous",
    "is_inference",
    "is_neg",
    "is_nested",
    "keys_of",
    "layout_of",
    "numel",
    "q_scale",
    "q_zero_point",
    "qscheme",
    "requires_grad",
    "shape_of",
    "storage_offset",
    "stride",
    "untyped_storage",
]  # fmt: skip

_Base: Any = torch._C.TensorBase

as_subclass: Callable[[Any, type], Any] = _Base.as_subclass
data_ptr: Callable[[Any], int] = _Base.data_ptr
detach: Callable[[Any], Any] = _Base.detach
is_conj: Callable[[Any], bool] = _Base.is_conj
is_contiguous: Callable[[Any], bool] = _Base.is_contiguous
is_inference: Callable[[Any], bool] = _Base.is_inference
is_neg: Callable[[Any], bool] = _Base.is_neg
numel: Callable[[Any], int] = _Base.numel
q_scale: Callable[[Any], float] = _Base.q_scale
q_zero_point: Callable[[Any], int] = _Base.q_zero_point
qscheme: Callable[[Any], Any] = _Base.qscheme
storage_offset: Callable[[Any], int] = _Base.storage_offset
stride: Callable[[Any], tuple[int, ...]] = _Base.stride
untyped_storage: Callable[[Any], torch.UntypedStorage] = _Base.untyped_storage

device_of: Callable[[Any], torch.device] = _Base.device.__get__
dtype_of: Callable[[Any], torch.dtype] = _Base.dtype.__get__
is_nested: Callable[[Any], bool] = _Base.is_nested.__get__
layout_of: Callable[[Any], torch.layout] = _Base.layout.__get__
requires_grad: Callable[[Any], bool] = _Base.requires_grad.__get__
shape_of: Callable[[Any], torch.Size] = _Base.shape.__get__


# This is no public interface of torch. Without it, each tensor is asked.
_dispatch_keys: Any = getattr(torch._C, "_dispatch_keys", None)
if not hasattr(getattr(torch._C, "DispatchKeySet", None), "raw_repr"):
    _dispatch_keys = None


def keys_of(t: Any) -> Hashable:
    """Equal for tensors of the plain class whose bytes are read in the same way: of one type of
    device and layout, made in inference mode or not, with the sign as it is or not.

    ``is_neg`` and ``is_inference`` give the interpreter lock away, and beside a busy writer that
    takes longer than all other questions together. The dispatch keys tell both, and do not.
    """
    if _dispatch_keys is None:
        return layout_of(t), device_of(t).type, is_inference(t), is_neg(t)
    return _dispatch_keys(t).raw_repr()  # type: ignore[no-any-return]
