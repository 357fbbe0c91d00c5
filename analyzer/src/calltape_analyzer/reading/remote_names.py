"""The tape files that a URL stands for: a file, what is below a directory, or a pattern.

In comes a URL; out go the URLs of files, in the order of their names. A server may list whatever it
likes: the list is bounded.
"""

from __future__ import annotations

import re
from typing import Any

from calltape_analyzer.reading.compressed import SUFFIXES
from calltape_analyzer.reading.remote_access import answer_of, file_system
from calltape_analyzer.reading.urls import protocol_of, shown
from calltape_schema.errors import TapeError

__all__ = ["urls_of"]

_MOST_NAMES = 100_000
_MAGIC = re.compile(r"[*?[]")
_COUNTS_NAMES = ("s3", "s3a")


def urls_of(url: str) -> list[str]:
    """The files that a URL stands for. A directory is everything below it.

    Raises:
        TapeError: ``not_found`` if there is no such file, ``io``, ``usage``; ``limit`` if there are
            more than 100,000.
    """
    system, place = file_system(url)
    system.invalidate_cache(place)
    info = _info(system, place, url)
    if info is not None and info.get("type") != "directory":
        return [url]
    if info is None and not _MAGIC.search(place):
        raise TapeError("not_found", "no such file", path=shown(url), advice="check the URL")
    if info is not None:
        every = _listed(system, place, "", url)
        names = [name for name in every if name.endswith(SUFFIXES)]
    else:
        names = _matching(system, place, url)
    if not names:
        raise _nothing(url, is_pattern=info is None)
    before_url, before_place = _beginnings(url, place)
    found = (name for name in sorted(names) if name.startswith(before_place))
    return [before_url + name[len(before_place) :] for name in found]


def _info(system: Any, place: str, url: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = answer_of(url, lambda: system.info(place))
    except TapeError as error:
        if error.kind == "not_found":
            return None
        raise
    return found


def _matching(system: Any, place: str, url: str) -> list[str]:
    """The files that a pattern matches."""
    from fsspec.utils import glob_translate

    magic = _MAGIC.search(place)
    assert magic is not None
    if protocol_of(url) not in _COUNTS_NAMES:
        found = answer_of(url, lambda: system.glob(place, detail=True))
        return _bounded(found, url)
    root, _, stem = place[: magic.start()].rpartition("/")
    matches = re.compile(glob_translate(place)).match
    return [name for name in _listed(system, root, stem, url) if matches(name)]


def _listed(system: Any, root: str, stem: str, url: str) -> list[str]:
    """The files below a directory whose names begin with the stem."""
    options: dict[str, Any] = {}
    if protocol_of(url) in _COUNTS_NAMES:  # the only ones that stop when they are told
        options = {"max_items": _MOST_NAMES + 1, "prefix": stem}
    found = answer_of(url, lambda: system.find(root, detail=True, **options))
    return _bounded(found, url)


def _bounded(found: dict[str, dict[str, Any]], url: str) -> list[str]:
    if len(found) > _MOST_NAMES:
        raise _too_many(url)
    return [name for name, info in found.items() if info.get("type") != "directory"]


def _beginnings(url: str, place: str) -> tuple[str, str]:
    """What a URL and its place in the file system begin with, before what is equal in both: host
    and user are in the URL only, a bucket may be written in two ways."""
    place = place.rstrip("/")
    if not place:
        return url, ""
    url, equal = url.rstrip("/"), 0
    while equal < len(place) and url[-1 - equal] == place[-1 - equal]:
        equal += 1
    return url[: len(url) - equal], place[: len(place) - equal]


def _nothing(url: str, *, is_pattern: bool) -> TapeError:
    reason = "the directory contains no .tape file"
    return TapeError(
        "not_found", "no file matches this pattern" if is_pattern else reason, path=shown(url),
        advice="check the URL",
    )  # fmt: skip


def _too_many(url: str) -> TapeError:
    return TapeError(
        "limit", f"the server lists more than {_MOST_NAMES:,} files", path=shown(url),
        advice="name a smaller part, such as one day",
    )  # fmt: skip
