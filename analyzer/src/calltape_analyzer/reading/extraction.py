"""Some calls of a tape as a new tape, for example to attach it to a bug report.

In come calls of one file. Out goes a file with the same records and blobs, byte for byte.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.call import Call
from calltape_schema.errors import TapeError
from calltape_schema.framing import (
    END,
    MANIFEST,
    TRAILER,
    blob_name,
    member_header,
    padding,
    record_name,
)
from calltape_schema.records import Coverage, Trailer, encode_manifest, encode_trailer

__all__ = ["extract"]


def extract(calls: Sequence[Call], path: str | os.PathLike[str]) -> None:
    """Writes calls to a new tape, with the manifest of the tape that they are on.

    The new tape has the id of the old one. Its coverage counts the calls that are left out as
    dropped.

    Args:
        calls: calls of one file, in order.
        path: of the new file, which must not exist yet.

    Raises:
        UsageError: there are no calls, or they are of several files.
        TapeError: ``io`` if the file cannot be written, ``damaged`` for a damaged call.
    """
    files = {call.path for call in calls}
    if len(files) != 1:
        raise UsageError(f"calls of {len(files)} files cannot be one tape", advice="extract of one")
    parts = [_member(MANIFEST, encode_manifest(calls[0].manifest))]
    offset, index = len(parts[0]), b""
    for call in sorted(calls, key=lambda call: call.number):
        call.check()
        members = b"".join(_members(call))
        index += struct.pack("<QQ", call.number, offset)
        offset += len(members)
        parts.append(members)
    seen = max(call.number for call in calls) + 1
    left_out = seen - len(calls)
    trailer = Trailer(
        tape=calls[0].manifest.tape,
        closed_ns=max(call.record.time_ns for call in calls),
        coverage=Coverage(
            seen=seen, kept=len(calls), dropped={"not extracted": left_out} if left_out else {}
        ),
        index=index,
    )
    parts += [_member(TRAILER, encode_trailer(trailer)), END]
    try:
        with open(path, "xb") as file:
            file.writelines(parts)
    except OSError as error:
        raise TapeError(
            "io", f"cannot write the file: {error.strerror}", path=os.fspath(path)
        ) from None


def _members(call: Call) -> Sequence[bytes]:
    record, blob = call.raw()
    found = [_member(record_name(call.number), record)]
    if blob is not None:
        found.insert(0, _member(blob_name(call.number), blob))
    return found


def _member(name: str, content: bytes) -> bytes:
    return member_header(name, len(content)) + content + bytes(padding(len(content)))
