"""Some calls of a tape as a new tape, for example to attach it to a bug report.

In come calls of one file. Out goes a file with the same records and blobs, byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.call import Call
from calltape_analyzer.writing.tape_writer import TapeWriter

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
    with TapeWriter(path, calls[0].manifest, inputs=files) as writer:
        for call in sorted(calls, key=lambda call: call.number):
            writer.copy(call)
        writer.seal(closed_ns=max(call.record.time_ns for call in calls))
