"""Ranges of a file on a web server.

fsspec's own file reads whatever a server sends, decompressed. A web server may be anybody's, so
this reads an answer only as far as it was asked for, and refuses any other one. In come a URL and
offsets; out go exactly these bytes.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from calltape_analyzer.limits import received_bytes
from calltape_analyzer.reading.damage import RemoteError
from calltape_analyzer.reading.remote_access import (
    RemoteFacts,
    UnavailableError,
    answer_of,
    file_system,
    other_facts,
    seconds_allowed,
)
from calltape_analyzer.reading.urls import shown
from calltape_schema.errors import TapeError

__all__ = ["HttpRanges", "page_of"]

_FIRST = 64 * 1024
_PIECE = 64 * 1024
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_EMPTY = re.compile(r"bytes \*/0")
_VALIDATORS = ("ETag", "Last-Modified")
_GONE = (404, 410)
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 10
_MOST_PARTS = 16
_BUSY = (429, 500, 502, 503, 504)
_OF_THE_WAY = frozenset({"proxy", "proxy_auth", "proxy_headers", "ssl"})
"""Options of a request that say how a host is reached."""
# By the id, because file systems with the same options are equal: one would close the session of
# another.
_strangers: dict[int, Any] = {}
_CHECK = "check the URL"
_DOWNLOAD = "download the file, and open it from a disk"


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    data: bytes


class HttpRanges:
    """A file on a web server, by its first answer: no HEAD, which signed URLs refuse.

    Args:
        url: of the file.

    Attributes:
        facts: size and version.
        first: the first bytes.

    Raises:
        TapeError: ``not_found``, ``io``.
    """

    sizes_are_true = False
    """A server may claim any size."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.facts, self.first = self._look(_FIRST)

    def look(self) -> RemoteFacts:
        """The facts as they are now."""
        return self._look(1)[0]

    def fetch(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``.

        Raises:
            TapeError: ``damaged`` if the file is not what it was; ``io``.
        """
        found = b""
        for _ in range(_MOST_PARTS):  # a server may send less than it was asked for
            at = start + len(found)
            answer = self._asked(at, end)
            if answer.status in (*_GONE, 412, 416):
                raise other_facts(self._url)
            if self._facts_of(answer, at) != self.facts:
                raise other_facts(self._url)
            found += answer.data
            if len(found) == end - start:
                return found
            if not answer.data:
                break
        raise self._refused(f"it sent {len(found):,} of {end - start:,} bytes")

    def _look(self, size: int) -> tuple[RemoteFacts, bytes]:
        answer = self._asked(0, size)
        if answer.status in _GONE:
            raise TapeError("not_found", "no such file", path=shown(self._url), advice=_CHECK)
        if answer.status == 416 and _EMPTY.match(answer.headers.get("Content-Range", "")):
            return RemoteFacts(0, ()), b""
        facts = self._facts_of(answer, 0)
        if len(answer.data) != min(size, facts.size):
            raise self._refused(f"it sent {len(answer.data):,} bytes of {size:,}")
        return facts, answer.data

    def _facts_of(self, answer: _Answer, start: int) -> RemoteFacts:
        found = _RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
        if answer.status != 206 or found is None:
            raise self._refused(_words_of(answer.status))
        if int(found[1]) != start:
            raise self._refused("it sent another range than was asked for")
        version = tuple((name, answer.headers.get(name, "")) for name in _VALIDATORS)
        return RemoteFacts(int(found[3]), version)

    def _asked(self, start: int, end: int) -> _Answer:
        answer = _get(self._url, end - start, {"Range": f"bytes={start}-{end - 1}"})
        received_bytes(len(answer.data))
        if answer.headers.get("Content-Encoding", "identity") not in ("identity", ""):
            raise self._refused("it sends the file compressed")
        if len(answer.data) > end - start and answer.status == 206:
            raise self._refused("it sends more than was asked for")
        return answer

    def _refused(self, what: str) -> TapeError:
        return RemoteError(
            "io", f"the server is of no use for this: {what}", path=shown(self._url),
            advice=_DOWNLOAD,
        )  # fmt: skip


def page_of(url: str, limit: int) -> str:
    """A page of a web server, as text.

    Args:
        url: of the page.
        limit: how many bytes it may have.

    Raises:
        TapeError: ``not_found``, ``io``; ``limit`` if it is longer.
    """
    answer = _get(url, limit, {})
    if answer.status in _GONE:
        raise TapeError("not_found", "no such directory", path=shown(url), advice=_CHECK)
    if answer.status != 200:
        raise RemoteError("io", _words_of(answer.status), path=shown(url))
    if len(answer.data) > limit:
        raise TapeError(
            "limit", f"the list of its files has more than {limit:,} bytes", path=shown(url),
            advice="name the files",
        )  # fmt: skip
    return answer.data.decode("utf-8", "replace")


def _words_of(status: int) -> str:
    if status == 200:
        return "it ignores ranges, and sends the whole file each time"
    if status in (401, 403):
        return f"it refuses access (status {status})"
    return f"it answers with status {status}"


def _get(url: str, limit: int, headers: Mapping[str, str]) -> _Answer:
    """One answer, of which at most one byte more than ``limit`` is read."""
    system, _ = file_system(url)

    def ask() -> _Answer:
        from fsspec.asyn import sync

        answered: Any = sync(system.loop, _answered, system, url, limit, headers)
        found = cast("_Answer", answered)
        if found.status in _BUSY:
            raise UnavailableError("io", f"the server is of no use now: {_words_of(found.status)}")
        return found

    return answer_of(url, ask)


async def _answered(system: Any, url: str, limit: int, headers: Mapping[str, str]) -> _Answer:
    import aiohttp
    import yarl

    headers = {**headers, "Accept-Encoding": "identity"}
    # A signature holds for the spelling that was signed.
    address = home = yarl.URL(url, encoded="%" in url)
    for _ in range(_MOST_REDIRECTS):
        if address.origin() == home.origin():
            session, options = await system.set_session(), dict(system.kwargs)
        else:
            session, options = _session_for_strangers(system), _for_strangers(system.kwargs)
        options["headers"] = {**options.get("headers", {}), **headers}
        options["timeout"] = aiohttp.ClientTimeout(total=seconds_allowed())
        options["allow_redirects"] = False
        async with session.get(address, **options) as answer:
            if answer.status not in _REDIRECTS or "Location" not in answer.headers:
                return await _read(answer, limit, "Range" in headers)
            given = answer.headers["Location"]
        address = address.join(yarl.URL(given, encoded="%" in given))
        if address.scheme not in ("http", "https") or not address.host:
            raise RemoteError("io", "cannot be read: it redirects to what is no web server")
    raise RemoteError("io", f"cannot be read: it redirects more than {_MOST_REDIRECTS} times")


def _session_for_strangers(system: Any) -> Any:
    """A session without the headers and cookies of the other one, which is kept as long as it."""
    import aiohttp

    found = _strangers.get(id(system))
    if found is None:
        trusts = system.client_kwargs.get("trust_env", False)
        found = _strangers[id(system)] = aiohttp.ClientSession(trust_env=trusts)
        weakref.finalize(system, _strangers.pop, id(system), None)
        weakref.finalize(system, system.close_session, system.loop, found)
    return found


def _for_strangers(options: Mapping[str, Any]) -> dict[str, Any]:
    """What of the options of a request another host may have. Headers, cookies and credentials are
    for the host of the URL alone: aiohttp keeps a header such as X-Api-Key after a redirect."""
    return {name: value for name, value in options.items() if name in _OF_THE_WAY}


async def _read(answer: Any, limit: int, is_range: bool) -> _Answer:
    if answer.status not in (200, 206) or (answer.status == 200 and is_range):
        return _Answer(answer.status, answer.headers, b"")
    data = bytearray()
    async for piece in answer.content.iter_chunked(_PIECE):
        data += piece
        if len(data) > limit:
            break
    return _Answer(answer.status, answer.headers, bytes(data))
