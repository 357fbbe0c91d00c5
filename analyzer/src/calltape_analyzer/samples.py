"""The values of a call, place by place: as they were recorded, or resized to other sizes.

A tensor is resized by cyclic tiling of each axis, so that what it holds stays plausible: token ids
stay in range, masks stay masks. What is not on the tape (a shapes-only recording), or has no
element to tile, is made up within the recorded range.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calltape_analyzer.call import Call
from calltape_analyzer.completion import Completion
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.gathering import Gatherer
from calltape_analyzer.layout import Place
from calltape_analyzer.observations import Row
from calltape_analyzer.placeholder import Placeholder
from calltape_analyzer.symbols import Column
from calltape_analyzer.tallies import Span
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
    """Values for the places of a layout: its tensors, and its scalars."""

    tensors: list[Any]
    scalars: list[Any]

    def cloned(self) -> Sample:
        """With tensors of its own, contiguous: an export leaves marks on what it is given (rule 12
        of docs/decisions/0012), and a model may write to its inputs."""
        return Sample([_contiguous(tensor) for tensor in self.tensors], list(self.scalars))


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
    tensors = [
        _value(call, place, spans.get(place.number), device) for place in placed.layout.tensors
    ]
    return Sample(tensors, [tree.scalars[place.number] for place in placed.layout.scalars])


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
    variant: VariantFacts, sample: Sample, key: Hashable, row: Row, device: Any = None
) -> Sample:
    """A sample of any structure that a variant takes, in the variant's layout."""
    if key == variant.group.key:
        return sample
    completion = variant.completions.get(key)
    if completion is None:
        raise InferenceError("the call has another structure")
    return completed(sample, completion, row, device)


def completed(sample: Sample, completion: Completion, row: Row, device: Any = None) -> Sample:
    """A sample with what it lacks, at size zero."""
    import torch

    whole = completion.row(row)
    tensors: list[Any] = []
    for i, at in enumerate(completion.tensors):
        if at is not None:
            tensors.append(sample.tensors[at])
        else:
            dtype = getattr(torch, completion.dtypes[i])
            tensors.append(torch.zeros(whole.shapes[i], dtype=dtype, device=device))
    ints = iter(whole.ints)
    scalars = []
    for place, at in enumerate(completion.scalars):
        value = next(ints) if completion.kinds[place] == "int" else None
        if value is None:
            value = completion.constants[place] if at is None else sample.scalars[at]
        scalars.append(value)
    return Sample(tensors, scalars)


def _value(call: Call, place: Place, span: Span | None, device: Any) -> torch.Tensor:
    tensor: Any = call.tensor("inputs", place.number)
    if isinstance(tensor, Placeholder):
        raise InferenceError(
            f"{place} of call {call.number} is a {tensor.type_name}, which was not kept "
            f"({tensor.reason})",
            advice=f"leave it out with Tape.remove_inputs([{place.argument!r}])",
        )
    if tensor.device.type == "meta":
        tensor = made_up(tuple(tensor.shape), tensor.dtype, span, seed=str(place))
    plain: torch.Tensor = tensor.detach()
    return plain.to(device) if device is not None else plain


def made_up(
    shape: Sequence[int], dtype: torch.dtype, span: Span | None = None, *, seed: str = ""
) -> torch.Tensor:
    """A tensor of made-up values, the same for the same arguments: ints within ``span`` (0 and 1
    without), normally distributed floats, True."""
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}{tuple(shape)}".encode()))
    if dtype is torch.bool:
        return torch.ones(tuple(shape), dtype=dtype)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(tuple(shape), dtype=wide, generator=generator).to(dtype)
    low, high = (span.min, span.max) if span is not None else (0, 1)
    high = max(min(high, 2**63 - 2), -(2**63))  # torch draws below an int64
    low = min(max(low, -(2**63)), high)
    return torch.randint(low, high + 1, tuple(shape), generator=generator).to(dtype)


def resized(
    sample: Sample, variant: VariantFacts, row: int, values: Sequence[int], device: Any = None
) -> Sample:
    """A sample of one of the variant's rows, with other values of its symbols."""
    shapes, ints = resized_row(variant, row, values)
    tensors = [
        _tiled(tensor, shape, variant.group.ranges.get(i), str(place)).to(tensor.device)
        for i, (tensor, shape, place) in enumerate(
            zip(sample.tensors, shapes, variant.group.layout.tensors, strict=True)
        )
    ]
    return Sample(tensors, variant.with_ints(sample.scalars, ints))


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
            return torch.zeros(tuple(shape), dtype=tensor.dtype)
        return made_up(shape, tensor.dtype, span, seed=seed)
    for axis, size in enumerate(shape):
        if size != tensor.shape[axis]:
            places = torch.arange(size, device=tensor.device) % tensor.shape[axis]
            tensor = tensor.index_select(axis, places)
    return tensor.contiguous()


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy, also of what is contiguous already."""
    import torch

    return tensor.clone(memory_format=torch.contiguous_format)
