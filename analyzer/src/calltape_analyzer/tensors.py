"""From the bytes of a leaf to a torch tensor that equals what was recorded, bit by bit."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.placeholder import Placeholder
from calltape_schema.blob import stored_as
from calltape_schema.errors import TapeError
from calltape_schema.leaves import Leaf

__all__ = ["dense_strides", "dtype_of", "tensor_of", "torch_constant", "valueless", "zeros"]


def tensor_of(leaf: Leaf, data: bytearray) -> Any:
    """The tensor of a leaf, on the CPU, in ``data``'s own memory or a copy of it.

    The layout comes back where it is dense (channels-last, transposed) or expanded; a view with
    gaps comes back contiguous. Conjugation and negation come back resolved. ``requires_grad`` is
    as recorded. A dtype that this torch does not have gives a :class:`Placeholder`.

    Args:
        leaf: facts of the tensor.
        data: exactly the bytes that ``stored_as(leaf)`` says, contiguous.

    Raises:
        TapeError: ``invalid`` for facts that no tensor has.
    """
    import torch

    dtype = torch_constant("dtype", leaf.dtype)
    if isinstance(dtype, Placeholder):
        return dtype
    try:
        return _tensor_of(torch, leaf, dtype, data)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        reason = f"{leaf.key}: no tensor has these facts: {_first_line(error)}"
        raise TapeError("invalid", reason) from None


def _tensor_of(torch: Any, leaf: Leaf, dtype: Any, data: bytearray) -> Any:
    stored = stored_as(leaf)
    if stored is None or stored.nbytes != len(data):
        raise ValueError(f"{len(data)} bytes for {leaf.dtype}{list(leaf.shape)}")
    kept = tuple(1 if axis in leaf.expanded else size for axis, size in enumerate(leaf.shape))
    plain = _as_integers(torch, data, kept, dtype.itemsize)
    if dtype is torch.bool and data.translate(None, b"\0\1"):
        raise ValueError("a bool that is neither 0 nor 1")
    strides = dense_strides(kept, leaf.strides)
    if strides is not None:
        plain = torch.empty_strided(kept, strides, dtype=plain.dtype).copy_(plain)
    if leaf.expanded:
        plain = plain.expand(leaf.shape)
    is_quantized = leaf.dtype.startswith(("qint", "quint"))
    tensor = _quantized(torch, leaf, plain) if is_quantized else plain.view(dtype)
    if leaf.requires_grad and (dtype.is_floating_point or dtype.is_complex):
        tensor.requires_grad_(True)
    return tensor


def _as_integers(torch: Any, data: bytearray, shape: tuple[int, ...], width: int) -> Any:
    """The elements as numbers of their width whose copies are exact: some dtypes torch cannot copy
    at all, and floats might lose the payload of a NaN."""
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    if not data:  # frombuffer refuses nothing
        return torch.empty(shape, dtype=widths[width])
    return torch.frombuffer(data, dtype=widths[width]).view(shape)


def _quantized(torch: Any, leaf: Leaf, plain: Any) -> Any:
    if leaf.quantizer is None:
        raise TapeError("invalid", f"{leaf.key}: a quantized tensor without a quantizer")
    numbers = {"qint8": torch.int8, "quint8": torch.uint8, "qint32": torch.int32}[leaf.dtype]
    with _without_news():
        return torch._make_per_tensor_quantized_tensor(
            plain.view(numbers), leaf.quantizer.scale, leaf.quantizer.zero_point
        )


@contextmanager
def _without_news() -> Iterator[None]:
    """The recorded model used a dtype that torch calls deprecated or experimental; the reader of a
    tape need not hear that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def dense_strides(
    shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """The strides, where they lay the elements side by side in another order than the contiguous
    one; None otherwise.

    Only these are restored, so that strides from a tape allocate what the shape needs and no more.
    Axes of size 1 have no say in it.
    """
    if strides is None or 0 in shape:
        return None
    expected = 1
    for stride, size in sorted((t, s) for t, s in zip(strides, shape, strict=True) if s > 1):
        if stride != expected:
            return None
        expected *= size
    return strides


def valueless(leaf: Leaf) -> Any:
    """What stands for a leaf whose value is not on the tape.

    A tensor of its dtype, shape and strides on the meta device where values were not wanted, or
    where the recorded tensor was one; a placeholder with the reason where the recorder could not
    keep the value, or where torch has no such meta tensor.
    """
    import torch

    dtype = torch_constant("dtype", leaf.dtype)
    wanted = leaf.missing == "policy" or leaf.device == "meta"
    # Quantized tensors on the meta device cannot even be printed.
    plain = leaf.layout == "strided" and not leaf.dtype.startswith("q")
    if isinstance(dtype, Placeholder) or not (wanted and plain):
        return Placeholder(f"torch:Tensor[{leaf.dtype}]", leaf.missing or "value not kept")
    try:
        with _without_news():
            if leaf.strides is None:
                return torch.empty(leaf.shape, dtype=dtype, device="meta")
            return torch.empty_strided(leaf.shape, leaf.strides, dtype=dtype, device="meta")
    except (RuntimeError, TypeError, OverflowError) as error:
        return Placeholder(f"torch:Tensor[{leaf.dtype}]", _first_line(error))


def dtype_of(name: str) -> Any:
    """The dtype of a name that a tape, or a saved program, has for it.

    Raises:
        InferenceError: this torch has no such dtype.
    """
    found = torch_constant("dtype", name)
    if isinstance(found, Placeholder):
        raise InferenceError(f"the dtype {found.reason}", advice="upgrade torch")
    return found


def zeros(shape: Sequence[int], dtype: Any, device: Any = None) -> Any:
    """A tensor of zero bytes; also of dtypes that torch cannot fill.

    Raises:
        InferenceError: torch has no such tensor.
    """
    import torch

    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    try:
        with _without_news():
            if dtype in (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4):
                raise TypeError("a quantized tensor needs a scale")
            plain = torch.zeros(tuple(shape), dtype=widths[dtype.itemsize], device=device)
            return plain.view(dtype)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise InferenceError(
            f"no {str(dtype).removeprefix('torch.')} can be made up: {_first_line(error)}",
            advice="leave the argument out with Tape.remove_inputs",
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


_DEVICE = re.compile(r"[a-z_]{1,32}(:\d{1,4})?")


def torch_constant(kind: str, name: str) -> Any:
    """A dtype, device, layout or memory format by its name, or a placeholder for one that this
    torch does not have."""
    import torch

    if kind == "device":
        if _DEVICE.fullmatch(name):
            try:
                return torch.device(name)
            except RuntimeError:
                pass  # falls through: a device type that this torch does not know
    else:
        # Not getattr: torch's module-level __getattr__ imports what it is asked for.
        found = vars(torch).get(name)
        if isinstance(found, getattr(torch, kind)):
            return found
    return Placeholder(f"torch:{kind}", f"{name[:80]!r} is not known to this torch")
