"""Inputs that calls had, with how many calls had them: what an analysis reads of a tape."""

from __future__ import annotations

from typing import NamedTuple

from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_schema.records import Tree

__all__ = ["Place", "SeenInputs"]


class Place(NamedTuple):
    """Where a call is in a sequence of calls. Places sort as the calls do.

    Attributes:
        file: the number of its file.
        at: its number within the file, or its position in a list.
        ref: the call.
    """

    file: int
    at: int
    ref: CallRef


class SeenInputs(NamedTuple):
    """Equal inputs of several calls.

    Attributes:
        inputs: as in the record of each.
        raised: whether the calls raised.
        calls: how many they are.
        first, last: of these calls.
    """

    inputs: Tree
    raised: bool
    calls: int
    first: Place
    last: Place

    @classmethod
    def of(cls, call: Call, position: int) -> SeenInputs:
        """The inputs of one call.

        Args:
            call: the call.
            position: in a sequence of calls.

        Raises:
            TapeError: as :attr:`Call.record`.
        """
        place = Place(0, position, call.ref)
        record = call.record
        return cls(record.inputs, record.error is not None, 1, place, place)
