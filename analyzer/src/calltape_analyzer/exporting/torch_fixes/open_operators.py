"""Operators that needlessly make a constant of a size.

``torch.export`` makes a constant of every size that an operator takes as a plain int, such as the
``steps`` of ``torch.linspace`` (torch 2.15). While a trace runs, other operators with the same
results replace these: some always, others if a size is among the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import _refs
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode

__all__ = ["OpenOperators"]

_broadcast: Callable[..., Any] = torch.broadcast_shapes
_tensor: Callable[..., Any] = _refs.tensor
"""Makes a tensor of symbols as a trace does for ``torch.tensor``."""


class OpenOperators(TorchFunctionMode):
    """Replaces operators that would make constants of sizes."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        stand_in = _ALWAYS.get(func)
        of_sizes = _OF_SIZES.get(func) or _EXTENSIONS.get(getattr(func, "_qualified_op_name", ""))
        if stand_in is None and of_sizes and _has_symbols((args, list(kwargs.values()))):
            stand_in = of_sizes
        return (stand_in or func)(*args, **kwargs)


def _max_pool1d_of_any_length(*args: Any, **kwargs: Any) -> Any:
    if kwargs.pop("return_indices", False):
        return torch.max_pool1d_with_indices(*args, **kwargs)
    return torch.max_pool1d_with_indices(*args, **kwargs)[0]


def _interpolate(
    x: Any, size: Any = None, scale_factor: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """A size that is computed from a scale (torchvision's detectors) stays a symbol."""
    if scale_factor is not None and kwargs.get("recompute_scale_factor"):
        dims = x.dim() - 2
        scales = scale_factor if isinstance(scale_factor, list | tuple) else [scale_factor] * dims
        size = [math.floor(old * scale) for old, scale in zip(x.shape[2:], scales, strict=True)]
        scale_factor, kwargs = None, {**kwargs, "recompute_scale_factor": None}
    return _functional.interpolate(x, size, scale_factor, *args, **kwargs)


def _as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
    return _tensor(data, dtype=dtype, device=device)


def _tensor_of_tensors(data: Any, **own: Any) -> Any:
    """``torch.tensor([x.max(), y.max()])`` reads numbers that are tensors with Python. If a trace
    does not know all of them, they are stacked instead."""
    numbers = data if isinstance(data, list | tuple) else []
    are_tensors = all(isinstance(number, torch.Tensor) and number.dim() == 0 for number in numbers)
    if not are_tensors or all(map(_is_known, numbers)) or len({x.dtype for x in numbers}) > 1:
        return torch.tensor(data, **own)
    requires_grad = own.pop("requires_grad", False)
    asked = {name: value for name, value in own.items() if value is not None}
    return torch.stack(list(numbers)).detach().to(**asked).requires_grad_(requires_grad)


def _is_known(number: torch.Tensor) -> bool:
    """Whether the value of a tensor is known to a trace."""
    return not isinstance(number, FakeTensor) or getattr(number, "constant", None) is not None


def _new_tensor(like: Any, data: Any, *, dtype: Any = None, device: Any = None, **own: Any) -> Any:
    return _tensor(data, dtype=dtype or like.dtype, device=device or like.device, **own)


def _one_hot(tensor: Any, num_classes: Any = -1) -> Any:
    classes = torch.arange(num_classes, device=tensor.device)
    return (tensor.unsqueeze(-1) == classes).to(torch.int64)


def _take_along_dim(x: Any, indices: Any, dim: Any = None) -> Any:
    """The operator makes constants of all sizes; ``gather`` does not."""
    if dim is None:
        return x.reshape(-1).gather(0, indices.reshape(-1))
    if x.dim() != indices.dim():
        return torch.take_along_dim(x, indices, dim)  # raises an error
    axis = dim % x.dim()
    beside = [(*tensor.shape[:axis], 1, *tensor.shape[axis + 1 :]) for tensor in (x, indices)]
    shape = _broadcast(*beside)
    x, indices = (
        tensor.expand(*shape[:axis], tensor.shape[axis], *shape[axis + 1 :])
        for tensor in (x, indices)
    )
    return x.gather(axis, indices)


def _roi_align(x: Any, rois: Any, spatial_scale: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator takes no symbol for a scale, and multiplies the boxes by it."""
    if isinstance(spatial_scale, torch.SymFloat):
        rois = torch.cat([rois[:, :1], rois[:, 1:] * spatial_scale], dim=1)
        spatial_scale = 1.0
    operator: Any = torch.ops.torchvision.roi_align
    return operator(x, rois, spatial_scale, *args, **kwargs)


def _contiguous(x: Any, *, memory_format: Any = torch.contiguous_format) -> Any:
    """Copies a tensor if it depends on sizes whether it is contiguous already: the question would
    add a guard."""
    is_asked = memory_format is torch.contiguous_format and _has_symbols(x.shape)
    if not is_asked or _is_known_contiguous(x):
        return x.contiguous(memory_format=memory_format)
    return x.clone(memory_format=memory_format)


def _is_known_contiguous(x: torch.Tensor) -> bool:
    expected: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if not (_are_same(size, 1) or _are_same(stride, expected)):
            return False
        expected = expected * size
    return True


def _pool(
    operator: Callable[..., Any], dims: int, whole: Callable[..., Any], names: tuple[str, ...]
) -> Callable[..., Any]:
    """A pool that is replaced by a mean, or a maximum, if its window is the whole picture.

    Args:
        operator: the pool.
        dims: how many of the last dimensions it pools.
        whole: replaces it for such a window.
        names: of its parameters after the tensor and the window.
    """

    def pool(x: Any, kernel_size: Any, *args: Any, **kwargs: Any) -> Any:
        window = tuple(kernel_size) if isinstance(kernel_size, list | tuple) else (kernel_size,)
        window = window * dims if len(window) == 1 else window
        options = dict(zip(names, args, strict=False)) | kwargs
        if _fits_once(options) and all(map(_are_same, window, x.shape[-dims:])):
            return whole(x, dim=tuple(range(-dims, 0)), keepdim=True)
        return operator(x, kernel_size, *args, **kwargs)

    return pool


def _fits_once(options: Mapping[str, Any]) -> bool:
    """Whether a window of the size of the picture has one place, and nothing else is asked for."""
    if options.get("return_indices") or options.get("divisor_override") is not None:
        return False
    around, apart = options.get("padding", 0), options.get("dilation", 1)
    is_wider = any(around) if isinstance(around, list | tuple) else around
    are_apart = any(n != 1 for n in (apart if isinstance(apart, list | tuple) else [apart]))
    return not is_wider and not are_apart


def _are_same(one: Any, other: Any) -> bool:
    """Whether two sizes are the same in every call. Comparing symbols would add a guard."""
    if isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt):
        return bool(one.node.expr == other.node.expr)
    return type(one) is type(other) and bool(one == other)


_functional = torch.nn.functional
_MAX = "stride", "padding", "dilation", "ceil_mode"
_MEAN = "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"

_max_pool1d = _pool(_max_pool1d_of_any_length, 1, torch.amax, _MAX)
_ALWAYS: Mapping[Any, Callable[..., Any]] = {
    torch.max_pool1d: _max_pool1d,
    _functional.max_pool1d: _max_pool1d,
    torch.istft: _refs.istft,
    torch.take_along_dim: _take_along_dim,
    torch.Tensor.take_along_dim: _take_along_dim,
    torch.Tensor.contiguous: _contiguous,
    torch.tensor: _tensor_of_tensors,
    _functional.interpolate: _interpolate,
}
_OF_SIZES: Mapping[Any, Callable[..., Any]] = {
    torch.as_tensor: _as_tensor,
    torch.Tensor.new_tensor: _new_tensor,
    torch.linspace: _refs.linspace,
    _functional.one_hot: _one_hot,
    _functional.avg_pool1d: _pool(_functional.avg_pool1d, 1, torch.mean, _MEAN),
    _functional.avg_pool2d: _pool(_functional.avg_pool2d, 2, torch.mean, _MEAN),
    _functional.avg_pool3d: _pool(_functional.avg_pool3d, 3, torch.mean, _MEAN),
    _functional.max_pool2d: _pool(_functional.max_pool2d, 2, torch.amax, _MAX),
    _functional.max_pool3d: _pool(_functional.max_pool3d, 3, torch.amax, _MAX),
}

_EXTENSIONS: Mapping[str, Callable[..., Any]] = {"torchvision::roi_align": _roi_align}
"""Operators of other packages, which may not be there, by name."""


def _has_symbols(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(map(_has_symbols, data))
    return isinstance(data, torch.SymInt | torch.SymFloat)
