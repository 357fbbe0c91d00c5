"""The tape files below a directory, and which of them may be shipped.

In comes a directory. Out go its tape files, each with what tells two states of it apart, and
whether its recorder is done with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from calltape_analyzer.reading.compressed import SUFFIXES
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.segment import Segment
from calltape_schema.errors import TapeError

__all__ = ["IDLE_SECONDS", "LocalTape", "is_left", "ready_state", "tapes_below"]

IDLE_SECONDS = 60.0
"""A file that was written to within this time is not left by its recorder."""

_PROCESSES = Path("/proc")


class LocalTape(NamedTuple):
    """A file as it was when the directory was read.

    Attributes:
        path: of the file.
        name: its path below the directory, with ``/``.
        size: in bytes.
        changed_ns: when it was written to last.
        device, node: which file it is.
    """

    path: str
    name: str
    size: int
    changed_ns: int
    device: int
    node: int

    def is_same(self, status: os.stat_result) -> bool:
        """Whether this is still the file, as it was."""
        found = status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino
        return found == (self.size, self.changed_ns, self.device, self.node)


def tapes_below(directory: str, unread: Callable[[str, str], None]) -> Iterator[LocalTape]:
    """The tape files below a directory, in the order of their names: regular files whose names say
    that they are tapes. Links are not followed, and hidden files left out.

    Args:
        directory: is walked with all directories below it.
        unread: is called with the path and the reason of a directory that cannot be read.
    """
    waiting = [(directory, "")]
    while waiting:
        folder, before = waiting.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:
            if folder == directory:
                raise TapeError("not_found", "no such directory", path=directory) from None
            continue  # it was removed meanwhile
        except OSError as error:
            unread(folder, f"cannot read the directory: {error.strerror}")
            continue
        waiting += [
            (entry.path, f"{before}{entry.name}/")
            for entry in reversed(entries)
            if entry.is_dir(follow_symlinks=False)
        ]
        for entry in entries:
            if entry.name.endswith(SUFFIXES) and not entry.name.startswith("."):
                made = _tape_of(entry, f"{before}{entry.name}")
                if made is not None:
                    yield made


def _tape_of(entry: os.DirEntry[str], name: str) -> LocalTape | None:
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None  # it was removed meanwhile
    return LocalTape(
        entry.path, name, status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino
    )


def ready_state(tape: LocalTape) -> Literal["sealed", "unsealed"]:
    """Whether a recorder has sealed a file. Nothing writes to a sealed file any more.

    Raises:
        TapeError: it is no tape, or cannot be read.
    """
    if not tape.size:
        return "unsealed"  # it was just made
    segment = Segment(tape.path, Damage())
    try:
        return "unsealed" if segment.trailer is None else "sealed"
    finally:
        segment.close()


def is_left(tape: LocalTape) -> bool:
    """Whether nobody writes to an unsealed file, as far as can be seen: nothing was written for a
    minute, and no process that this one may look at has it open."""
    if time.time() - tape.changed_ns / 1e9 < IDLE_SECONDS:
        return False
    return not any(_has_open(process, tape) for process in _PROCESSES.glob("[0-9]*"))


def _has_open(process: Path, tape: LocalTape) -> bool:
    try:
        numbers = list((process / "fd").iterdir())
    except OSError:
        return False  # it ended, or is another user's
    for number in numbers:
        try:
            status = number.stat()
        except OSError:
            continue
        if (status.st_dev, status.st_ino) == (tape.device, tape.node):
            return True
    return False
