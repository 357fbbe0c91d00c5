"""The tasks of a survey: functions of paths that any executor runs in any process.

In come paths. Out go plain data that another process takes. No task raises for what a file holds:
a file that cannot be read costs its own answer only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeAlias, TypeVar

from calltape_analyzer.reading.compressed import SUFFIXES, compressed_since
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.file_piece import PlannedPiece, planned
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.tape_file import is_ahead
from calltape_analyzer.reading.urls import without_secrets
from calltape_analyzer.surveying.file_survey import FileSurvey, Listed, listed, survey_of
from calltape_analyzer.surveying.piecewise import PieceSurvey, survey_of_piece
from calltape_schema.errors import Kind, TapeError

__all__ = [
    "PIECE_BYTES",
    "Failed",
    "NoCall",
    "Reading",
    "ToScan",
    "read_file",
    "read_files",
    "read_piece",
]

PIECE_BYTES = 4 * 1024 * 1024
"""A file of more bytes that has to be scanned is scanned in pieces. A million calls without values
take 70 to 100 MB: of few pieces, the last one would run alone."""

_MOST_PIECES = 1024

T = TypeVar("T")

Guard: TypeAlias = Callable[[Sequence[str]], AbstractContextManager[None]]
"""Bounds the time and memory that reading some files takes, within a block."""


class Reading(NamedTuple):
    """How files are read.

    Attributes:
        scan: whether every record is read, and compared with what sealed files say at their end.
        piece_bytes: what is scanned by one task, at most; None to scan each file as a whole.
        guard: bounds what one file may cost; by default only the limits of the format do.
    """

    scan: bool = False
    piece_bytes: int | None = PIECE_BYTES
    guard: Guard | None = None


class Failed(NamedTuple):
    """A file that could not be read, and why."""

    error: Listed


class NoCall(NamedTuple):
    """A file of write-ahead without a call: nothing is wrong with it."""

    path: str


class ToScan(NamedTuple):
    """A large file that has to be scanned, in these pieces."""

    path: str
    pieces: tuple[PlannedPiece, ...]


Read: TypeAlias = FileSurvey | ToScan | NoCall | Failed


def read_files(paths: Sequence[str], how: Reading) -> list[Read]:
    """Reads files, one after another."""
    return [read_file(path, how) for path in paths]


def read_file(path: str, how: Reading) -> Read:
    """Reads a file: its end, or all of its records."""
    found = _guarded(path, how, lambda: _read(path, how))
    if isinstance(found, Failed) and found.error.kind == "not_found":
        compressed = compressed_since(path)
        if compressed is not None:
            return read_file(compressed, how)
    if isinstance(found, Failed) and is_ahead(path) and _is_empty(path):
        return NoCall(path)
    return found


def read_piece(path: str, piece: PlannedPiece, how: Reading) -> PieceSurvey | Failed:
    """Scans a piece of a file."""
    return _guarded(path, how, lambda: survey_of_piece(path, piece))


def _read(path: str, how: Reading) -> FileSurvey | ToScan:
    segment = Segment(path, Damage(), scan=None)
    try:
        most = how.piece_bytes
        is_large = most is not None and segment.size > most and not path.endswith(SUFFIXES[1:])
        if is_large and not how.scan and segment.summary is None and not is_ahead(path):
            assert most is not None
            most = max(most, segment.size // _MOST_PIECES)
            return ToScan(path, tuple(planned(segment.size, most, os.cpu_count() or 1)))
        return survey_of(segment, scan=how.scan)
    finally:
        segment.close()


def _guarded(path: str, how: Reading, action: Callable[[], T]) -> T | Failed:
    try:
        with nullcontext() if how.guard is None else how.guard([path]):
            return action()
    except TapeError as error:
        return Failed(listed(error, path))
    except MemoryError:
        return _failed("limit", "there was not enough memory to read it", path)
    except Exception as error:
        text = without_secrets(str(error), path)
        return _failed("damaged", f"unexpected {type(error).__name__}: {text}", path)


def _failed(kind: Kind, reason: str, path: str) -> Failed:
    return Failed(listed(TapeError(kind, reason), path))


def _is_empty(path: str) -> bool:
    try:
        return os.stat(path).st_size == 0
    except OSError:
        return False
