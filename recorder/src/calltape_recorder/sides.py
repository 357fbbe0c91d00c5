"""Looks at one side of a call, counts it and copies it.

The arguments or the result of a call come in. A :class:`~.snapshot.side.Side` goes out. All of it
runs in the host's thread. A call that looks like an earlier one takes fewer steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from calltape_recorder.call import Call
from calltape_recorder.capture.structures import Structure
from calltape_recorder.capture.walk import Capture, capture_inputs
from calltape_recorder.pipeline import Pipeline
from calltape_recorder.snapshot.copies import copy_leaves, joined_bytes
from calltape_recorder.snapshot.earlier_copies import FEWEST_BYTES, Origin
from calltape_recorder.snapshot.facts import Row, row_of, with_ints
from calltape_recorder.snapshot.known_calls import Alike, Known
from calltape_recorder.snapshot.look import Look, look_at
from calltape_recorder.snapshot.side import Side

_SCALAR_BYTES = 64  # the rough memory of a captured Python value, which counts for the bound, too

Kept = Callable[[Structure, list[Any]], list[Any]]
"""A function that gives what the tape gets of the scalars of a call."""

_NO_SCALARS: list[Any] = []
_make = tuple.__new__  # makes a named tuple faster than its class does


class QueueFull(Exception):  # noqa: N818 - a signal between two functions, not an error
    """The call does not fit into the memory that the queue may use."""


class Seen(NamedTuple):
    """One side of a call before anything of it is copied.

    Attributes:
        structure: of it.
        leaves: its tensors and arrays.
        scalars: what the tape gets of its scalars.
        sizes: the row of its leaves, without scalars.
        known: what is known of sides with the same structure, dtypes and shapes.
        alike: has recognized the leaves, or None.
    """

    structure: Structure
    leaves: list[Any]
    scalars: list[Any]
    sizes: Row
    known: Known | None
    alike: Alike | None = None

    @property
    def row(self) -> Row:
        """See :data:`Row`."""
        return with_ints(self.sizes, self.structure.numbers(self.scalars))

    def count_unkept(self, pipeline: Pipeline) -> None:
        """Counts it as the inputs of a call that is not on the tape."""
        if self.known is not None and not self.scalars and self.structure.core is None:
            next(self.known.calls)
        else:
            pipeline.unkept.count(self.structure, self.row)


def seen_inputs(
    pipeline: Pipeline, args: tuple[Any, ...], kwargs: dict[str, Any], alike: Alike | None
) -> Seen:
    """What is known of the inputs of a call. ``alike`` has recognized them, or is None."""
    if alike is not None:
        return recognized(alike, [*args, *kwargs.values()])
    side = seen(pipeline, capture_inputs(args, kwargs, pipeline.module_names))
    known, leaves, known_calls = side.known, side.leaves, pipeline.known_calls
    in_a_row, known_calls.latest = known is known_calls.latest, known
    is_flat = len(leaves) == len(args) + len(kwargs) and not side.scalars
    if known is not None and leaves and is_flat:
        alike = known.alike
        if alike is not None and not alike.recognizes(leaves, in_a_row=in_a_row):
            alike = None
        if alike is None and known.met_again():
            look = look_at(leaves, side.structure.wanted)
            alike = known.learn(leaves, look, in_a_row=in_a_row)
        if alike is not None and alike.learn_call(args, kwargs, leaves):
            known_calls.call = alike
        return side._replace(alike=alike)  # so that the leaves are not compared once more
    return side


def recognized(alike: Alike, leaves: list[Any]) -> Seen:
    """What is known of a side whose leaves look like these."""
    known = alike.known
    return _make(Seen, (known.structure, leaves, _NO_SCALARS, known.row, known, alike))


def seen(pipeline: Pipeline, captured: Capture, kept: Kept = Structure.kept) -> Seen:
    """What is known of a side that a walk went over."""
    tokens, leaves, scalars = captured
    structure = pipeline.structures.of(tokens)
    sizes = row_of(leaves)
    known = pipeline.known_calls.of(structure, sizes)
    if scalars:
        scalars = kept(structure, scalars)
    return _make(Seen, (structure, leaves, scalars, sizes, known, None))


def as_it_is(structure: Structure, scalars: list[Any]) -> list[Any]:
    return scalars


def copied(pipeline: Pipeline, call: Call, side: Seen) -> Side:
    """The copy of one side.

    Raises:
        QueueFull: the bytes do not fit into the memory that the queue may use.
    """
    structure, leaves, scalars, _, known, alike = side
    if known is not None and not leaves and not scalars:
        return known.side_without_leaves()
    if alike is None and known is not None:
        alike = known.alike
        if alike is not None and not alike.is_like(leaves):
            alike = None
    if alike is not None and alike.has_memory_of(leaves):
        look = alike.look
        same: Side | None = look.side  # read once: another thread may forget it
        if same is not None and not look.nbytes and not scalars:
            return same
    else:
        look = look_at(leaves, structure.wanted)
        if leaves and known is not None:
            known.learn(leaves, look)
    nbytes = look.nbytes
    if scalars:
        nbytes += _SCALAR_BYTES * len(scalars)
        nbytes += sum([len(value) for value in scalars if type(value) in (str, bytes)])
    if look.nbytes >= FEWEST_BYTES and structure.wanted:
        pieces, origins = _large(pipeline, call, leaves, look, nbytes)
        return Side(structure, scalars, look, pieces, structure.wanted, origins)
    if nbytes and not pipeline.ledger.reserve(call, nbytes):
        _make_room(pipeline, call, nbytes)
    if look.side is not None:
        few = joined_bytes(leaves, look)
        return Side(structure, scalars, look, (), structure.wanted, joined=few)
    pieces = copy_leaves(leaves, look, pipeline.buffers)
    return Side(structure, scalars, look, pieces, structure.wanted)


def _large(
    pipeline: Pipeline, call: Call, leaves: list[Any], look: Look, nbytes: int
) -> tuple[list[Any], list[Origin | None]]:
    """Copies of leaves, and where their bytes are on the tape. What an earlier call has is not
    copied again. Its bytes count for this call too, which may be the last to hold them.

    Raises:
        QueueFull: the bytes do not fit into the memory that the queue may use.
    """
    earlier = pipeline.earlier_copies
    if not pipeline.ledger.reserve(call, nbytes):
        _make_room(pipeline, call, nbytes)
    found = earlier.find(leaves, look)
    pieces = copy_leaves(leaves, look, pipeline.buffers, found)
    return pieces, earlier.keep(leaves, look, pieces, found)


def _make_room(pipeline: Pipeline, call: Call, nbytes: int) -> None:
    """Reserves memory for a call in the place of what is remembered of earlier calls.

    Raises:
        QueueFull: that is not enough.
    """
    pipeline.earlier_copies.clear()
    if not pipeline.ledger.reserve(call, nbytes):
        raise QueueFull
