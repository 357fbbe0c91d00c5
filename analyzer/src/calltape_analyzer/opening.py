"""Opening tapes: files, directories, patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from calltape_analyzer.classes import Classes
from calltape_analyzer.damage import Damage
from calltape_analyzer.segment import Segment
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError

__all__ = ["open_tape"]

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def open_tape(path: Paths, *, classes: Classes = (), verify: bool = False) -> Tape:
    """Opens a tape for reading: finished, still being written, cut off or damaged.

    Args:
        path: a file, a directory (its ``*.tape``), a pattern such as ``"runs/*.tape"``, or several
            of these; together they are one sequence of calls.
        classes: classes that arguments and outputs may be rebuilt from, besides those registered
            with torch's pytree and transformers' caches and outputs (where this process has
            imported it). A mapping gives the names that they have on the tape
            (``{"__main__:Batch": Batch}``).
        verify: compares all tensors with their checksums now, and leaves out the calls that are
            damaged; otherwise a call is checked when its values are first read.

    Raises:
        TapeError: ``not_found``, ``not_a_tape``, ``version``, ``io``, ``damaged`` or ``invalid``
            where nothing can be read; ``usage`` for tapes of different models. Of several files
            one that cannot be read is damage, like a damaged call.
    """
    paths = _found(path)
    damage = Damage()
    segments: list[Segment] = []
    errors: list[TapeError] = []
    try:
        for name in paths:
            try:
                segments.append(Segment(name, damage))
            except TapeError as error:
                errors.append(error)
        if not segments:
            raise errors[0]
        tape = Tape(_in_order(segments), damage, classes)
    except BaseException:
        for segment in segments:
            segment.close()
        raise
    for unreadable in errors:
        damage.add(unreadable)
    if verify:
        tape.verify()
        tape.leave_out_damaged()
    return tape


def _in_order(segments: list[Segment]) -> list[Segment]:
    """The files of one recording in its own order, at the place of the first of them: their names
    sort ``llm-00001.tape`` before ``llm.tape``."""
    recordings: dict[bytes, list[Segment]] = {}
    for segment in segments:
        recordings.setdefault(segment.manifest.tape, []).append(segment)
    for parts in recordings.values():
        parts.sort(key=_rank)
        _without_repeats(parts)
    return [segment for parts in recordings.values() for segment in parts]


def _rank(segment: Segment) -> tuple[bool, int]:
    """Calls that were under way come last."""
    return segment.is_ahead, segment.part


def _without_repeats(segments: list[Segment]) -> None:
    """Of a call that was written ahead and then, complete, to the tape, the latter counts."""
    ahead = [segment for segment in segments if segment.is_ahead]
    for other in segments if ahead else ():
        if not other.is_ahead:
            complete = set(other.numbers)
            for segment in ahead:
                segment.leave_out(complete)


def _found(path: Paths) -> list[str]:
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not given:
        raise TapeError("not_found", "no path was given")
    found: dict[str, str] = {}
    for one in given:
        for name in _files(os.fspath(one)):
            found.setdefault(os.path.realpath(name), name)
    return list(found.values())


def _files(path: str) -> list[str]:
    if "\0" in path:
        raise TapeError("not_found", "no such file", path=path.replace("\0", "\\0"))
    if os.path.isdir(path):
        names = sorted(str(file) for file in Path(path).glob("*.tape"))
        if not names:
            raise TapeError("not_found", "no *.tape in this directory", path=path)
        return names
    if not os.path.lexists(path) and glob.has_magic(path):
        names = sorted(glob.glob(path, recursive=True))
        if not names:
            raise TapeError("not_found", "no file matches", path=path)
        return names
    return [path]
