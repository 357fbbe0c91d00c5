"""The values of a call, place by place: as they were recorded, or resized to other sizes.

A tensor is resized by cyclic tiling of each axis, so that what it holds stays plausible: token ids
stay in range, masks stay masks. What is not on the tape (a shapes-only recording), or has no
element to tile, is made up within the recorded range.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from calltape_analyzer.allowance import check_room, room_of
from calltape_analyzer.call import Call
from calltape_analyzer.completion import Completion
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.gathering import Gatherer
from calltape_analyzer.layout import Place
from calltape_analyzer.observations import Key, Row
from calltape_analyzer.placeholder import Placeholder
from calltape_analyzer.symbols import Column
from calltape_analyzer.tallies import Span
from calltape_analyzer.tensors import dtype_of, zeros
from calltape_analyzer.variants import VariantFacts

if TYPE_CHECKING:
    import torch

__all__ = [
    "Sample",
    "completed",
    "in_variant",
    "made_up",
    "recorded_sample",
    "resized",
    "resized_row",
    "sample_in",
]


@dataclass
class Sample:
    """Values for the places of a layout: its tensors, and its scalars. ``room`` is how many bytes
    may be made that are not on the tape; None for arguments that were just given."""

    tensors: list[Any]
    scalars: list[Any]
    room: int | None = None

    def cloned(self) -> Sample:
        """With tensors of its own, contiguous: an export leaves marks on what it is given (rule 12
        of docs/decisions/0012), and a model may write to its inputs.

        Raises:
            TapeError: ``limit`` where that takes more than there is room for.
            InferenceError: torch cannot copy one.
        """
        self._check_room([tuple(tensor.shape) for tensor in self.tensors])
        return Sample([_contiguous(tensor) for tensor in self.tensors], [*self.scalars], self.room)

    def contiguous(self) -> Sample:
        """The same for a sample that nobody else has: what is contiguous is not copied."""
        self._check_room([tuple(tensor.shape) for tensor in self.tensors])
        own = [t if t.is_contiguous() else _contiguous(t) for t in self.tensors]
        return Sample(own, list(self.scalars), self.room)

    def _check_room(self, shapes: Sequence[Sequence[int]]) -> None:
        check_tensors(self.room, self.tensors, shapes)


def check_tensors(
    room: int | None, tensors: Sequence[Any], shapes: Sequence[Sequence[int]]
) -> None:
    """Refuses tensors that would take more than there is room for, in these shapes.

    Raises:
        TapeError: ``limit``.
    """
    made = [(shape, tensor.dtype.itemsize) for tensor, shape in zip(tensors, shapes, strict=True)]
    check_room(room, made, "the values of one call")


def recorded_sample(call: Call, gatherer: Gatherer, device: Any = None) -> Sample:
    """The values that a call was made with.

    Args:
        call: any call.
        gatherer: lays the call out.
        device: moves the tensors there; the CPU by default.

    Raises:
        TapeError: the tensors cannot be read.
        InferenceError: a tensor of a kind that was not recorded.
    """
    tree = call.record.inputs
    placed = gatherer.sorted(tree)
    spans = {found.leaf: Span(found.min, found.max) for found in tree.ranges}
    room = room_of(call.tape_bytes)
    read = [_read(call, place) for place in placed.layout.tensors]
    lacking = [tensor for tensor in read if tensor.device.type == "meta"]
    check_tensors(room, lacking, [tuple(tensor.shape) for tensor in lacking])
    tensors = [
        _value(tensor, place, spans.get(place.number), device)
        for tensor, place in zip(read, placed.layout.tensors, strict=True)
    ]
    return Sample(tensors, [tree.scalars[place.number] for place in placed.layout.scalars], room)


def sample_in(variant: VariantFacts, call: Call, gatherer: Gatherer, device: Any = None) -> Sample:
    """The values of a call in the layout of a variant: where a merged variant has more places than
    the call, these are completed.

    Raises:
        InferenceError: the call is not one of the variant's structure.
    """
    sample = recorded_sample(call, gatherer, device)
    placed = gatherer.sorted(call.record.inputs)
    return in_variant(variant, sample, placed.key, placed.row, device)


def in_variant(
    variant: VariantFacts, sample: Sample, key: Key, row: Row, device: Any = None
) -> Sample:
    """A sample of any structure that a variant takes, in the variant's layout."""
    if variant.group.key.takes(key):
        return sample
    completion = variant.completion_of(key)
    if completion is None:
        raise InferenceError("the call has another structure")
    return completed(sample, completion, row, device)


def completed(sample: Sample, completion: Completion, row: Row, device: Any = None) -> Sample:
    """A sample with what it lacks, at size zero.

    Raises:
        TapeError: ``limit`` where that takes more than there is room for.
        InferenceError: torch cannot make one.
    """
    whole = completion.row(row)
    dtypes = {i: dtype_of(name) for i, name in completion.dtypes.items()}
    lacking = [(whole.shapes[i], dtypes[i].itemsize) for i in completion.missing]
    check_room(sample.room, lacking, "what a call lacks")
    tensors: list[Any] = []
    for i, at in enumerate(completion.tensors):
        if at is not None:
            tensors.append(sample.tensors[at])
        else:
            tensors.append(zeros(whole.shapes[i], dtypes[i], device))
    ints = iter(whole.ints)
    scalars = []
    for place, at in enumerate(completion.scalars):
        value = next(ints) if completion.kinds[place] == "int" else None
        if value is None:
            value = completion.constants[place] if at is None else sample.scalars[at]
        scalars.append(value)
    return Sample(tensors, scalars, sample.room)


def _read(call: Call, place: Place) -> Any:
    tensor: Any = call.tensor("inputs", place.number)
    if isinstance(tensor, Placeholder):
        raise InferenceError(
            f"{place} of call {call.number} is a {tensor.type_name}, which was not kept "
            f"({tensor.reason})",
            advice=f"leave it out with Tape.remove_inputs([{place.argument!r}])",
        )
    return tensor


def _value(tensor: Any, place: Place, span: Span | None, device: Any) -> torch.Tensor:
    if tensor.device.type == "meta":
        tensor = made_up(tuple(tensor.shape), tensor.dtype, span, seed=str(place))
    plain: torch.Tensor = tensor.detach()
    return plain.to(device) if device is not None else plain


def made_up(
    shape: Sequence[int], dtype: torch.dtype, span: Span | None = None, *, seed: str = ""
) -> torch.Tensor:
    """A tensor of made-up values, the same for the same arguments: ints within ``span`` (0 and 1
    without), normally distributed floats, True; zeros of what torch cannot compute with.

    Raises:
        InferenceError: torch has no such tensor.
    """
    import torch

    if dtype not in _computable():
        return cast("torch.Tensor", zeros(shape, dtype))
    text = f"{seed}{tuple(shape)}".encode(errors="backslashreplace")  # any key of a dict
    generator = torch.Generator().manual_seed(zlib.crc32(text))
    if dtype is torch.bool:
        return torch.ones(tuple(shape), dtype=dtype)
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.empty(tuple(shape), dtype=dtype)
        _fill(made, lambda n: torch.randn(n, dtype=_wide(dtype), generator=generator))
        return made
    low, high = (span.min, span.max) if span is not None else (0, 1)
    high = max(min(high, 2**63 - 2), -(2**63))  # torch draws below an int64
    low = min(max(low, -(2**63)), high)
    made = torch.empty(tuple(shape), dtype=dtype)
    _fill(made, lambda n: torch.randint(low, high + 1, (n,), generator=generator))
    return made


_CHUNK = 2**20


def _fill(made: torch.Tensor, draw: Callable[[int], torch.Tensor]) -> None:
    """Draws in parts: what is drawn may be wider than what is wanted."""
    flat = made.view(-1)
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK]
        part.copy_(draw(part.numel()))


def _wide(dtype: torch.dtype) -> torch.dtype:
    import torch

    return torch.complex64 if dtype.is_complex else torch.float32


@cache
def _computable() -> frozenset[torch.dtype]:
    """The dtypes that numbers can be converted to; not bits, and less than a byte."""
    import torch

    found: set[torch.dtype] = set()
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        with suppress(RuntimeError, NotImplementedError, TypeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.empty(1, dtype=dtype).copy_(torch.zeros(1, dtype=_wide(dtype)))
            found.add(dtype)
    return frozenset(found)


def resized(
    sample: Sample, variant: VariantFacts, row: int, values: Sequence[int], device: Any = None
) -> Sample:
    """A sample of one of the variant's rows, with other values of its symbols.

    Raises:
        TapeError: ``limit`` where that takes more than there is room for.
        InferenceError: torch cannot make, or copy, one of its tensors.
    """
    shapes, ints = resized_row(variant, row, values)
    # Beside what it is made of.
    before = [tuple(tensor.shape) for tensor in sample.tensors]
    check_tensors(sample.room, sample.tensors * 2, [*before, *shapes])
    tensors = [
        _tiled(tensor, shape, variant.group.ranges.get(i), str(place)).to(tensor.device)
        for i, (tensor, shape, place) in enumerate(
            zip(sample.tensors, shapes, variant.group.layout.tensors, strict=True)
        )
    ]
    return Sample(tensors, variant.with_ints(sample.scalars, ints), sample.room)


def resized_row(variant: VariantFacts, row: int, values: Sequence[int]) -> Row:
    """One of the variant's rows, with other values of its symbols."""
    recorded = variant.rows[row][0]
    shapes = [list(shape) for shape in recorded.shapes]
    ints = list(recorded.ints)
    for symbol, value in zip(variant.symbols, values, strict=True):
        for column in symbol.columns:
            _put(shapes, ints, column, value)
    for counter, keys in variant.counters.items():
        assert keys.axis is not None
        ints[counter] = shapes[keys.place][keys.axis]
    return Row(tuple(tuple(shape) for shape in shapes), tuple(ints))


def _put(shapes: list[list[int]], ints: list[int], column: Column, value: int) -> None:
    if column.axis is None:
        ints[column.place] = value
    else:
        shapes[column.place][column.axis] = value


def _tiled(
    tensor: torch.Tensor, shape: Sequence[int], span: Span | None, seed: str
) -> torch.Tensor:
    import torch

    if list(tensor.shape) == list(shape):
        return _contiguous(tensor)
    if tensor.numel() == 0:
        if not math.prod(shape):
            return cast("torch.Tensor", zeros(shape, tensor.dtype))
        return made_up(shape, tensor.dtype, span, seed=seed)
    plain = _as_numbers(tensor)
    for axis, size in enumerate(shape):
        if size != plain.shape[axis]:
            places = torch.arange(size, device=plain.device) % plain.shape[axis]
            plain = plain.index_select(axis, places)
    return _as_before(plain.contiguous(), tensor)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy, also of what is contiguous already."""
    import torch

    copy = _as_numbers(tensor).clone(memory_format=torch.contiguous_format)
    return _as_before(copy, tensor)


def _as_before(numbers: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    # To view a quantized tensor as what it is ends the process (torch 2.15).
    return numbers if numbers.dtype == tensor.dtype else numbers.view(tensor.dtype)


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as numbers, where torch cannot copy what it holds.

    Raises:
        InferenceError: it cannot be seen as numbers either.
    """
    import torch

    if tensor.dtype in _computable() or tensor.is_quantized:
        return tensor
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    try:
        return tensor.view(widths[tensor.dtype.itemsize])
    except (RuntimeError, TypeError, KeyError):
        name = str(tensor.dtype).removeprefix("torch.")
        raise InferenceError(
            f"torch cannot copy {name}", advice="leave the argument out with Tape.remove_inputs"
        ) from None
