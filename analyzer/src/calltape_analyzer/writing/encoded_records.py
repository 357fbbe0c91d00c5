"""Records of calls as the bytes of their members.

In come records: as schema objects, or encoded. Out go encoded ones, in the order of fields in which
a recorder writes them, so that readers take their fast path.
"""

from __future__ import annotations

from typing import Any

from calltape_schema.errors import TapeError
from calltape_schema.packing import is_map, open_envelope, pack, seal_envelope, unpack, unpack_plain
from calltape_schema.records import BlobFacts, CallRecord, Tree, encode_call

__all__ = ["blob_of", "encoded", "renumbered"]


def encoded(record: CallRecord, tape: bytes, blob: BlobFacts | None) -> bytes:
    """The content of a record's member, as a call of this tape with this blob.

    Raises:
        TapeError: ``limit``.
    """
    document: dict[str, Any] = {
        "tape": tape,
        "call": record.call,
        "time_ns": record.time_ns,
        "thread": record.thread,
    }
    if record.duration_ns is not None:
        document["duration_ns"] = record.duration_ns
    if record.error is not None:
        document["error"] = record.error.model_dump()
    if record.outputs_missing is not None:
        document["outputs_missing"] = record.outputs_missing
    document["inputs"] = _tree(record.inputs)
    if record.outputs is not None:
        document["outputs"] = _tree(record.outputs)
    if blob is not None:
        document["blob"] = blob.model_dump()
    return encode_call(document)


def _tree(tree: Tree) -> dict[str, Any]:
    found: dict[str, Any] = {"structure": tree.structure, "leaves": tree.leaves}
    if tree.scalars:
        found["scalars"] = tree.scalars
    if tree.ranges:
        found["ranges"] = [one.model_dump() for one in tree.ranges]
    return found


def blob_of(content: bytes) -> BlobFacts | None:
    """Size and checksum of the blob that an encoded record names; None if it has no blob. Nothing
    else of the record is decoded.

    Raises:
        TapeError: ``damaged`` or ``invalid``.
    """
    # Maps come as lists of pairs. The last pair with a name counts nowhere else: a reader refuses
    # two of them before.
    pairs: Any = unpack_plain(open_envelope(content)) or ()
    for name, value in reversed(pairs):
        if name == "blob":
            facts = dict(value)
            return BlobFacts(size=facts["size"], crc32=facts["crc32"])
    return None


def renumbered(content: bytes, tape: bytes, call: int) -> bytes:
    """An encoded record as that of another call, with everything else as it is, unknown fields
    included.

    Args:
        content: of the record's member.
        tape, call: the new id and number.

    Raises:
        TapeError: ``damaged``, ``invalid`` or ``limit``.
    """
    document = unpack(open_envelope(content))
    if not is_map(document):
        raise TapeError("invalid", "call record is not a map")
    return seal_envelope(pack({**document, "tape": tape, "call": call}))
