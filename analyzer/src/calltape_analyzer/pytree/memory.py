"""How tensors lie in memory: their strides, and which of them share it.

Takes tensors, or the facts of leaves; returns tensors with the same elements that lie as they
should: with recorded strides, together in one memory, or as copies that lie as the originals do.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.pytree.placeholder import without_the_argument
from calltape_schema.tree import Leaf

if TYPE_CHECKING:
    import torch

__all__ = [
    "Place",
    "as_before",
    "as_laid_out",
    "as_numbers",
    "computable_dtypes",
    "contiguous",
    "contiguous_strides",
    "copies",
    "extent",
    "in_order",
    "in_other_order",
    "is_apart",
    "is_dense",
    "is_strided",
    "on_device",
    "overlap",
    "place_of",
    "place_of_leaf",
    "place_together",
    "relaid",
    "relaid_together",
    "storage_of",
]

_FREE = 4096
_FACTOR = 8
"""Memory of a leaf with gaps may take so many bytes, and so many times the bytes of its elements
beside that. A tape must not allocate memory by its strides alone, not with 50,000 leaves either."""
_NEAR = 16 * 2**20
"""A copy begins where the original begins in its memory if that is within so many bytes."""
_MAX_STEPS = 4096
"""Of a search for an element that two tensors have in common. Beyond that they count as sharing."""


class Place(NamedTuple):
    """Where a tensor lies, in the units of its memory: the sizes and strides are in elements, the
    offset of the first element is in bytes, and so is the width of an element."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    width: int

    @property
    def end(self) -> int:
        """The first byte after the last element."""
        return self.offset + extent(self.shape, self.strides) * self.width


def place_of(tensor: torch.Tensor) -> Place:
    """Where a strided tensor lies in its storage."""
    width = tensor.dtype.itemsize
    shape = tuple(int(size) for size in tensor.shape)
    return Place(shape, tensor.stride(), int(tensor.storage_offset()) * width, width)


def storage_of(tensor: torch.Tensor) -> int | None:
    """What is equal for tensors of one storage, and for no others; None for what has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # it is sparse, or of a subclass without memory
        return None


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie between the first and the last one of a tensor, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether there are neither gaps nor overlaps, in whatever order of the axes."""
    return is_apart(shape, strides) and extent(shape, strides) == math.prod(shape)


def is_apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no two elements share memory, as far as strides show without a search."""
    reach = 1
    for step, size in sorted((t, s) for t, s in zip(strides, shape, strict=True) if s > 1):
        if step < reach:
            return False
        reach = step * (size - 1) + reach
    return True


def overlap(first: Place, second: Place) -> bool:
    """Whether two tensors in one memory have a byte in common. Slices of one tensor that interleave
    (``qkv.chunk(3, -1)``) have none. If it takes too long to find out, they have."""
    if 0 in first.shape or 0 in second.shape:
        return False
    if first.end <= second.offset or second.end <= first.offset:
        return False
    ranges: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for place, sign in ((first, 1), (second, 0)):
        axes = [*zip(place.strides, place.shape, strict=True)]
        for step, size in [*((t * place.width, n) for t, n in axes), (1, place.width)]:
            # Steps of one and the same width count together: their difference is what matters.
            ranges[step][sign] += (size - 1) if sign else (1 - size)
    ranges.pop(0, None)
    terms = sorted(((step, low, high) for step, (low, high) in ranges.items()), reverse=True)
    return _is_sum(second.offset - first.offset, terms)


def _is_sum(total: int, terms: Sequence[tuple[int, int, int]]) -> bool:
    """Whether a number is a sum of multiples of the terms.

    Args:
        total: the number.
        terms: a step, and how many times it may be taken, at least (0 or below) and at most; the
            largest steps first.
    """
    lows, highs = [0], [0]
    for step, low, high in reversed(terms):
        lows.append(lows[-1] + step * low)
        highs.append(highs[-1] + step * high)
    waiting, steps = [(0, total)], 0
    while waiting:
        i, remaining = waiting.pop()
        if i == len(terms):
            return True
        step, low, high = terms[i]
        # The rest must be within the reach of the smaller steps.
        others = len(terms) - i - 1
        first = max(-((highs[others] - remaining) // step), low)
        last = min((remaining - lows[others]) // step, high)
        for count in range(first, last + 1):
            steps += 1
            if steps > _MAX_STEPS:
                return True
            waiting.append((i + 1, remaining - count * step))
    return False


def as_laid_out(plain: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The elements of a contiguous tensor, in memory with these strides. Elements that share memory
    must be equal. If they are not, or if the memory would be far larger than the elements, returns
    the tensor unchanged.

    Args:
        plain: of a dtype that torch copies exactly.
        strides: one per axis, none below 0.
    """
    import torch

    needed, count = extent(plain.shape, strides), plain.numel()
    width = plain.dtype.itemsize
    if tuple(strides) == plain.stride() or needed * width > _allowed(count * width):
        return plain
    memory = torch.zeros(needed, dtype=plain.dtype, device=plain.device).as_strided(
        plain.shape, tuple(strides)
    )
    return memory if _filled(memory, plain) else plain


def _allowed(size: int) -> int:
    return _FREE + _FACTOR * size


def _filled(laid_out: torch.Tensor, plain: torch.Tensor) -> bool:
    """Whether a view has the elements of a tensor, after they were written to it."""
    import torch

    if is_apart(laid_out.shape, laid_out.stride()):
        laid_out.copy_(plain)
        return True
    # torch refuses to copy to elements that share memory.
    begin = laid_out.storage_offset()
    places = torch.full(laid_out.shape, begin, device=laid_out.device)
    for axis, (size, step) in enumerate(zip(laid_out.shape, laid_out.stride(), strict=True)):
        shape = [1] * laid_out.dim()
        shape[axis] = size
        places += torch.arange(size, device=laid_out.device).view(shape) * step
    memory = torch.empty(0, dtype=laid_out.dtype, device=laid_out.device).set_(
        laid_out.untyped_storage()
    )
    memory[places.reshape(-1)] = plain.reshape(-1)
    return torch.equal(laid_out, plain)


def place_of_leaf(leaf: Leaf, width: int) -> Place:
    """Where the tensor of a leaf lay, in memory that it shares with others."""
    return Place(leaf.shape, leaf.strides or contiguous_strides(leaf.shape), leaf.offset, width)


def place_together(
    leaves: Sequence[Leaf], tensors: dict[int, Any], made_up: Collection[int] = ()
) -> None:
    """Puts tensors that shared memory when they were recorded into one memory again.

    Recorded tensors that would contradict each other there (a damaged tape) stay apart, and so do
    those that would take far more memory than their elements.

    Args:
        leaves: of one side of a call.
        tensors: by the number of the leaf, in memory of the CPU; some are replaced.
        made_up: those whose elements are not from the tape, and may become others.
    """
    import torch

    groups: dict[int, list[int]] = defaultdict(list)
    for number, leaf in enumerate(leaves):
        tensor = tensors.get(number)
        has_memory = isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu"
        if leaf.storage is None or leaf.layout != "strided" or not has_memory:
            continue
        if not tensors[number].is_quantized:
            groups[leaf.storage].append(number)
    for members in groups.values():
        if len(members) > 1:
            members.sort(key=lambda i: i not in made_up)
            free = sum(i in made_up for i in members)
            views = _rebuilt_together(
                [leaves[i] for i in members], [tensors[i] for i in members], free
            )
            tensors.update(zip(members, views, strict=False))


def _rebuilt_together(
    leaves: list[Leaf], tensors: list[torch.Tensor], free: int
) -> list[torch.Tensor]:
    """The tensors in one memory; nothing if they cannot be there.

    Args:
        leaves, tensors: those whose elements may become others come first.
        free: how many these are.
    """
    import torch

    places = [
        place_of_leaf(leaf, tensor.dtype.itemsize)
        for leaf, tensor in zip(leaves, tensors, strict=True)
    ]
    size = max(place.end for place in places)
    aligned = all(place.offset % place.width == 0 for place in places)
    # An expanded axis may claim any size, and has one element.
    stored = sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in tensors)
    if not aligned or size > _allowed(stored):
        return []
    memory = torch.zeros(size, dtype=torch.uint8).untyped_storage()
    plain = [_as_integers(tensor) for tensor in tensors]
    views = [_view(memory, p, tensor.dtype) for p, tensor in zip(places, plain, strict=True)]
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for view, plain_tensor in zip(views, plain, strict=True):
        # Of an axis that both have expanded, the first element stands for all.
        for axis, (step, plain_stride) in enumerate(
            zip(view.stride(), plain_tensor.stride(), strict=True)
        ):
            if step == plain_stride == 0 and view.shape[axis] > 1:
                view, plain_tensor = view.narrow(axis, 0, 1), plain_tensor.narrow(axis, 0, 1)
        _filled(view, plain_tensor)
        pairs.append((view, plain_tensor))
    if not all(torch.equal(view, tensor) for view, tensor in pairs[free:]):
        return []
    results = []
    for place, tensor in zip(places, tensors, strict=True):
        plain_tensor = _view(memory, place, tensor.dtype)
        results.append(plain_tensor.requires_grad_() if tensor.requires_grad else plain_tensor)
    return results


def _view(memory: Any, place: Place, dtype: torch.dtype, device: Any = None) -> torch.Tensor:
    """A tensor in memory. It is a tensor of its own, and not a view of another tensor: a trace
    makes conditions on what a view is a view of. Nothing was written to it: what a model writes
    is found by the version of a tensor."""
    import torch

    empty = torch.empty(0, dtype=dtype, device=device)
    return empty.set_(memory, place.offset // place.width, place.shape, place.strides).data


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as numbers of the same width, which torch copies exactly."""
    integer = integers_of_width().get(tensor.dtype.itemsize)
    return tensor.detach() if integer is None else tensor.detach().view(integer)


def copies(tensors: Sequence[Any], device: Any = None, *, from_zero: bool = False) -> list[Any]:
    """Copies that lie as the originals do: with their strides, and with one memory where originals
    share it. An object that is there twice is one object again. They begin where the originals
    begin in their memory, if that is not far from its start. ``requires_grad`` is the same.

    Args:
        tensors: any.
        device: where the copies are; that of the originals by default.
        from_zero: whether memory begins with the first element of the tensors in it instead.

    Raises:
        InferenceError: torch cannot copy one.
    """
    groups: dict[Any, dict[int, Any]] = defaultdict(dict)
    copy_by_id: dict[int, Any] = {}
    for tensor in tensors:
        if id(tensor) in copy_by_id:
            continue
        if is_strided(tensor):
            copy_by_id[id(tensor)] = None
            groups[tensor.device, storage_of(tensor)][id(tensor)] = tensor
        else:
            copy_by_id[id(tensor)] = _on_device(contiguous(tensor.detach()), device).requires_grad_(
                tensor.requires_grad
            )
    for group in groups.values():
        members = list(group.values())
        for tensor, copy in zip(members, _copied(members, device, from_zero), strict=True):
            copy_by_id[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
    return [copy_by_id[id(tensor)] for tensor in tensors]


def on_device(tensors: dict[int, Any], numbers: Collection[int], device: Any) -> dict[int, Any]:
    """The same tensors, moved to a device where necessary; they keep their layout in memory.

    Args:
        tensors: by number.
        numbers: of those that are moved.
        device: of torch, or its name.
    """
    import torch

    if torch.device(device).type == "cpu":
        return tensors
    moved = copies([tensors[i] for i in numbers], device)
    return tensors | dict(zip(numbers, moved, strict=True))


def _on_device(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    return tensor if device is None else tensor.to(device)


def is_strided(tensor: torch.Tensor) -> bool:
    """Whether a tensor has plain memory of its own, in which it may lie in any way."""
    import torch

    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def _copied(members: list[torch.Tensor], device: Any, from_zero: bool) -> list[torch.Tensor]:
    """Copies of tensors in one memory."""
    import torch

    places = [place_of(member) for member in members]
    if len(members) == 1 and members[0].is_contiguous() and (from_zero or not places[0].offset):
        return [_on_device(contiguous(members[0].detach()), device)]
    begin = min((place.offset for place in places if 0 not in place.shape), default=0)
    end = max((place.end for place in places if 0 not in place.shape), default=0)
    if any((place.offset - begin) % place.width for place in places if 0 not in place.shape):
        begin -= begin % 16  # dtypes of several widths
    if not from_zero and begin <= _NEAR:
        begin = 0
    source = members[0].untyped_storage()
    region = torch.empty(0, dtype=torch.uint8, device=members[0].device)
    region.set_(source, begin, (end - begin,), (1,))
    memory = region.clone() if device is None else region.to(device, copy=True)
    return [
        _view(
            memory.untyped_storage(),
            place._replace(offset=max(place.offset - begin, 0) if 0 not in place.shape else 0),
            member.dtype,
            memory.device,
        )
        for place, member in zip(places, members, strict=True)
    ]


def relaid(plain: torch.Tensor, old: Place) -> torch.Tensor:
    """A contiguous tensor laid out like another one of the same rank: with the axes in the same
    order, the same gaps between them, and the same axes expanded.

    Args:
        plain: the elements.
        old: how the other one lies.
    """
    import torch

    if old.strides == contiguous_strides(old.shape) or not plain.numel():
        return plain
    expanded = [
        axis
        for axis, (size, step) in enumerate(zip(old.shape, old.strides, strict=True))
        if step == 0 and size > 1
    ]
    result = plain
    for axis in expanded:
        result = result.narrow(axis, 0, 1)
    strides = _strides_like(result.shape, old)
    numbers = as_laid_out(_as_integers(result.contiguous()), strides)
    if numbers.stride() != strides and math.prod(result.shape) > 1:
        return plain  # its elements cannot lie so
    steps = tuple(0 if axis in expanded else step for axis, step in enumerate(strides))
    place = Place(tuple(plain.shape), steps, 0, plain.dtype.itemsize)
    with torch.no_grad():
        return _view(numbers.untyped_storage(), place, plain.dtype, plain.device)


def relaid_together(new: Sequence[torch.Tensor], old: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Contiguous tensors laid out like others of the same ranks (:func:`relaid`). Where two of the
    others are one object, so are these; where they share memory, one is the slice of the other that
    it was, at the other sizes.

    Raises:
        InferenceError: the tensors that share memory are no slices of one of them.
    """
    relaid_of: dict[int, torch.Tensor] = {}
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, old_tensor in enumerate(old):
        if is_strided(old_tensor):
            groups[old_tensor.device, storage_of(old_tensor)].append(i)
        else:
            relaid_of[i] = new[i]
    for members in groups.values():
        places = {i: place_of(old[i]) for i in members}
        # The largest first: the others are slices of it.
        members.sort(key=lambda i: places[i].offset - places[i].end)
        bases: list[int] = []
        for i in members:
            twin = next((j for j in bases if places[j] == places[i]), None)
            base = next((j for j in bases if overlap(places[j], places[i])), None)
            if twin is not None:
                relaid_of[i] = again = relaid_of[twin]
                if old[twin] is not old[i]:  # the same memory as another object
                    storage = again.untyped_storage()
                    relaid_of[i] = _view(storage, place_of(again), again.dtype, again.device)
            elif base is not None:
                relaid_of[i] = _slice_of(relaid_of[base], places[base], places[i], new[i])
            else:
                relaid_of[i] = relaid(new[i], places[i])
                bases.append(i)
    return [relaid_of[i] for i in range(len(new))]


def _slice_of(
    base: torch.Tensor, base_place: Place, place: Place, values: torch.Tensor
) -> torch.Tensor:
    """The slice of a tensor of other sizes that a place was of the old one. Its elements are those
    of the base."""
    pairs = zip(base_place.strides, base.stride(), strict=True)
    steps = sorted(((step, new) for step, new in pairs if step), reverse=True)
    remaining = (place.offset - base_place.offset) // place.width
    offset = int(base.storage_offset())
    for step, new in steps:
        offset += remaining // step * new
        remaining %= step
    strides: list[int] = []
    for stride in place.strides:
        axis = next(((s, n) for s, n in steps if s <= stride and stride % s == 0), None)
        if stride and axis is None:
            break
        strides.append(stride // axis[0] * axis[1] if axis else 0)
    there = Place(tuple(values.shape), tuple(strides), offset * place.width, place.width)
    fits = len(strides) == len(place.strides) and there.end <= place_of(base).end
    if remaining or not fits or place.width != base_place.width or values.dtype != base.dtype:
        raise InferenceError(
            "tensors share memory in a way that is not known at other sizes",
            advice="record calls of more sizes",
        )
    return _view(base.untyped_storage(), there, values.dtype, values.device)


def _strides_like(shape: Sequence[int], old: Place) -> tuple[int, ...]:
    """Strides for other sizes: axis by axis outwards, each as far beyond the end of the one within
    it as in the old tensor. Where old elements share memory, the strides are the old ones."""
    if not is_apart(old.shape, [s or 1 for s in old.strides]) and 0 not in old.strides:
        return old.strides
    order = sorted(range(len(shape)), key=lambda axis: (old.strides[axis], -axis))
    strides = [0] * len(shape)
    reach, new_reach = 1, 1
    for axis in order:
        if old.strides[axis] == 0:
            strides[axis] = 1
            continue
        gap = max(old.strides[axis] - reach, 0) if old.shape[axis] > 1 else 0
        strides[axis] = new_reach + gap
        if old.shape[axis] > 1:
            reach = old.strides[axis] * old.shape[axis]
        new_reach = strides[axis] * max(shape[axis], 1)
    return tuple(strides)


def in_other_order(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its axes in another order in memory, without gaps: channels last for one of
    rank 4 or 5, which some models ask for by name."""
    axes = range(tensor.dim())
    order = [0, *axes[2:], 1] if tensor.dim() in (4, 5) else list(reversed(axes))
    ordered = in_order(tensor, order)
    return in_order(tensor, list(axes)) if ordered.stride() == tensor.stride() else ordered


def in_order(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The tensor with its axes in an order in memory, the outermost first."""
    back = sorted(range(len(order)), key=lambda place: order[place])
    ordered: torch.Tensor = contiguous(tensor.permute(*order)).permute(*back)
    return ordered


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy, also of a tensor that is contiguous already.

    Raises:
        InferenceError: torch cannot copy it.
    """
    import torch

    copy = as_numbers(tensor).clone(memory_format=torch.contiguous_format)
    return as_before(copy, tensor)


def as_before(numbers: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Numbers as the dtype of a tensor that they were the memory of."""
    # A view of a quantized tensor as its own dtype ends the process (torch 2.15).
    return numbers if numbers.dtype == tensor.dtype else numbers.view(tensor.dtype)


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as numbers, if torch cannot copy its dtype.

    Raises:
        InferenceError: torch cannot view it as numbers either.
    """
    if tensor.dtype in computable_dtypes() or tensor.is_quantized:
        return tensor
    try:
        return tensor.view(integers_of_width()[tensor.dtype.itemsize])
    except (RuntimeError, TypeError, KeyError):
        name = str(tensor.dtype).removeprefix("torch.")
        raise InferenceError(
            f"torch cannot copy {name}",
            advice=without_the_argument(),
        ) from None


@cache
def integers_of_width() -> dict[int, torch.dtype]:
    """For each number of bytes a dtype of this width whose elements torch copies exactly."""
    import torch

    return {
        1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128
    }  # fmt: skip


@cache
def computable_dtypes() -> frozenset[torch.dtype]:
    """The dtypes that numbers can be converted to; not bits, nor anything below a byte."""
    import torch

    dtypes: set[torch.dtype] = set()
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        with suppress(RuntimeError, NotImplementedError, TypeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.empty(1, dtype=dtype).copy_(
                torch.zeros(1, dtype=torch.complex64 if dtype.is_complex else None)
            )
            dtypes.add(dtype)
    return frozenset(dtypes)
