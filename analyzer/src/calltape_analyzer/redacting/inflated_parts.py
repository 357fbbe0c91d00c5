"""What stands deflated in a tape.

Most of a small record is its difference to another one, and a summary is deflated as a whole: a
search of the bytes of the file sees neither. In come the bytes of a tape that was just written. Out
go the parts that a reader inflates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from calltape_schema.framing import SUMMARY, members
from calltape_schema.gathered import LENGTH_BYTES, is_group, payload_of, places
from calltape_schema.summary import decode_summary

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

    def read(offset: int, size: int) -> bytes:
        return data[offset : offset + size]

    def stop(error: Exception) -> None:
        raise error

    for member in members(read, len(data), stop):
        if is_group(member.name):
            yield from _payloads(read(member.start, member.size))
        elif member.name == SUMMARY:
            inputs = decode_summary(read(member.start, member.size)).inputs
            if inputs is not None:
                yield inputs.inflated()


def _payloads(group: bytes) -> Iterator[bytes]:
    entries = {at - LENGTH_BYTES: group[at : at + size] for at, size in places(group)}
    for at, content in entries.items():
        yield payload_of(content, at, entries.__getitem__)
