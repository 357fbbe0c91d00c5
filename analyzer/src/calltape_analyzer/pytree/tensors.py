"""From the bytes of a leaf to a torch tensor, bit by bit as it was recorded; nested tensors and
their parts.

Takes the facts of a leaf, and its bytes if the tape has them; returns a tensor, or a placeholder
that says why there is none. torch does not check that the offsets of a nested tensor are within its
values, and reads memory that it does not own if they are not: parts from a tape are checked before.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.pytree.memory import as_laid_out, integers_of_width
from calltape_analyzer.pytree.placeholder import Placeholder, without_the_argument
from calltape_schema.blob import stored_as
from calltape_schema.errors import TapeError
from calltape_schema.objects import (
    JAGGED_DIM,
    JAGGED_FIELDS,
    is_jagged_class,
    jagged_parts,
)
from calltape_schema.tree import Leaf

if TYPE_CHECKING:
    import torch

__all__ = [
    "check_offsets",
    "dtype_of",
    "facts_of_tensors",
    "has_flags",
    "is_row_of_indices",
    "is_shapeless",
    "is_tensor",
    "nested_parts",
    "nested_tensor",
    "tensor_of",
    "torch_constant",
    "valueless",
    "with_flags",
    "zeros",
]

_PARAMETER = "torch.nn.parameter:Parameter"


def tensor_of(leaf: Leaf, data: bytearray) -> Any:
    """The tensor of a leaf, on the CPU, in the memory of ``data`` or in a copy of it.

    Strides are as recorded; where the gaps between its elements would take far more memory than the
    elements, it is contiguous. What it shares memory with is not known here
    (:func:`~calltape_analyzer.pytree.memory.place_together`). Conjugation and negation are
    resolved. ``requires_grad`` is as recorded. If this torch does not have the dtype, a
    :class:`Placeholder`.

    Args:
        leaf: the facts of the tensor.
        data: exactly the bytes that ``stored_as(leaf)`` says, contiguous.

    Raises:
        TapeError: ``invalid`` if no tensor has these facts.
    """
    import torch

    dtype = torch_constant("dtype", leaf.dtype)
    if isinstance(dtype, Placeholder):
        return dtype
    try:
        stored = stored_as(leaf)
        if stored is None or stored.nbytes != len(data):
            raise ValueError(f"{len(data)} bytes for {leaf.dtype}{list(leaf.shape)}")
        stored_shape = tuple(
            1 if axis in leaf.expanded else size for axis, size in enumerate(leaf.shape)
        )
        # Integers are copied exactly: torch cannot copy some dtypes at all, and a copy of floats
        # might lose the payload of a NaN.
        integer = integers_of_width()[dtype.itemsize]
        if data:
            plain = torch.frombuffer(data, dtype=integer).view(stored_shape)
        else:  # frombuffer raises for an empty buffer
            plain = torch.empty(stored_shape, dtype=integer)
        if leaf.strides is not None:
            plain = as_laid_out(plain, leaf.strides)
        is_quantized = leaf.dtype.startswith(("qint", "quint"))
        tensor: Any = _quantized(leaf, plain) if is_quantized else plain.view(dtype)
        if leaf.expanded:  # last: to quantize makes a copy of what is expanded
            tensor = tensor.expand(leaf.shape)
        if leaf.requires_grad and (dtype.is_floating_point or dtype.is_complex):
            tensor.requires_grad_(True)
    except (RuntimeError, TypeError, ValueError, OverflowError, KeyError) as error:
        reason = f"{leaf.key}: no tensor has these facts: {_first_line(error)}"
        raise TapeError("invalid", reason) from None
    return tensor


def has_flags(leaf: Leaf) -> bool:
    """Whether :func:`with_flags` makes another tensor."""
    return leaf.conj or leaf.neg or leaf.subclass == _PARAMETER


def with_flags(tensor: Any, leaf: Leaf) -> Any:
    """The tensor of a leaf as its model got it: conjugated or negated where it is read, and a
    ``Parameter`` if it was one. A tensor that shares memory with another one stays as it is."""
    import torch

    if not isinstance(tensor, torch.Tensor) or leaf.storage is not None or not has_flags(leaf):
        return tensor
    with torch.no_grad():
        # The values stay; the memory has the conjugate ones, or the negative ones.
        if leaf.conj and tensor.is_complex():
            tensor = tensor.conj().resolve_conj().conj()
        if leaf.neg and (tensor.is_floating_point() or tensor.is_complex()):
            tensor = torch.ops.aten._neg_view.default(-tensor)
        if leaf.subclass == _PARAMETER:
            tensor = torch.nn.Parameter(tensor, requires_grad=leaf.requires_grad)
    return tensor


def _quantized(leaf: Leaf, plain: torch.Tensor) -> torch.Tensor:
    import torch

    assert leaf.quantizer is not None  # as of each leaf of such a dtype that has bytes
    numbers = {"qint8": torch.int8, "quint8": torch.uint8, "qint32": torch.int32}[leaf.dtype]
    with _without_warnings():
        make: Any = vars(torch)["_make_per_tensor_quantized_tensor"]
        quantized: torch.Tensor = make(
            plain.view(numbers), leaf.quantizer.scale, leaf.quantizer.zero_point
        )
    return quantized


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hides warnings that a dtype is deprecated or experimental: the recorded model chose it, and
    not the reader of the tape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def valueless(leaf: Leaf) -> Any:
    """Stands for a leaf whose value is not on the tape.

    If values were not wanted, or if the recorded tensor was a meta tensor: a meta tensor of its
    dtype, shape and strides. If the recorder could not keep the value, or if torch has no such meta
    tensor: a placeholder with the reason.
    """
    import torch

    dtype = torch_constant("dtype", leaf.dtype)
    on_purpose = leaf.missing == "policy" or leaf.device == "meta"
    # A quantized meta tensor is of no use: torch cannot even print it.
    plain = leaf.layout == "strided" and not leaf.dtype.startswith("q")
    if isinstance(dtype, Placeholder) or not (on_purpose and plain):
        return Placeholder(f"torch:Tensor[{leaf.dtype}]", leaf.missing or "value not kept")
    try:
        with _without_warnings():
            if leaf.strides is None:
                return torch.empty(leaf.shape, dtype=dtype, device="meta")
            return torch.empty_strided(leaf.shape, leaf.strides, dtype=dtype, device="meta")
    except (RuntimeError, TypeError, OverflowError) as error:
        return Placeholder(f"torch:Tensor[{leaf.dtype}]", _first_line(error))


def dtype_of(name: str) -> Any:
    """The dtype of a name on a tape, or in a saved program.

    Raises:
        InferenceError: this torch has no such dtype.
    """
    dtype = torch_constant("dtype", name)
    if isinstance(dtype, Placeholder):
        raise InferenceError(f"the dtype {dtype.reason}", advice="upgrade torch")
    return dtype


def zeros(shape: Sequence[int], dtype: Any, device: Any = None) -> Any:
    """A tensor whose bytes are all zero, also of a dtype that torch cannot fill.

    Raises:
        InferenceError: torch has no such tensor.
    """
    import torch

    try:
        with _without_warnings():
            if dtype in (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4):
                raise TypeError("a quantized tensor needs a scale")
            plain = torch.zeros(
                tuple(shape), dtype=integers_of_width()[dtype.itemsize], device=device
            )
            return plain.view(dtype)
    except (RuntimeError, TypeError, ValueError, OverflowError, KeyError) as error:
        raise InferenceError(
            f"no {str(dtype).removeprefix('torch.')} can be synthesized: {_first_line(error)}",
            advice=without_the_argument(),
        ) from None


def facts_of_tensors(tensors: Sequence[Any]) -> list[Leaf]:
    """What a tape has of live tensors besides their values: dtype, shape, device and whether they
    require gradients, and how they lie in memory, with what they share of it."""
    import torch

    strides: dict[int, tuple[int, ...]] = {}
    begins: dict[int, int] = {}
    memories: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor.layout is not torch.strided:
            continue
        with suppress(RuntimeError, NotImplementedError):  # a subclass without memory
            if not tensor.is_contiguous():
                strides[i] = tensor.stride()
            if tensor.device.type != "meta":
                memory = tensor.device, tensor.untyped_storage()._cdata
                begins[i] = int(tensor.storage_offset()) * tensor.dtype.itemsize
                memories.setdefault(memory, []).append(i)
    shared: dict[int, tuple[int, int]] = {}
    for number, members in enumerate(memory for memory in memories.values() if len(memory) > 1):
        begin = min(begins[i] for i in members)
        shared |= {i: (number, begins[i] - begin) for i in members}
    facts: list[Leaf] = []
    for i, tensor in enumerate(tensors):
        storage, offset = shared.get(i, (None, 0))
        facts.append(
            Leaf.model_construct(
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(int(size) for size in tensor.shape),
                strides=strides.get(i),
                device=str(tensor.device),
                layout=str(tensor.layout).removeprefix("torch."),
                requires_grad=tensor.requires_grad,
                storage=storage,
                offset=offset,
            )
        )
    return facts


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


@lru_cache
def _constants(kind: str) -> dict[str, Any]:
    """The dtypes, layouts or memory formats of torch, by name: a table, because torch has a
    ``__getattr__`` that imports what it is asked for."""
    import torch

    classes = {
        "dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format
    }  # fmt: skip
    cls = classes[kind]
    return {name: value for name, value in vars(torch).items() if isinstance(value, cls)}


_DEVICE = re.compile(r"[a-z_]{1,32}(:\d{1,4})?")


def torch_constant(kind: str, name: str) -> Any:
    """A dtype, device, layout or memory format by its name; a placeholder if this torch does not
    have it."""
    if kind == "device":
        if _DEVICE.fullmatch(name):
            import torch

            try:
                return torch.device(name)
            except RuntimeError:
                pass  # a device type that this torch does not know
    elif name in (constants := _constants(kind)):
        return constants[name]
    return Placeholder(f"torch:{kind}", f"{name[:80]!r} is not known to this torch")


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor. torch is not imported for this."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def nested_parts(value: Any, *, of_input: bool = True) -> dict[str, Any] | None:
    """The parts of a live nested tensor as the recorder names them; None for any other value, and
    for a nested tensor that torch has in another way.

    Args:
        value: anything.
        of_input: whether it is an argument, and no result.
    """
    if not is_tensor(value) or not value.is_nested:
        return None
    torch: Any = sys.modules["torch"]
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            is_jagged = is_jagged_class(type(value))
            return jagged_parts(value, of_input=of_input) if is_jagged else None
    except Exception:  # a fake one has no memory
        return None


def is_shapeless(value: Any) -> bool:
    """Whether a live tensor is a nested one in the strided layout: it has no shape, and of one that
    was recorded the tape has nothing else."""
    torch: Any = sys.modules["torch"]
    return bool(value.is_nested) and value.layout is torch.strided


def nested_tensor(parts: Mapping[str, Any]) -> torch.Tensor:
    """The nested tensor of these parts, in their memory. If the values of some are not on the tape,
    it is a meta tensor.

    Raises:
        ValueError: no nested tensor has these parts.
    """
    needed = ("values", "offsets", JAGGED_DIM)
    if not all(map(parts.__contains__, needed)) or not set(parts) <= set(JAGGED_FIELDS):
        raise ValueError("these are not the parts of a nested tensor")
    values, offsets = (_plain_tensor(name, parts[name]) for name in ("values", "offsets"))
    lengths = _plain_tensor("lengths", parts["lengths"]) if "lengths" in parts else None
    dim = parts[JAGGED_DIM]
    if type(dim) is not int or not 1 <= dim <= values.dim():
        raise ValueError(f"its ragged dimension is {dim!r:.40}, its values have {values.dim()}")
    if not is_row_of_indices(offsets) or not len(offsets):
        raise ValueError("its offsets are not a row of integers")
    if lengths is not None and not (
        is_row_of_indices(lengths) and len(lengths) == len(offsets) - 1
    ):
        raise ValueError("its lengths are not one integer per component")
    # Who makes a nested tensor has a number per component; one number that claims to be a billion
    # would cost gigabytes here.
    nbytes = offsets.numel() * offsets.element_size()
    if not offsets.is_meta and nbytes > offsets.untyped_storage().nbytes():
        raise ValueError("its offsets are expanded")
    inner_tensors = [values, offsets] if lengths is None else [values, offsets, lengths]
    if any(part.is_meta for part in inner_tensors):
        values, offsets = values.to("meta"), offsets.to("meta")
        lengths = None if lengths is None else lengths.to("meta")
    else:
        check_offsets(offsets, lengths, values.shape[dim - 1])
    if values.is_quantized or values.device != offsets.device:
        raise ValueError("its values are quantized, or on another device than its offsets")
    # What torch.nested.nested_tensor_from_jagged calls, which also logs a warning.
    from torch.nested._internal.nested_tensor import nested_view_from_values_offsets_lengths

    build: Any = nested_view_from_values_offsets_lengths  # torch does not say what it takes
    nested: torch.Tensor = build(values, offsets, lengths, ragged_idx=dim)
    if parts.get("requires_grad") is True and nested.dtype.is_floating_point:
        nested.requires_grad_(True)
    return nested


def _plain_tensor(name: str, part: Any) -> torch.Tensor:
    import torch

    if isinstance(part, Placeholder):
        raise ValueError(f"its {name} were not kept ({part.reason})")
    if not isinstance(part, torch.Tensor) or part.layout is not torch.strided or part.is_nested:
        raise ValueError(f"its {name} are not a plain tensor")
    return part


def is_row_of_indices(part: torch.Tensor) -> bool:
    """Whether a tensor has rank 1 and a dtype that torch takes for offsets and lengths."""
    import torch

    return part.dtype in (torch.int64, torch.int32) and part.dim() == 1


def check_offsets(offsets: torch.Tensor, lengths: torch.Tensor | None, size: int) -> None:
    """Raises ValueError if a component would be outside of the values.

    Args:
        offsets: a row of indices, at least one.
        lengths: a row of indices, one per component; None if each ends where the next one begins.
        size: of the values, on the axis on which the components lie.
    """
    wide = offsets.detach().long()
    # Not a difference, which may overflow.
    if not bool((wide[1:] >= wide[:-1]).all()):
        raise ValueError("its offsets are not sorted")
    if int(wide[0]) < 0 or int(wide[-1]) > size:
        raise ValueError(f"its offsets are beyond its values, which have size {size}")
    if lengths is None:
        return
    counts = lengths.detach().long()
    if counts.shape != wide[:-1].shape:
        raise ValueError("its lengths are not one integer per component")
    if bool(((counts < 0) | (counts > size)).any()) or bool((wide[:-1] + counts > size).any()):
        raise ValueError(f"its lengths are beyond its values, which have size {size}")
