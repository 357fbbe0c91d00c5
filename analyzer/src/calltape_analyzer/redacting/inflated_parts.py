"""What stands deflated in a tape.

The records of a group, the index and the table of inputs are deflated: a search of the bytes of the
file does not see them. In come the bytes of a tape that was just written. Out go the parts that a
reader inflates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from calltape_schema.reader import TapeReader
from calltape_schema.storage import BytesSource

__all__ = ["TapeBytes", "inflated_parts"]


class TapeBytes(Protocol):
    """Bytes in memory, or of a file that is mapped."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


def inflated_parts(data: TapeBytes) -> Iterator[bytes]:
    """Each part of a tape that is deflated, as a reader has it, one after another.

    Raises:
        TapeError: ``damaged``, ``invalid``, ``limit``: the tape is not as it was written.
    """
    reader = TapeReader(BytesSource(data))
    for offset in reader.scan().offsets:
        yield reader.group(offset).documents()
    if reader.end is not None:
        table = reader.end.table()
        if table is not None:
            yield table.to_bytes()
