"""Sealed tapes of one model in any number, which cost seconds and not hours to make.

One tape is recorded. Every other one has the same bytes in a new recording: manifest, summary and
trailer are those of another id and another time. Its records still have the first id; whoever
answers from the ends never reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from calltape_schema.endings import decode_trailer, encode_trailer
from calltape_schema.framing import END, MANIFEST, SUMMARY, TRAILER, Member, member_header, members
from calltape_schema.locator import Locator, with_locator
from calltape_schema.records import Producer, decode_manifest, encode_manifest
from calltape_schema.summary import decode_summary, encode_summary

__all__ = ["Ends"]

_HOUR_NS = 3_600_000_000_000


class Ends:
    """A recorded tape, as a pattern for others.

    Args:
        path: of the tape, which is sealed and has a summary.
        keeps_records: whether the others have its records, too. Without them a file has a hole of
            their size, which takes no room on the disk.
    """

    def __init__(self, path: Path, *, keeps_records: bool) -> None:
        data = path.read_bytes()
        found = {one.name: one for one in _members(data)}
        first, summary, trailer = found[MANIFEST], found[SUMMARY], found[TRAILER]
        self._manifest = decode_manifest(_content(data, first))
        self._summary = decode_summary(_content(data, summary))
        self._trailer = decode_trailer(_content(data, trailer))
        self._records = data[first.end : summary.offset] if keeps_records else None
        self._size = summary.offset - first.end

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
        times = {"closed_ns": self._summary.closed_ns + late, "tape": tape}
        summary = self._summary.model_copy(
            update=times
            | {
                "first_ns": (self._summary.first_ns or 0) + late,
                "last_ns": (self._summary.last_ns or 0) + late,
            }
        )
        trailer = encode_trailer(self._trailer.model_copy(update=times))
        with path.open("wb") as file:
            file.write(_member(MANIFEST, encode_manifest(manifest)))
            if self._records is None:
                file.seek(self._size, os.SEEK_CUR)
            else:
                file.write(self._records)
            at = file.tell()
            file.write(_member(SUMMARY, encode_summary(summary)))
            place = Locator(trailer=file.tell(), summary=at)
            file.write(_member(TRAILER, with_locator(trailer, place)) + END)


def _members(data: bytes) -> Iterator[Member]:
    def read(offset: int, size: int) -> bytes:
        return data[offset : offset + size]

    return members(read, len(data), [].append)


def _content(data: bytes, member: Member) -> bytes:
    return data[member.start : member.start + member.size]


def _member(name: str, content: bytes) -> bytes:
    return member_header(name, len(content)) + content + bytes(-len(content) % 512)
