"""The fields of a record that a table has, read without making a model of each record.

In comes the document of a record. Out go plain values; each that a table shows was looked at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from calltape_schema.errors import TapeError
from calltape_schema.packing import is_map

__all__ = ["RecordFields", "TreeFields", "record_fields", "sides_of"]


class RecordFields(NamedTuple):
    """What is in a record.

    Attributes:
        time_ns, duration_ns, thread: as in the record.
        error: the type of the exception that it raised.
        bytes: of its blob; 0 without one.
    """

    time_ns: int
    duration_ns: int | None
    thread: int
    error: str | None
    bytes: int


class TreeFields(NamedTuple):
    """A side of a call: ``structure`` and ``leaves`` are not decoded. ``ranges`` has number,
    smallest and largest element of integer leaves."""

    structure: bytes
    leaves: bytes
    ranges: tuple[tuple[int, int, int], ...]


def record_fields(document: dict[str, Any]) -> RecordFields:
    """The fields of a record.

    Raises:
        TapeError: ``invalid``.
    """
    error, blob = document.get("error"), document.get("blob")
    kind = None if error is None else _map(error).get("type")
    size = 0 if blob is None else _map(blob).get("size")
    time, duration = document.get("time_ns"), document.get("duration_ns")
    thread = document.get("thread", 0)
    if (
        type(time) is not int or type(thread) is not int or type(size) is not int
        or not (duration is None or type(duration) is int)
        or not (kind is None or type(kind) is str)
        or not all(0 <= one < 2**63 for one in (time, size, duration or 0))
        or not 0 <= thread < 2**64
    ):  # fmt: skip
        raise _broken()
    return RecordFields(time, duration, thread, kind, size)


def sides_of(document: dict[str, Any]) -> dict[str, TreeFields]:
    """Inputs, and outputs if there are any, by these names; as :func:`record_fields`."""
    sides = ((name, document.get(name)) for name in ("inputs", "outputs"))
    return {name: _side(_map(side)) for name, side in sides if side is not None}


def _broken() -> TapeError:
    return TapeError("invalid", "the record breaks the format")


def _map(value: Any) -> dict[str, Any]:
    if not is_map(value):
        raise _broken()
    return dict(value)


def _side(tree: dict[str, Any]) -> TreeFields:
    ranges = map(_map, tree.get("ranges", ()))
    spans = [(one.get("leaf"), one.get("min"), one.get("max")) for one in ranges]
    if not all(type(value) is int for span in spans for value in span):
        raise _broken()
    return TreeFields(tree["structure"], tree["leaves"], tuple(spans))  # type: ignore[arg-type]
