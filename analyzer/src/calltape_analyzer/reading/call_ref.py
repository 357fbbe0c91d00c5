"""How calls are referred to: by what tells one apart from all others, by place, and by equal
inputs."""

from __future__ import annotations

from typing import NamedTuple

from calltape_analyzer.pytree.inputs import parts_of_inputs
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import Row
from calltape_schema.packing import pack
from calltape_schema.records import Tree

__all__ = ["CallRef", "Place", "SeenInputs", "checked_inputs", "row_of"]


class CallRef(NamedTuple):
    """Refers to a call: the id of its tape, and the call's number on that tape."""

    tape: bytes
    number: int

    def __str__(self) -> str:
        """Its address: the first 8 digits of the tape's id, and the number (``3f9a01bc:12``)."""
        return f"{self.tape.hex()[:8]}:{self.number}"


class Place(NamedTuple):
    """Where a call is. Places sort by recording, and there by number: a later file may have an
    earlier call.

    Attributes:
        recording: which of several it is of.
        at: its number there, or its position in a list.
        ref: the call.
    """

    recording: int
    at: int
    ref: CallRef


class SeenInputs(NamedTuple):
    """Equal inputs of several calls: what an analysis reads of a tape.

    Attributes:
        inputs: as in the record of each, with the ranges of all of them.
        raised: whether the calls raised.
        calls: how many they are.
        first, last: of these calls.
    """

    inputs: Tree
    raised: bool
    calls: int
    first: Place
    last: Place


def checked_inputs(tree: Tree) -> Tree:
    """The inputs of a call, as they are.

    Raises:
        TapeError: they break the format, or are not ``(args, kwargs)``.
    """
    if parts_of_inputs(tree.spec().root) is None:
        raise TapeError("invalid", "the inputs are not (args, kwargs)")
    return tree


def row_of(seen: SeenInputs) -> Row:
    """Equal inputs as a table counts them."""
    inputs, first, last = seen.inputs, seen.first.ref.number, seen.last.ref.number
    row = Row(inputs.structure, inputs.leaves, pack(inputs.scalars), first, last)
    row.seen = row.kept = seen.calls
    row.raised = seen.calls if seen.raised else 0
    row.example = first
    row.widen((one.leaf, one.min, one.max) for one in inputs.ranges)
    return row
