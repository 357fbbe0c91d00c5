"""Who may read what is written, and whose files are believed.

A tape has what users sent, so it is the owner's alone unless asked otherwise: an umask is a habit
of the machine, not a decision about this file.
"""

from __future__ import annotations

import contextlib
import os
import stat

__all__ = ["OWNER_ONLY", "foreign_hand", "make_folders", "set_mode"]

OWNER_ONLY = 0o600
"""Of a file; a directory is made with the right to search it wherever there is one to read."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def set_mode(descriptor: int, mode: int) -> None:
    """Gives an open file these permissions, whatever the umask is."""
    # Not every file system has any (vfat), and not every system this call.
    with contextlib.suppress(OSError, AttributeError):
        os.fchmod(descriptor, mode)


def make_folders(path: str, mode: int = OWNER_ONLY) -> None:
    """Makes what is missing of a directory, for files of this mode; what is there keeps its own.

    Raises:
        OSError: as :func:`os.makedirs`.
    """
    missing: list[str] = []
    folder = path or "."
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        above = os.path.dirname(folder.rstrip(os.sep))
        if above == folder:
            break
        folder = above
    search = mode | 0o700 | (mode & 0o444) >> 2
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:  # another process was quicker, or it is a file
            if not os.path.isdir(folder):
                raise
            continue
        with contextlib.suppress(OSError):
            os.chmod(folder, search)


def foreign_hand(path: str, found: os.stat_result) -> str | None:
    """Why a file may say what neither this user nor root wrote; None if it may not.

    Args:
        path: of the file.
        found: of the file itself, as it was opened.
    """
    if not hasattr(os, "geteuid"):
        return None
    real = os.path.realpath(path)
    reason = _written_by_others(found, "it")
    # Whoever may write to a directory above it may put another file, or directory, in its place,
    # unless only owners may take theirs away (/tmp). The same holds where a link leads.
    here, there = os.path.dirname(os.path.abspath(path)), os.path.dirname(real)
    for folder in dict.fromkeys((*_up(here), *_up(there))):
        if reason is None:
            inside = os.stat(folder)
            if not inside.st_mode & stat.S_ISVTX or not _is_ours(inside):
                is_its = folder in (here, there)
                reason = _written_by_others(inside, "its directory" if is_its else folder)
    return reason


def _up(folder: str) -> list[str]:
    """A directory, and all above it."""
    found = [folder]
    while (above := os.path.dirname(found[-1])) != found[-1]:
        found.append(above)
    return found


def _written_by_others(found: os.stat_result, what: str) -> str | None:
    if not _is_ours(found):
        return f"{what} belongs to user {found.st_uid}, not to this one or root"
    if found.st_mode & _OTHERS_WRITE:
        return f"others may write {what} ({stat.filemode(found.st_mode)}): chmod go-w"
    return None


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid in (os.geteuid(), 0)
