"""The tape files that a path stands for.

In come a file, a directory, a pattern, a URL of one of these, or several. Out go the paths and URLs
of files, each once.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.compressed import SUFFIXES
from calltape_analyzer.reading.urls import is_url, local_path
from calltape_schema.errors import TapeError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def files_of(path: Paths) -> list[str]:
    """The files that a path, a directory, a pattern, a URL or several of these stand for.

    Raises:
        TapeError: ``not_found`` if there is no such file, ``io`` if a directory cannot be read.
    """
    given = _each(path)
    for one in given:
        if not isinstance(one, str | os.PathLike):
            raise UsageError(
                f"a path is text, not {type(one).__name__}",
                advice="pass a file, a directory, a pattern such as 'runs/*.tape', or several",
            )
    if not given:
        raise TapeError("not_found", "no path was given")
    found: dict[Hashable, str] = {}
    for one in given:
        for name in _files(os.fspath(one)):
            found.setdefault(_identity(name), name)
    return list(found.values())


def _each(path: Any) -> list[Any]:
    if isinstance(path, str | bytes | os.PathLike) or not isinstance(path, Iterable):
        return [path]
    return list(path)


def _identity(path: str) -> Hashable:
    """Equal for two paths of one file: other spellings, links."""
    if is_url(path):
        return path
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return path  # opening it raises the error
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)


def _files(path: str) -> list[str]:
    if is_url(path):
        from calltape_analyzer.reading.remote_names import urls_of

        return urls_of(path)
    path = local_path(path)
    if "\0" in path:
        raise TapeError("not_found", "no such file", path=path.replace("\0", "\\0"))
    if os.path.isdir(path):
        try:
            found = os.listdir(path)
        except OSError as error:
            raise TapeError(
                "io", f"cannot read the directory: {error.strerror}", path=path
            ) from None
        names = sorted(str(Path(path) / name) for name in found if name.endswith(SUFFIXES))
        if not names:
            raise TapeError(
                "not_found",
                "there is no *.tape file in this directory, nor a compressed one",
                path=path,
            )
        return names
    if not os.path.lexists(path) and glob.has_magic(path):
        names = sorted(glob.glob(path, recursive=True))
        if not names:
            raise TapeError("not_found", "no file matches this pattern", path=path)
        return names
    return [path]
