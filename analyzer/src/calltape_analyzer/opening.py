"""Opening tapes: files, directories, patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

from calltape_analyzer.classes import Classes
from calltape_analyzer.copies import without_repeats
from calltape_analyzer.damage import Damage
from calltape_analyzer.descriptors import DescriptorError
from calltape_analyzer.segment import Segment
from calltape_analyzer.tape import Tape
from calltape_analyzer.tape_file import is_ahead
from calltape_schema.errors import TapeError

__all__ = ["files_of", "open_tape"]

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
            one that cannot be read is damage, like a damaged call. So is a copy of another one, and
            a call that another file has too: it counts once.
    """
    damage = Damage()
    segments = _opened(files_of(path), damage)
    try:
        tape = Tape(_in_order(segments, damage), damage, classes)
    except BaseException:
        _close(segments)
        raise
    if verify:
        tape.verify()
        tape.leave_out_damaged()
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


def _opened(names: Sequence[str], damage: Damage) -> list[Segment]:
    """The files that can be read; of several, one that cannot be is damage.

    Raises:
        TapeError: where there is none, or the process may open no more files.
    """
    segments: list[Segment] = []
    errors: list[TapeError] = []
    try:
        for name in names:
            try:
                segments.append(Segment(name, damage))
            except DescriptorError:
                raise
            except TapeError as error:
                errors.append(error)
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
    if path is None or not is_ahead(path):
        return False
    try:
        return os.stat(path).st_size == 0
    except OSError:
        return True


def files_of(path: Paths) -> list[str]:
    """The files that a path, a pattern or several of them stand for.

    Raises:
        TapeError: ``not_found`` or ``io``.
    """
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not given:
        raise TapeError("not_found", "no path was given")
    found: dict[Hashable, str] = {}
    for one in given:
        for name in _files(os.fspath(one)):
            found.setdefault(_identity(name), name)
    return list(found.values())


def _identity(path: str) -> Hashable:
    """Equal for two ways to one file: names, links, patterns that match it twice."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return path  # whoever opens it is told
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)


def _files(path: str) -> list[str]:
    if "\0" in path:
        raise TapeError("not_found", "no such file", path=path.replace("\0", "\\0"))
    if os.path.isdir(path):
        try:
            found = os.listdir(path)
        except OSError as error:
            raise TapeError("io", f"cannot read it: {error.strerror}", path=path) from None
        names = sorted(str(Path(path) / name) for name in found if name.endswith(".tape"))
        if not names:
            raise TapeError("not_found", "no *.tape in this directory", path=path)
        return names
    if not os.path.lexists(path) and glob.has_magic(path):
        names = sorted(glob.glob(path, recursive=True))
        if not names:
            raise TapeError("not_found", "no file matches", path=path)
        return names
    return [path]
