"""Sealed tapes of one model in any number, which cost seconds and not hours to make.

One tape is recorded. Every other one has the same bytes in a new recording: manifest and end are
those of another id and another time. Its groups still have the first id; whoever answers from the
ends never reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from calltape_schema.end import decode_end, encode_end
from calltape_schema.groups import member
from calltape_schema.records import Producer, decode_manifest, manifest_document
from calltape_schema.tar import END_MEMBER, MANIFEST, ZEROS_AT_END, Member, members
from calltape_schema.writer import manifest_member

__all__ = ["Ends"]

_HOUR_NS = 3_600_000_000_000


class Ends:
    """A recorded tape, as a pattern for others.

    Args:
        path: of the tape, which is sealed.
        keeps_records: whether the others have its records, too. Without them a file has a hole of
            their size, which takes no room on the disk.
    """

    def __init__(self, path: Path, *, keeps_records: bool) -> None:
        data = path.read_bytes()
        found = {one.name: one for one in _members(data)}
        first, end = found[MANIFEST], found[END_MEMBER]
        self._manifest = decode_manifest(_content(data, first))
        self._end = decode_end(_content(data, end))
        self._records = data[first.end : end.offset] if keeps_records else None
        self._size = end.offset - first.end

    def write(self, path: Path, number: int, hosts: int = 1) -> None:
        """Writes a tape.

        Args:
            path: of a new file.
            number: tells the tape from the others: its recording, its host and its time.
            hosts: how many hosts there are.
        """
        tape, late = number.to_bytes(16, "big"), number // hosts * _HOUR_NS
        producer = self._manifest.producer.model_dump() | {"host": f"server-{number % hosts}"}
        manifest = self._manifest.model_copy(
            update={
                "tape": tape,
                "created_ns": self._manifest.created_ns + late,
                "producer": Producer(**producer),
            }
        )
        end = self._end.model_copy(
            update={
                "closed_ns": self._end.closed_ns + late, "tape": tape,
                "manifest": manifest_document(manifest),
                "first_ns": (self._end.first_ns or 0) + late,
                "last_ns": (self._end.last_ns or 0) + late,
            }
        )  # fmt: skip
        with path.open("wb") as file:
            file.write(manifest_member(manifest))
            if self._records is None:
                file.seek(self._size, os.SEEK_CUR)
            else:
                file.write(self._records)
            content = encode_end(end, file.tell())
            file.write(b"".join(member(END_MEMBER, [content], len(content))) + ZEROS_AT_END)


def _members(data: bytes) -> Iterator[Member]:
    def read(offset: int, size: int) -> bytes:
        return data[offset : offset + size]

    return members(read, len(data), [].append)


def _content(data: bytes, member: Member) -> bytes:
    return data[member.start : member.start + member.size]
