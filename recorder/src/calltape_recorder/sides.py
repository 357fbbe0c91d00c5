"""Looks at one side of a call, counts it and copies it.

The arguments or the result of a call come in. A :class:`~.snapshot.side.Side` goes out. All of it
runs in the host's thread. A call that looks like an earlier one takes fewer steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from calltape_recorder.call import Call
from calltape_recorder.capture.call_view import Row, row_of, with_ints
from calltape_recorder.capture.structures import Structure
from calltape_recorder.capture.walk import Capture, capture_inputs
from calltape_recorder.pipeline import Pipeline
from calltape_recorder.snapshot.copies import copy_leaves
from calltape_recorder.snapshot.earlier_copies import FEWEST_BYTES, Origin
from calltape_recorder.snapshot.look import Look, look_at
from calltape_recorder.snapshot.repeats import Repeat
from calltape_recorder.snapshot.side import Side

__all__ = [
    "NO_SCALARS",
    "Kept",
    "Looked",
    "QueueFull",
    "as_it_is",
    "copied",
    "copied_capture",
    "looked",
]

_SCALAR_BYTES = 64  # the rough memory of a captured Python value, which counts for the bound, too

Kept = Callable[[Structure, list[Any]], list[Any]]
"""A function that gives what the tape gets of the scalars of a call."""

NO_SCALARS: list[Any] = []


class QueueFull(Exception):  # noqa: N818 - a signal between two functions, not an error
    """The call does not fit into the memory that the queue may use."""


class Looked(NamedTuple):
    """A call as policies and counts see it.

    Attributes:
        structure: of its inputs.
        leaves: its tensors and arrays.
        scalars: what the tape gets of its scalars.
        row: see :data:`Row`.
        repeat: the repeat that it looks like, or None.
    """

    structure: Structure
    leaves: list[Any]
    scalars: list[Any]
    row: Row
    repeat: Repeat | None

    def count_unkept(self, pipeline: Pipeline) -> None:
        """Counts it as a call that is not on the tape."""
        if self.repeat is not None and not self.scalars:
            next(self.repeat.calls)
        else:
            pipeline.unkept.count(self.structure, self.row)


def looked(pipeline: Pipeline, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Looked:
    """Looks at a call: its structure and its row."""
    tokens, leaves, scalars = capture_inputs(args, kwargs, pipeline.module_names)
    structure = pipeline.structures.of(tokens)
    repeat = pipeline.repeats.of(structure)
    if repeat is not None and repeat.is_like(leaves):
        row = repeat.row
    else:
        repeat = None
        row = row_of(leaves)
        if leaves and pipeline.repeats.has_same_sizes(structure, row):
            repeat = pipeline.repeats.learn(structure, leaves, look_at(leaves, structure.wanted))
            if repeat is not None and not scalars and repeat.learn_call(args, kwargs, leaves):
                pipeline.repeats.call = repeat
    if scalars:
        scalars = structure.kept(scalars)
        row = with_ints(row, structure.numbers(scalars))
    return Looked(structure, leaves, scalars, row, repeat)


def copied_capture(pipeline: Pipeline, call: Call, captured: Capture, kept: Kept) -> Side:
    """Copies what a walk found.

    Raises:
        QueueFull: the bytes do not fit into the memory that the queue may use.
    """
    tokens, leaves, scalars = captured
    structure = pipeline.structures.of(tokens)
    repeat = pipeline.repeats.of(structure)
    if repeat is not None and not repeat.is_like(leaves):
        repeat = None
    return copied(pipeline, call, structure, leaves, kept(structure, scalars), repeat)


def as_it_is(structure: Structure, scalars: list[Any]) -> list[Any]:
    return scalars


def copied(
    pipeline: Pipeline, call: Call, structure: Structure, leaves: list[Any], scalars: list[Any],
    repeat: Repeat | None,
) -> Side:  # fmt: skip
    """Copies one side. ``repeat`` is the repeat that these leaves look like, or None.

    Raises:
        QueueFull: the bytes do not fit into the memory that the queue may use.
    """
    if repeat is not None and repeat.has_memory_of(leaves):
        look = repeat.look
        if repeat.side is not None and not scalars:
            return repeat.side
    else:
        look, repeat = look_at(leaves, structure.wanted), None
        if leaves and pipeline.repeats.has_same_look(structure, look):
            repeat = pipeline.repeats.learn(structure, leaves, look)
    nbytes = sum(look.sizes)
    are_large = nbytes >= FEWEST_BYTES
    if scalars:
        nbytes += _SCALAR_BYTES * len(scalars)
        nbytes += sum([len(value) for value in scalars if type(value) in (str, bytes)])
    origins = None
    if are_large:
        pieces, origins = _large(pipeline, call, leaves, look, nbytes)
    else:
        if nbytes and not pipeline.ledger.reserve(call, nbytes):
            _make_room(pipeline, call, nbytes)
        pieces = copy_leaves(leaves, look, pipeline.buffers)
    facts, same, storages, _ = look
    side = Side(
        structure, scalars, facts, same, storages, pieces, structure.wanted, repeat, origins
    )
    if repeat is not None and not nbytes:
        repeat.side = side
    return side


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
