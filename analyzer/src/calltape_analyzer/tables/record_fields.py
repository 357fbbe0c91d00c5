"""The fields of a record that a table has, read without making a model of each record.

In comes the payload of a record that a scan accepted. Out go plain values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from calltape_schema.packing import seal_envelope, unpack_plain
from calltape_schema.records import CallRecord, Tree, decode_call

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


def record_fields(payload: bytes) -> RecordFields:
    """The fields of a record.

    Args:
        payload: of a record that was found to be valid.

    Raises:
        TapeError: it is not valid any more.
    """
    try:
        return _fields(_named(unpack_plain(payload)))
    except (TypeError, ValueError, KeyError):  # another form, which may be valid too
        return _fields_of(decode_call(seal_envelope(payload)))


def sides_of(payload: bytes) -> dict[str, TreeFields]:
    """Inputs, and outputs if there are any, by these names; as :func:`record_fields`."""
    try:
        named = _named(unpack_plain(payload))
        given = ((name, named.get(name)) for name in ("inputs", "outputs"))
        return {name: _side(_named(pairs)) for name, pairs in given if pairs is not None}
    except (TypeError, ValueError, KeyError):
        record = decode_call(seal_envelope(payload))
        sides = {"inputs": record.inputs, "outputs": record.outputs}
        return {name: _side_of(tree) for name, tree in sides.items() if tree is not None}


def _named(pairs: Any) -> dict[str, Any]:
    """A map by name. ValueError if a name stands twice, or if this is no map."""
    if type(pairs) is not list:
        raise ValueError
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _fields(named: dict[str, Any]) -> RecordFields:
    error, blob = named.get("error"), named.get("blob")
    time, duration, thread = named["time_ns"], named.get("duration_ns"), named.get("thread", 0)
    kind = None if error is None else _named(error)["type"]
    nbytes = 0 if blob is None else _named(blob)["size"]
    if (
        type(time) is not int or type(thread) is not int or type(nbytes) is not int
        or (duration is not None and type(duration) is not int)
        or (kind is not None and type(kind) is not str)
    ):  # fmt: skip
        raise ValueError
    return RecordFields(time, duration, thread, kind, nbytes)


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


def _fields_of(record: CallRecord) -> RecordFields:
    error, blob = record.error, record.blob
    return RecordFields(
        record.time_ns, record.duration_ns, record.thread,
        None if error is None else error.type,
        0 if blob is None else blob.size,
    )  # fmt: skip


def _side_of(tree: Tree) -> TreeFields:
    ranges = tuple((found.leaf, found.min, found.max) for found in tree.ranges)
    return TreeFields(tree.structure, tree.leaves, ranges)
