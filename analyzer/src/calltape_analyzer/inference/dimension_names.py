"""Which dynamic dimensions of the tape as one program share a name, and which name.

In come slots with their dynamic axes. Out goes a name for each of these dimensions, from the
vocabulary of :mod:`calltape_analyzer.observing.usual_names`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from calltape_analyzer.inference.aligned_slots import AlignedSlot
from calltape_analyzer.observing.declarations import DimNames, check_form_of_dim_names
from calltape_analyzer.observing.equal_sizes import EqualSizes
from calltape_analyzer.observing.signature import Key
from calltape_analyzer.observing.usual_names import own_dimension_name, usual_dimension_name
from calltape_analyzer.text import UniqueNames

__all__ = ["Dimension", "name_dimensions"]

Dimension: TypeAlias = "tuple[int, int]"
"""A slot (by its place in a list) and an axis."""


def name_dimensions(
    slots: Sequence[AlignedSlot], dynamic: Sequence[Sequence[int]], names: DimNames
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
    check_form_of_dim_names(names)
    if isinstance(names, Mapping):
        return _given_names(slots, dimensions, names)
    named: dict[Dimension, str] = {}
    taken = UniqueNames()
    arguments = {slot.name for slot in slots}
    for members in _equal(slots, dimensions, arguments):
        known = {_usual_name(slots[i], axis, arguments) for i, axis in members} - {None}
        usual = next(iter(known)) if known else None
        is_free = usual is not None and usual not in taken.names
        name = taken.add(usual) if usual and is_free else _own_name(slots, members[0], taken)
        named |= dict.fromkeys(members, name)
    return named


def _equal(
    slots: Sequence[AlignedSlot], dimensions: Sequence[Dimension], arguments: Collection[str]
) -> list[list[Dimension]]:
    """Groups dimensions that were always equal; each joins the first group that it fits."""
    groups = EqualSizes()
    members: list[list[Dimension]] = []
    for i, axis in dimensions:
        sizes = [None if shape is None else shape[axis] for shape in slots[i].by_pattern]
        at = groups.place(sizes, _usual_name(slots[i], axis, arguments))
        if at == len(members):
            members.append([])
        members[at].append((i, axis))
    return members


def _usual_name(slot: AlignedSlot, axis: int, arguments: Collection[str]) -> str | None:
    return usual_dimension_name(slot.name, slot.path, slot.rank, axis, arguments)


def _own_name(slots: Sequence[AlignedSlot], dimension: Dimension, taken: UniqueNames) -> str:
    """The name after the argument; if that is taken, the name after the slot."""
    i, axis = dimension
    short = own_dimension_name(slots[i].name, "", axis)
    if short not in taken.names:
        return taken.add(short)
    return taken.add(own_dimension_name(slots[i].name, slots[i].path, axis))


def _given_names(
    slots: Sequence[AlignedSlot],
    dimensions: Sequence[Dimension],
    names: Mapping[Key, Mapping[int, str]],
) -> dict[Dimension, str]:
    named: dict[Dimension, str] = {}
    taken = UniqueNames()
    for i, axis in dimensions:
        slot = slots[i]
        by_axis = names.get(slot.name, names.get(slot.key, {}))
        if axis in by_axis:
            named[i, axis] = by_axis[axis]
    for members in _equal_within(slots, [d for d in dimensions if d not in named]):
        name = _own_name(slots, members[0], taken)
        named |= dict.fromkeys(members, name)
    return named


def _equal_within(
    slots: Sequence[AlignedSlot], dimensions: Sequence[Dimension]
) -> list[list[Dimension]]:
    """Groups the dimensions of each argument and axis number that were always equal."""
    arguments = {slot.name for slot in slots}
    own: dict[tuple[str, int], list[Dimension]] = {}
    for i, axis in dimensions:
        own.setdefault((slots[i].name, axis), []).append((i, axis))
    return [group for found in own.values() for group in _equal(slots, found, arguments)]
