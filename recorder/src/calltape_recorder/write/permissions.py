"""Who may read the files of a recorder, and whose files the recorder trusts.

A tape has what users sent, so only its owner may read it unless an option says otherwise. The umask
does not count: it is a setting of the machine, not a decision about this file.
"""

from __future__ import annotations

import contextlib
import os
import stat

__all__ = ["OWNER_ONLY", "foreign_hand", "make_folders", "set_mode"]

OWNER_ONLY = 0o600
"""The mode of a file. Whoever may read the files of a new directory may search it too."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def set_mode(descriptor: int, mode: int) -> None:
    """Gives an open file these permissions, whatever the umask is."""
    # Some file systems have no permissions (vfat), and some systems have no fchmod.
    with contextlib.suppress(OSError, AttributeError):
        os.fchmod(descriptor, mode)


def make_folders(path: str, mode: int = OWNER_ONLY) -> None:
    """Makes the missing directories of a path, for files of this mode. Others keep their mode.

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
        except FileExistsError:  # another process made it, or it is a file
            if not os.path.isdir(folder):
                raise
            continue
        with contextlib.suppress(OSError):
            os.chmod(folder, search)


def foreign_hand(path: str, found: os.stat_result) -> str | None:
    """Why somebody other than this user or root may have written a file; None if nobody may.

    Args:
        path: the path of the file.
        found: the status of the file, as it was opened.
    """
    if not hasattr(os, "geteuid"):
        return None
    real = os.path.realpath(path)
    reason = _written_by_others(found, "it")
    # Whoever may write to a directory above the file may put another file or directory in its
    # place, unless only owners may remove their entries (/tmp). If the path is a link, the same
    # holds for the directories that it leads to.
    here, there = os.path.dirname(os.path.abspath(path)), os.path.dirname(real)
    for folder in dict.fromkeys((*_up(here), *_up(there))):
        if reason is None:
            inside = os.stat(folder)
            if not inside.st_mode & stat.S_ISVTX or not _is_ours(inside):
                is_its = folder in (here, there)
                reason = _written_by_others(inside, "its directory" if is_its else folder)
    return reason


def _up(folder: str) -> list[str]:
    """A directory, and all directories above it."""
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
