"""The fields of a record that a table has, read without making a model of each record.

In comes the payload of a record that a scan accepted. Out go plain values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from calltape_schema.packing import seal_envelope, unpack_plain
from calltape_schema.records import CallRecord, decode_call

__all__ = ["RecordFields", "TreeFields", "record_fields"]


class TreeFields(NamedTuple):
    """A side of a call: ``structure`` and ``leaves`` are not decoded. ``ranges`` has number,
    smallest and largest element of integer leaves."""

    structure: bytes
    leaves: bytes
    ranges: tuple[tuple[int, int, int], ...]


class RecordFields(NamedTuple):
    """What is in a record.

    Attributes:
        time_ns, duration_ns, thread: as in the record.
        parent: recording and number of the call that it ran within.
        error: the type of the exception that it raised.
        bytes: of its blob; 0 without one.
        inputs, outputs: its sides.
    """

    time_ns: int
    duration_ns: int | None
    thread: int
    parent: tuple[bytes, int] | None
    error: str | None
    bytes: int
    inputs: TreeFields
    outputs: TreeFields | None


def record_fields(payload: bytes) -> RecordFields:
    """The fields of a record.

    Args:
        payload: of a record that was found to be valid.

    Raises:
        TapeError: it is not valid any more.
    """
    try:
        found = _by_name(unpack_plain(payload))
    except (TypeError, ValueError, KeyError):
        found = None  # another form, which may be valid too
    return _thoroughly(decode_call(seal_envelope(payload))) if found is None else found


def _by_name(pairs: Any) -> RecordFields | None:
    named = _named(pairs)
    parent, error, blob = named.get("parent"), named.get("error"), named.get("blob")
    outputs = named.get("outputs")
    found = RecordFields(
        named["time_ns"],
        named.get("duration_ns"),
        named.get("thread", 0),
        None if parent is None else _parent(_named(parent)),
        None if error is None else _named(error)["type"],
        0 if blob is None else _named(blob)["size"],
        _side(_named(named["inputs"])),
        None if outputs is None else _side(_named(outputs)),
    )
    are_ints = type(found.time_ns) is type(found.thread) is type(found.bytes) is int
    is_text = found.error is None or type(found.error) is str
    is_duration = found.duration_ns is None or type(found.duration_ns) is int
    return found if are_ints and is_text and is_duration else None


def _named(pairs: Any) -> dict[str, Any]:
    """A map by name. ValueError if a name stands twice, or if this is no map."""
    if type(pairs) is not list:
        raise ValueError
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _parent(named: dict[str, Any]) -> tuple[bytes, int]:
    tape, call = named["tape"], named["call"]
    if type(tape) is not bytes or type(call) is not int:
        raise ValueError
    return tape, call


def _side(named: dict[str, Any]) -> TreeFields:
    structure, leaves = named["structure"], named["leaves"]
    if type(structure) is not bytes or type(leaves) is not bytes:
        raise ValueError
    ranges = tuple(
        (one["leaf"], one["min"], one["max"]) for one in map(_named, named.get("ranges") or ())
    )
    if not all(type(value) is int for one in ranges for value in one):
        raise ValueError
    return TreeFields(structure, leaves, ranges)


def _thoroughly(record: CallRecord) -> RecordFields:
    def side(tree: Any) -> TreeFields:
        ranges = tuple((found.leaf, found.min, found.max) for found in tree.ranges)
        return TreeFields(tree.structure, tree.leaves, ranges)

    parent, error, blob = record.parent, record.error, record.blob
    return RecordFields(
        record.time_ns, record.duration_ns, record.thread,
        None if parent is None else (parent.tape, parent.call),
        None if error is None else error.type,
        0 if blob is None else blob.size,
        side(record.inputs),
        None if record.outputs is None else side(record.outputs),
    )  # fmt: skip
