"""Opening tapes: files, directories, patterns."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence

from calltape_analyzer.pytree.classes import Classes
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.files import Paths, files_of
from calltape_analyzer.reading.opened_segments import opened_segments
from calltape_analyzer.reading.repeated_calls import without_repeats
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.tape_file import is_ahead
from calltape_analyzer.reading.urls import is_url
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError

__all__ = ["open_tape"]


def open_tape(
    path: Paths, *, classes: Classes = (), verify: bool = False, scan: bool = False
) -> Tape:
    """Opens a tape for reading: finished, still being written, cut off or damaged.

    Args:
        path: a file, a directory (its ``*.tape``, ``*.tape.gz`` and ``*.tape.zst``), a pattern
            such as ``"runs/*.tape"``, or several of these; together they are one sequence of
            calls. A compressed tape is decompressed once, to a temporary file without a name.
            URLs of each of these too (``s3://``, ``gs://``, ``https://``, ``memory://``, ...), with
            the extra ``remote``: only the parts that are needed are read.
        classes: classes that arguments and outputs may be rebuilt from, besides those registered
            with torch's pytree and transformers' caches and outputs (where this process has
            imported it). A mapping gives the names that they have on the tape
            (``{"__main__:Batch": Batch}``).
        verify: compares all tensors with their checksums now, and leaves out the calls that are
            damaged; otherwise a call is checked when its values are first read.
        scan: finds every call now, and compares what a sealed file says of all its calls with their
            records; a difference is damage. Otherwise a sealed file is scanned when somebody asks
            for a single call, and questions about all calls are answered from its end
            (:attr:`Tape.source`).

    Raises:
        TapeError: ``not_found``, ``not_a_tape``, ``version``, ``io``, ``damaged`` or ``invalid``
            if nothing can be read; ``usage`` for tapes of different models. Of several files
            one that cannot be read is damage, like a damaged call. So is a copy of another one, and
            a call that another file has too: it counts once. ``limit`` for a compressed tape that
            is larger than it should be, ``usage`` for Zstandard without the extra ``zstd``, or a
            URL without the extra ``remote``.
    """
    damage = Damage()
    segments = _opened(files_of(path), damage, scan=scan)
    try:
        tape = Tape(_in_order(segments, damage), damage, classes)
    except BaseException:
        _close(segments)
        raise
    if verify:
        tape.verify()
        tape._leave_out_damaged()
    return tape


def _in_order(segments: list[Segment], damage: Damage) -> list[Segment]:
    """The files of one recording in its own order, at the place of the first of them: their names
    sort ``llm-00001.tape`` before ``llm.tape``. Each call of it is in one of them."""
    recordings: dict[Hashable, list[Segment]] = {}
    for segment in segments:
        target = segment.manifest.target
        model = None if target is None else (target.type, target.method)  # of two: Tape refuses
        recordings.setdefault((segment.manifest.tape, model), []).append(segment)
    return [
        segment
        for parts in recordings.values()
        for segment in without_repeats(sorted(parts, key=_rank), damage)
    ]


def _rank(segment: Segment) -> tuple[bool, int]:
    """Calls that were under way come last."""
    return segment.is_ahead, segment.part


def _opened(names: Sequence[str], damage: Damage, *, scan: bool) -> list[Segment]:
    """The files that can be read; of several, one that cannot be is damage.

    Raises:
        TapeError: there is none, or the process may open no more files.
    """
    segments: list[Segment] = []
    errors: list[TapeError] = []
    try:
        for found in opened_segments(names, damage, scan=scan):
            if isinstance(found, Segment):
                segments.append(found)
            else:
                errors.append(found)
        if not segments:
            raise errors[0]
    except BaseException:
        _close(segments)
        raise
    for unreadable in errors:
        if not _holds_no_call(unreadable.path):
            damage.add(unreadable)
    return segments


def _close(segments: Iterable[Segment]) -> None:
    for segment in segments:
        segment.close()


def _holds_no_call(path: str | None) -> bool:
    """Whether this is a file of write-ahead that a recorder is just making, or has removed since
    its name was read."""
    if path is None or is_url(path) or not is_ahead(path):
        return False
    try:
        return os.stat(path).st_size == 0
    except OSError:
        return True
