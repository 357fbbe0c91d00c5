"""From sizes seen to dynamic dimensions and their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from calltape_analyzer.alignment import Alignment
from calltape_analyzer.binding import Key, Signature
from calltape_analyzer.equal_sizes import EqualSizes
from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.patterns import Pattern, Shape
from calltape_analyzer.unique_names import UniqueNames

__all__ = [
    "BatchFor",
    "DimNames",
    "Seen",
    "Track",
    "check_declared",
    "check_dim_names",
    "check_names",
    "dynamic_axes_of",
    "dynamic_dimensions",
    "is_batch",
    "name_dimensions",
    "sees",
    "track_of",
    "tracks_of",
    "well_known_name",
]

BatchFor: TypeAlias = "set[int | str] | bool | None"
"""For which arguments (names, positions, or True for all) dimension 0 is declared dynamic."""

DimNames: TypeAlias = "Mapping[int | str, Mapping[int, str]] | bool | None"
"""None for Dim.DYNAMIC, True for readable shared names, or names by argument and axis."""

# Axis names of arguments that transformers models share, by rank where it matters. The vocabulary
# is that of the ONNX exports of Optimum.
_TOKENS = {0: "batch_size", 1: "sequence_length"}
_ENCODER = {0: "batch_size", 1: "encoder_sequence_length"}
_IMAGES = {0: "batch_size", 2: "height", 3: "width"}
_WELL_KNOWN: dict[str, dict[int, str]] = {
    "input_ids": _TOKENS,
    "inputs_embeds": _TOKENS,
    "position_ids": _TOKENS,
    "token_type_ids": _TOKENS,
    "labels": _TOKENS,
    "hidden_states": _TOKENS,
    "decoder_input_ids": _TOKENS,
    "decoder_inputs_embeds": _TOKENS,
    "attention_mask": {0: "batch_size", 1: "total_sequence_length"},
    "decoder_attention_mask": {0: "batch_size", 1: "total_sequence_length"},
    "cache_position": {0: "sequence_length"},
    "past_key_values": {0: "batch_size", 2: "past_sequence_length"},
    "past_key_value": {0: "batch_size", 2: "past_sequence_length"},
    "encoder_hidden_states": _ENCODER,
    "encoder_outputs": _ENCODER,
    "encoder_attention_mask": _ENCODER,
    "pixel_values": _IMAGES,
    "pixel_mask": {0: "batch_size", 1: "height", 2: "width"},
    "input_features": {0: "batch_size", 2: "frames"},
    "input_values": {0: "batch_size", 1: "samples"},
    "logits": _TOKENS,
    "last_hidden_state": _TOKENS,
}
_MASK_4D = {0: "batch_size", 2: "sequence_length", 3: "total_sequence_length"}


def check_names(what: str, names: Any) -> None:
    """Raises UsageError for anything but a collection of names and positions."""
    is_collection = isinstance(names, Collection) and not isinstance(names, str | bytes)
    if not is_collection or not all(_is_key(name) for name in names):
        example = names if _is_key(names) else "x"
        raise UsageError(
            f"{what} takes names or positions of arguments, not {names!r}",
            advice=f"pass a list, such as [{example!r}]",
        )


def check_declared(declared: Any) -> None:
    """Raises UsageError for anything but None, a bool or a collection of names and positions."""
    if declared is not None and not isinstance(declared, bool):
        check_names("set_batch_dimension_for", declared)


def check_dim_names(names: Any, known: Collection[Key]) -> None:
    """Raises UsageError for anything but None, a bool or ``{argument: {axis: name}}`` with known
    arguments."""
    _check_form(names)
    for key in names if isinstance(names, Mapping) else ():
        if not _is_key(key) or key not in known:
            shown = ", ".join(name for name in sorted(map(str, known)) if not name.isdigit())
            raise UsageError(
                f"dim_names has {key!r}, which is no argument", advice=f"name one of {shown}"
            )


def _check_form(names: Any) -> None:
    if names is None or isinstance(names, bool):
        return
    if not isinstance(names, Mapping) or not all(_is_axis_names(n) for n in names.values()):
        raise UsageError(
            f"dim_names is {names!r}, which names no dimensions",
            advice="pass True, or names by argument and axis, such as {'x': {0: 'batch'}}",
        )


def _is_key(name: Any) -> bool:
    return isinstance(name, int | str) and not isinstance(name, bool)


def _is_axis_names(names: Any) -> bool:
    return isinstance(names, Mapping) and all(
        isinstance(axis, int) and isinstance(name, str) for axis, name in names.items()
    )


@dataclass
class Seen:
    """In how many calls a shape was seen, and which was the first of them (its position, and its
    name for people)."""

    calls: int
    first: int
    label: str


@dataclass
class Track:
    """One tensor over all calls: its shapes in order of appearance (``last`` is the latest), how
    many calls had it, and which patterns' shape is which (None: missing)."""

    name: str
    path: str
    key: Key
    shapes: dict[Shape, Seen] = field(default_factory=dict)
    dtype: str | None = None
    calls: int = 0
    last: tuple[int, Pattern, Shape] | None = None
    by_pattern: list[Shape | None] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return len(next(iter(self.shapes), ()))

    def sizes(self, axis: int) -> dict[int, Seen]:
        """The sizes of an axis, smallest first."""
        sizes: dict[int, Seen] = {}
        for shape, seen in self.shapes.items():
            known = sizes.setdefault(shape[axis], Seen(0, seen.first, seen.label))
            known.calls += seen.calls
        return dict(sorted(sizes.items()))

    def varied(self) -> list[int]:
        """The axes of which more than one size was seen."""
        return dynamic_dimensions(list(self.shapes))


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


def track_of(name: str, path: str, key: Key) -> Track:
    """A tensor that nothing was seen of yet."""
    return Track(name, path, key)


def sees(track: Track, pattern: Pattern, shape: Shape | None, dtype: str | None) -> None:
    """Adds a pattern's shape to a track.

    Raises:
        InferenceError: for another rank than before.
    """
    track.by_pattern.append(shape)
    if shape is None:
        return
    if track.shapes and len(shape) != track.rank:
        known = next(iter(track.shapes))
        raise InferenceError(
            f"All calls must pass tensors of the same rank: {track.name}{track.path} is "
            f"{list(known)} in {track.shapes[known].label} and {list(shape)} in {pattern.label}",
            advice="record the two kinds of call on tapes of their own",
        )
    seen = track.shapes.setdefault(shape, Seen(0, pattern.first, pattern.label))
    seen.calls += len(pattern.calls)
    track.calls += len(pattern.calls)
    track.dtype = track.dtype or dtype
    if track.last is None or pattern.calls[-1] > track.last[0]:
        track.last = (pattern.calls[-1], pattern, shape)


def tracks_of(
    alignment: Alignment, patterns: Sequence[Pattern], signature: Signature
) -> list[list[Track]]:
    """One track per slot, grouped by argument.

    Raises:
        InferenceError: a tensor has different ranks.
    """
    grouped = [
        [track_of(signature.name_of(argument.key), slot.path, argument.key) for slot in shown.slots]
        for argument, (shown, _) in zip(alignment.best.bound.all, alignment.references, strict=True)
    ]
    flat = [track for group in grouped for track in group]
    for pattern in patterns:
        for track, cell in zip(flat, alignment.row(pattern), strict=True):
            if cell is None:
                sees(track, pattern, None, None)
            else:
                sees(track, pattern, pattern.shape(*cell), pattern.dtype(*cell))
    return grouped


def is_batch(key: Key, declared: BatchFor, signature: Signature) -> bool:
    """Whether dimension 0 of an argument was declared dynamic: by its name, or where it is passed
    by position, by that too (the rule of ``torch.onnx.InputObserver``)."""
    if not declared:
        return False
    check_declared(declared)
    if isinstance(declared, bool) or key in declared:
        return True
    return isinstance(key, int) and signature.parameter(key) in declared


def dynamic_axes_of(track: Track, declared: bool) -> list[int]:
    """The dynamic axes of a tensor, ascending."""
    return dynamic_dimensions(list(track.shapes), declared)


Dimension: TypeAlias = "tuple[int, int]"
"""A track (by its place in a list) and an axis."""


def name_dimensions(
    tracks: Sequence[Track], dynamic: Sequence[Sequence[int]], names: DimNames
) -> dict[Dimension, str]:
    """Names for dynamic dimensions.

    Args:
        tracks: of all tensors.
        dynamic: the dynamic axes of each.
        names: True, or names by argument (name or position) and axis. True gives the dimensions
            that had the same size in every call that has both one name. It is the usual one for
            the well-known inputs of transformers models, and ``<input>_dim_<n>`` after the first
            of them otherwise. Two dimensions that are known by different names stay two, even
            when they never differed. With a mapping, only what it names is shared between inputs.
    """
    dimensions = [(i, axis) for i, axes in enumerate(dynamic) for axis in axes]
    _check_form(names)
    if isinstance(names, Mapping):
        return _given_names(tracks, dimensions, names)
    named: dict[Dimension, str] = {}
    taken = UniqueNames()
    for members in _equal(tracks, dimensions):
        known = {_well_known(tracks[i], axis) for i, axis in members} - {None}
        usual = next(iter(known)) if known else None
        is_free = usual is not None and usual not in taken.names
        name = taken.add(usual) if usual and is_free else _own_name(tracks, members[0], taken)
        named |= dict.fromkeys(members, name)
    return named


def _equal(tracks: Sequence[Track], dimensions: Sequence[Dimension]) -> list[list[Dimension]]:
    """Groups dimensions that were always equal; each joins the first group that it fits."""
    groups = EqualSizes()
    members: list[list[Dimension]] = []
    for i, axis in dimensions:
        sizes = [None if shape is None else shape[axis] for shape in tracks[i].by_pattern]
        at = groups.place(sizes, _well_known(tracks[i], axis))
        if at == len(members):
            members.append([])
        members[at].append((i, axis))
    return members


def _well_known(track: Track, axis: int) -> str | None:
    return well_known_name(track.name, track.rank, axis)


def well_known_name(argument: str, rank: int, axis: int) -> str | None:
    """The usual name of an axis of an argument that transformers models share, or None."""
    if argument.endswith("attention_mask") and rank == 4:
        return _MASK_4D.get(axis)
    return _WELL_KNOWN.get(argument, {}).get(axis)


def _own_name(tracks: Sequence[Track], dimension: Dimension, taken: UniqueNames) -> str:
    i, axis = dimension
    plain = f"{tracks[i].name}_dim_{axis}"
    if plain not in taken.names:
        return taken.add(plain)
    # A leaf of a nested argument, whose sibling has the short name.
    path = re.sub(r"\W+", "_", tracks[i].path)
    return taken.add(f"{tracks[i].name}{path}_dim_{axis}")


def _given_names(
    tracks: Sequence[Track],
    dimensions: Sequence[Dimension],
    names: Mapping[Key, Mapping[int, str]],
) -> dict[Dimension, str]:
    named: dict[Dimension, str] = {}
    taken = UniqueNames()
    for i, axis in dimensions:
        track = tracks[i]
        by_axis = names.get(track.name, names.get(track.key, {}))
        if axis in by_axis:
            named[i, axis] = by_axis[axis]
    for members in _equal_within(tracks, [d for d in dimensions if d not in named]):
        name = _own_name(tracks, members[0], taken)
        named |= dict.fromkeys(members, name)
    return named


def _equal_within(
    tracks: Sequence[Track], dimensions: Sequence[Dimension]
) -> list[list[Dimension]]:
    """Groups the dimensions of each argument and axis number that were always equal."""
    own: dict[tuple[str, int], list[Dimension]] = {}
    for i, axis in dimensions:
        own.setdefault((tracks[i].name, axis), []).append((i, axis))
    return [group for found in own.values() for group in _equal(tracks, found)]
