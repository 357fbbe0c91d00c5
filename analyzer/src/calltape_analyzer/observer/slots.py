"""The tensors of all stored calls, slot by slot: which axes are dynamic, and what they are called.

Names are as the sibling of the peer in yobx gives them, from the vocabulary of
:mod:`calltape_analyzer.variants.names`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observer.stored_calls import Argument, Shape
from calltape_analyzer.observing.signature import Key
from calltape_analyzer.program_source import DimNames
from calltape_analyzer.text import UniqueNames
from calltape_analyzer.variants.names import own_dimension_name, usual_dimension_name

__all__ = ["Dimension", "SlotSeen", "dynamic_dimensions", "name_dimensions"]

Dimension: TypeAlias = "tuple[int, int]"
"""A slot (by its place in a list) and an axis."""


def dynamic_dimensions(shapes: Sequence[Shape], set_batch_dimension: bool = False) -> list[int]:
    """The axes of which several shapes of one tensor have more than one size; with
    ``set_batch_dimension`` axis 0 in any case.

    Raises:
        InferenceError: the shapes differ in rank.
    """
    if len(set(map(len, shapes))) > 1:
        raise InferenceError(f"All shapes must have the same rank: {list(map(list, shapes))}")
    axes = enumerate(zip(*shapes, strict=True))
    return [
        axis for axis, sizes in axes if len(set(sizes)) > 1 or (axis == 0 and set_batch_dimension)
    ]


@dataclass
class SlotSeen:
    """One slot over all calls.

    Attributes:
        key, name: of the argument.
        path: of the slot below the argument; ``""`` if the argument is a tensor.
        shapes: per call; None if it has no tensor here.
        last: the last tensor here.
    """

    key: Key
    name: str
    path: str
    shapes: list[Shape | None] = field(default_factory=list)
    last: tuple[Argument, int] | None = None

    @cached_property
    def own(self) -> list[Shape]:
        """The shapes that there are."""
        return [shape for shape in self.shapes if shape is not None]

    @cached_property
    def dynamic(self) -> list[int]:
        """The axes that had several sizes."""
        return dynamic_dimensions(self.own)


@dataclass
class _Equal:
    """Dimensions that were always equal, with their size per call."""

    usual: str | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    members: list[Dimension] = field(default_factory=list)

    def takes(self, usual: str | None, sizes: Mapping[int, int]) -> bool:
        both = self.sizes.keys() & sizes.keys()
        is_named_alike = self.usual is None or usual is None or self.usual == usual
        return bool(both) and is_named_alike and all(self.sizes[i] == sizes[i] for i in both)


def name_dimensions(
    slots: Sequence[SlotSeen], dynamic: Sequence[Sequence[int]], names: DimNames
) -> dict[Dimension, str]:
    """Names for dynamic dimensions.

    Args:
        slots: of all tensors.
        dynamic: the dynamic axes of each.
        names: True, or names by argument (name or position) and axis. True gives one name to the
            dimensions that had the same size in every call that has both: the usual one of models
            of transformers, else ``<input>_dim_<n>`` after the first of them. Two dimensions whose
            usual names differ stay two, even if their sizes never differed. With a mapping,
            inputs share only the names that it gives.
    """
    dimensions = [(i, axis) for i, axes in enumerate(dynamic) for axis in axes]
    arguments = {slot.name for slot in slots}
    named: dict[Dimension, str] = {}
    taken = UniqueNames()
    groups = _equal(slots, dimensions, arguments)
    if isinstance(names, Mapping):
        for i, axis in dimensions:
            given = names.get(slots[i].name, names.get(slots[i].key, {}))
            if axis in given:
                named[i, axis] = given[axis]
        apart: dict[tuple[str, int], list[Dimension]] = {}
        for i, axis in dimensions:
            if (i, axis) not in named:
                apart.setdefault((slots[i].name, axis), []).append((i, axis))
        groups = [one for own in apart.values() for one in _equal(slots, own, arguments)]
    for group in groups:
        usual = None if isinstance(names, Mapping) else group.usual
        i, axis = group.members[0]
        short = own_dimension_name(slots[i].name, "", axis)
        free = [name for name in (usual, short) if name and name not in taken.names]
        whole = own_dimension_name(slots[i].name, slots[i].path, axis)
        named |= dict.fromkeys(group.members, taken.add(free[0] if free else whole))
    return named


def _equal(
    slots: Sequence[SlotSeen], dimensions: Sequence[Dimension], arguments: Collection[str]
) -> list[_Equal]:
    """Groups dimensions that were always equal; each joins the first group that it fits."""
    groups: list[_Equal] = []
    for i, axis in dimensions:
        slot = slots[i]
        usual = usual_dimension_name(slot.name, slot.path, len(slot.own[0]), axis, arguments)
        sizes = {at: shape[axis] for at, shape in enumerate(slot.shapes) if shape is not None}
        group = next((one for one in groups if one.takes(usual, sizes)), None)
        if group is None:
            groups.append(group := _Equal())
        group.usual = group.usual or usual
        group.sizes |= sizes
        group.members.append((i, axis))
    return groups
