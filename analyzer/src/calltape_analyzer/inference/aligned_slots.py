"""The tensors of all calls, slot by slot: which shapes each slot had, and in which calls.

In come aligned calls. Out go the slots, and which of their axes are dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from calltape_analyzer.errors import InferenceError, NotOneProgramError
from calltape_analyzer.inference.alignment import Alignment
from calltape_analyzer.inference.patterns import CallPattern, Shape, place_of
from calltape_analyzer.observing.signature import Key, Signature
from calltape_analyzer.reading.calls import Place

__all__ = ["AlignedSlot", "ShapeSeen", "dynamic_dimensions", "slots_by_argument"]


@dataclass
class ShapeSeen:
    """How many calls had a shape (or a size); where the first of them is, and its name for
    people."""

    calls: int
    first: Place
    label: str


@dataclass
class AlignedSlot:
    """One slot of the arguments, over all calls.

    Attributes:
        name: of the argument.
        path: of the slot below the argument; ``""`` if the argument is a tensor.
        key: name or position of the argument.
        shapes: the shapes that its tensors had, in the order of their first calls.
        dtypes: how many calls had a tensor of each dtype, in the order of their first calls.
        calls: how many calls have a tensor here.
        last: the last call that has one: its place, pattern and shape.
        by_pattern: the shape in each pattern; None if the pattern has no tensor here.
    """

    name: str
    path: str
    key: Key
    shapes: dict[Shape, ShapeSeen] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    last: tuple[Place, CallPattern, Shape] | None = None
    by_pattern: list[Shape | None] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name}{self.path}"

    @property
    def dtype(self) -> str | None:
        """That of the first tensor; None if no call has one."""
        return next(iter(self.dtypes), None)

    @property
    def rank(self) -> int:
        """Number of axes; 0 if no call has a tensor here."""
        return len(next(iter(self.shapes), ()))

    def add(self, pattern: CallPattern, shape: Shape | None, dtype: str | None) -> None:
        """Adds what the calls of a pattern have here; None for no tensor.

        Raises:
            InferenceError: another pattern had a tensor of another rank.
        """
        self.by_pattern.append(shape)
        if shape is None:
            return
        if self.shapes and len(shape) != self.rank:
            known = next(iter(self.shapes))
            raise NotOneProgramError(
                f"All calls must pass tensors of the same rank: {self} is {list(known)} in "
                f"{self.shapes[known].label} and {list(shape)} in {pattern.label}"
            )
        seen = self.shapes.setdefault(shape, ShapeSeen(0, place_of(pattern), pattern.label))
        seen.calls += pattern.calls
        self.calls += pattern.calls
        if dtype is not None:
            self.dtypes[dtype] = self.dtypes.get(dtype, 0) + pattern.calls
        if pattern.last is not None and (self.last is None or pattern.last > self.last[0]):
            self.last = (pattern.last, pattern, shape)

    def sizes(self, axis: int) -> dict[int, ShapeSeen]:
        """The sizes of an axis, smallest first."""
        sizes: dict[int, ShapeSeen] = {}
        for shape, seen in self.shapes.items():
            known = sizes.setdefault(shape[axis], ShapeSeen(0, seen.first, seen.label))
            known.calls += seen.calls
        return dict(sorted(sizes.items()))

    def dynamic_axes(self, is_batch: bool = False) -> list[int]:
        """The axes that had several sizes, ascending; axis 0 in any case if it was declared to be
        the batch."""
        return dynamic_dimensions(list(self.shapes), is_batch)


def dynamic_dimensions(shapes: Sequence[Shape], set_batch_dimension: bool = False) -> list[int]:
    """The axes of which several shapes of one tensor have more than one size; with
    ``set_batch_dimension`` axis 0 in any case.

    Raises:
        InferenceError: the shapes differ in rank.
    """
    if len({len(shape) for shape in shapes}) > 1:
        raise InferenceError(f"All shapes must have the same rank: {list(map(list, shapes))}")
    axes = enumerate(zip(*shapes, strict=True))
    return [
        axis for axis, sizes in axes if len(set(sizes)) > 1 or (axis == 0 and set_batch_dimension)
    ]


def slots_by_argument(
    alignment: Alignment, patterns: Sequence[CallPattern], signature: Signature
) -> list[list[AlignedSlot]]:
    """The slots of each argument, in the order of the alignment.

    Raises:
        InferenceError: the tensors of a slot differ in rank.
    """
    grouped = [
        [
            AlignedSlot(signature.name_of(argument.key), slot.path, argument.key)
            for slot in shown.slots
        ]
        for argument, (shown, _) in zip(alignment.best.bound.all, alignment.references, strict=True)
    ]
    flat = [slot for group in grouped for slot in group]
    for pattern in patterns:
        for slot, leaf in zip(flat, alignment.row(pattern), strict=True):
            if leaf is None:
                slot.add(pattern, None, None)
            else:
                slot.add(pattern, pattern.shape(*leaf), pattern.dtype(*leaf))
    return grouped
