"""The tape files that a path stands for, and how one is opened.

Takes a file, a directory, a pattern, a URL of one of these, or several; returns the paths and URLs
of files, each once. A directory stands for all tapes in it and in the directories below it.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.compressed import SUFFIXES, compressed_since
from calltape_analyzer.reading.remote import answer_of, file_system, opened_url
from calltape_analyzer.reading.tape_file import TapeBytes, TapeFile, local_file
from calltape_analyzer.reading.urls import displayed_url, is_url, local_path, protocol_of
from calltape_schema.errors import TapeError

__all__ = ["MOST_NAMES", "Paths", "files_of", "opened_file", "short_paths"]

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

MOST_ENTRIES = 1_000_000
MOST_NAMES = 100_000
_MAGIC = re.compile(r"[*?[]")
_COUNTS_NAMES = ("s3", "s3a")


def files_of(path: Paths, report: Callable[[TapeError], None] | None = None) -> list[str]:
    """The files that a path, a directory, a pattern, a URL or several of these stand for.

    Of a directory these are the tapes in it and below it, in the order of their names. Hidden files
    and directories are left out: programs write to those first. A link is followed, and each
    directory and file counts once, so that links in a circle end.

    Args:
        path: one or several.
        report: is called for each directory below the given one that cannot be read.

    Raises:
        TapeError: ``not_found`` if one of these is not there, ``io`` if a given directory cannot be
            read, ``limit`` if there are more than 1,000,000 entries in it and below it.
    """
    is_one = isinstance(path, str | bytes | os.PathLike) or not isinstance(path, Iterable)
    given_paths: list[Any] = [path] if is_one else list(path)  # type: ignore[arg-type]
    for given_path in given_paths:
        if not isinstance(given_path, str | os.PathLike):
            raise UsageError(
                f"a path is text, not {type(given_path).__name__}",
                advice="pass a file, a directory, a pattern such as 'runs/*.tape', or several",
            )
    if not given_paths:
        raise TapeError("not_found", "no path was given")
    path_by_identity: dict[Hashable, str] = {}
    for given_path in given_paths:
        name = os.fspath(given_path)
        for file in _urls_of(name) if is_url(name) else _local_files(local_path(name), report):
            path_by_identity.setdefault(_identity(file), file)
    return list(path_by_identity.values())


def _identity(path: str) -> Hashable:
    """Equal for two paths of one file: other spellings, links."""
    if is_url(path):
        return path
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return path  # opening it raises the error
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)


def _local_files(path: str, report: Callable[[TapeError], None] | None) -> list[str]:
    if "\0" in path:
        raise TapeError("not_found", "no such file", path=path.replace("\0", "\\0"))
    if os.path.isdir(path):
        names = _tapes_below([path], report)
        if not names:
            reason = "the directory and its subdirectories contain no .tape file"
            raise TapeError("not_found", reason, path=path)
        return names
    if os.path.lexists(path):
        return [path]
    if glob.has_magic(path):
        matching = glob.glob(path, recursive=True)
        folders = sorted({name for name in matching if os.path.isdir(name)})
        names = sorted({*matching} - {*folders}) + _tapes_below(folders, report)
        if not names:
            raise TapeError("not_found", "no file matches this pattern", path=path)
        return names
    # One that is not there is a mistake of whoever named it; only what a directory lists may be
    # gone when it is opened.
    compressed = compressed_since(path)
    if compressed is None:
        raise TapeError("not_found", "no such file", path=path)
    return [compressed]


def _tapes_below(roots: Sequence[str], report: Callable[[TapeError], None] | None) -> list[str]:
    """The tapes of directories and of all directories below them, sorted.

    Raises:
        TapeError: ``io`` if the only one that was named cannot be read, ``limit``.
    """
    tapes: list[str] = []
    visited = {_identity(root) for root in roots}
    waiting, entries = list(roots), 0
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as there:
                for entry in there:
                    entries += 1
                    if entries > MOST_ENTRIES:
                        reason = (
                            f"more than {MOST_ENTRIES:,} files and directories are in this "
                            "directory and below it"
                        )
                        advice = "name a directory below it, or the files"
                        raise TapeError("limit", reason, path=roots[0], advice=advice)
                    if entry.name.startswith("."):
                        continue
                    if not _is_folder(entry):
                        if entry.name.endswith(SUFFIXES):
                            tapes.append(str(Path(entry.path)))
                    elif (identity := _identity(entry.path)) not in visited:
                        visited.add(identity)
                        waiting.append(entry.path)
        except OSError as error:
            reason = f"cannot read the directory: {error.strerror}"
            unreadable = TapeError("io", reason, path=folder)
            if [folder] == list(roots):
                raise unreadable from None
            if report is not None:
                report(unreadable)
    return sorted(tapes)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere, or to itself
        return False


def _urls_of(url: str) -> list[str]:
    """The files that a URL stands for, in the order of their names. A server may list whatever it
    likes: the list is bounded.

    Raises:
        TapeError: ``not_found`` if there is no such file, ``io``, ``usage``; ``limit`` if there are
            more than 100,000.
    """
    system, place = file_system(url)
    system.invalidate_cache(place)
    info: dict[str, Any] | None = None
    try:
        info = answer_of(url, lambda: system.info(place))
    except TapeError as error:
        if error.kind != "not_found":
            raise
    if info is not None and info.get("type") != "directory":
        return [url]
    if info is not None:
        names = [name for name in _listed(system, place, "", url) if name.endswith(SUFFIXES)]
        reason = "the directory contains no .tape file"
    elif _MAGIC.search(place):
        names = _matching(system, place, url)
        reason = "no file matches this pattern"
    else:
        names, reason = [], "no such file"
    if not names:
        raise TapeError("not_found", reason, path=displayed_url(url), advice="check the URL")
    # What both begin with, before what is equal in both: host and user are in the URL only, a
    # bucket may be written in two ways.
    place = place.rstrip("/")
    before = url.rstrip("/") if place else url
    while place and before[-1:] == place[-1:]:
        before, place = before[:-1], place[:-1]
    urls = (name for name in sorted(names) if name.startswith(place))
    return [before + name[len(place) :] for name in urls]


def _matching(system: Any, place: str, url: str) -> list[str]:
    """The files that a pattern matches."""
    from fsspec.utils import glob_translate

    magic = _MAGIC.search(place)
    assert magic is not None
    if protocol_of(url) not in _COUNTS_NAMES:
        return _bounded(answer_of(url, lambda: system.glob(place, detail=True)), url)
    root, _, stem = place[: magic.start()].rpartition("/")
    matches = re.compile(glob_translate(place)).match
    return [name for name in _listed(system, root, stem, url) if matches(name)]


def _listed(system: Any, root: str, stem: str, url: str) -> list[str]:
    """The files below a directory whose names begin with the stem."""
    options: dict[str, Any] = {}
    if protocol_of(url) in _COUNTS_NAMES:  # the only ones that stop when they are told
        options = {"max_items": MOST_NAMES + 1, "prefix": stem}
    return _bounded(answer_of(url, lambda: system.find(root, detail=True, **options)), url)


def _bounded(listing: dict[str, dict[str, Any]], url: str) -> list[str]:
    if len(listing) > MOST_NAMES:
        reason = f"the server lists more than {MOST_NAMES:,} files"
        advice = "name a smaller part, such as one day"
        raise TapeError("limit", reason, path=displayed_url(url), advice=advice)
    return [name for name, info in listing.items() if info.get("type") != "directory"]


def short_paths(paths: Sequence[str]) -> dict[str, str]:
    """For each path the name of its file; if two have one name, their paths from the directory on
    that all have in common."""
    names = {path: os.path.basename(path) for path in paths}
    if len(set(names.values())) == len(names):
        return names
    try:
        common = os.path.commonpath(paths)
    except ValueError:  # absolute and relative paths
        return {path: path for path in paths}
    return {path: os.path.relpath(path, common) for path in paths}


def opened_file(path: str) -> TapeBytes:
    """The bytes of a tape, decompressed if somebody compressed it, also if that was just now.

    Raises:
        TapeError: ``not_found``, ``io`` or ``not_a_tape``; ``damaged``, ``limit`` or ``usage`` for
            a compressed file that cannot be read; ``usage`` for a URL without the extra ``remote``.
    """
    if is_url(path):
        return opened_url(path)
    path = local_path(path)
    try:
        return local_file(path)
    except TapeError as error:
        compressed = compressed_since(path) if error.kind == "not_found" else None
        if compressed is None:
            raise
        return TapeFile(compressed)
