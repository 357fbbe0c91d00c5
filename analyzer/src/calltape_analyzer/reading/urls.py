"""URLs of tapes, and what of them people may see.

In comes the text that somebody passed as a path. Out go whether it is a URL, and the part of it
that tells nobody a password: a signed URL has its token in the query.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from calltape_analyzer.errors import RemoteError, UsageError, to_install
from calltape_analyzer.limits import received_bytes
from calltape_schema.errors import TapeError

__all__ = [
    "RemoteFacts",
    "StoredRanges",
    "answer_of",
    "file_system",
    "is_url",
    "local_path",
    "name_of",
    "other_facts",
    "protocol_of",
    "shown",
    "without_secrets",
]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"<>\\]+")
_LIKE_A_QUERY = re.compile(r"\?(?=[A-Za-z_%][\w.%-]*=)", re.ASCII)
_LIKE_A_PASSWORD = re.compile(r"[^/@:\[\]]*:(?!\d{0,5}(?:/|$)).*@")
_CUT_PASSWORD = re.compile(r"[^/@:?#\[\]]*:(?!\d{1,5}[?#])[^/@]*[?#].*@")
_LOCAL = ("file", "local")
_WITH_QUERY = ("http", "https")
_HIDDEN = "…"


class _Parts(NamedTuple):
    protocol: str
    user: str
    place: str
    query: str


def is_url(path: str) -> bool:
    """Whether a path names something that is read through a file system of fsspec."""
    found = _URL.match(path)
    return found is not None and found[1].lower() not in _LOCAL


def local_path(path: str) -> str:
    """The path of a ``file://`` URL; any other path as it is."""
    found = _URL.match(path)
    return found[2] if found is not None and found[1].lower() in _LOCAL else path


def protocol_of(url: str) -> str:
    """What stands before ``://``, in lower case."""
    return url.partition("://")[0].lower()


def name_of(url: str) -> str:
    """A URL without user, query and fragment: it ends like the name of the file."""
    parts = _parts(url)
    return f"{parts.protocol}://{parts.place}"


def shown(url: str) -> str:
    """A URL as messages show it: without user, password, query and fragment. An ellipsis stands
    for a query. Any other text stays as it is."""
    if not _URL.match(url):
        return url
    parts = _parts_shown(url)
    return f"{parts.protocol}://{parts.place}" + (f"?{_HIDDEN}" if parts.query else "")


def without_secrets(text: str, url: str) -> str:
    """A text of others, such as the message of an error, with each URL in it as it may be shown.

    Args:
        text: any.
        url: whose user, password and query are not in the result, wherever they stood.
    """
    found = _IN_TEXT.sub(lambda match: shown(match[0]), text)
    parts = _parts_shown(url)
    for secret in (parts.query, parts.user, *parts.user.split(":")[1:], *_values(parts.query)):
        for spelling in {secret, unquote(secret)}:
            if len(spelling) > 3:
                found = found.replace(spelling, _HIDDEN)
    return found


def _values(query: str) -> list[str]:
    return [part.partition("=")[2] for part in query.split("&")]


def _parts_shown(url: str) -> _Parts:
    """The parts of a URL as people may see them. In an object store ``?`` is part of a name, but
    somebody may have put ``s3://`` before a signed address: what looks like a query is one here.
    A password may have a slash that should have been written ``%2F``: what stands where a port
    should be, and has an ``@`` somewhere behind it, is one."""
    parts = _parts(_with_whole_password(url))
    password = None if parts.user else _LIKE_A_PASSWORD.match(parts.place)
    if password is not None:
        parts = parts._replace(user=password[0][:-1], place=parts.place[password.end() :])
    if parts.protocol in _WITH_QUERY:
        return parts
    found = _LIKE_A_QUERY.search(parts.place)
    if found is None:
        return parts
    place, query = parts.place[: found.start()], parts.place[found.end() :]
    return parts._replace(place=place, query=query)


def _with_whole_password(url: str) -> str:
    """A URL whose password has none of the characters that begin a query or a fragment."""
    found = _URL.match(url)
    password = None if found is None else _CUT_PASSWORD.match(found[2])
    if found is None or password is None:
        return url
    begin = found.start(2)
    end = begin + password.end()
    return url[:begin] + re.sub("[?#]", "_", url[begin:end]) + url[end:]


def _parts(url: str) -> _Parts:
    found = _URL.match(url)
    if found is None:
        return _Parts("", "", url, "")
    protocol, rest = found[1].lower(), found[2]
    query = ""
    if protocol in _WITH_QUERY:  # elsewhere these characters are part of a name
        rest = rest.partition("#")[0]
        rest, _, query = rest.partition("?")
    host, slash, place = rest.partition("/")
    user, _, host = host.rpartition("@")
    return _Parts(protocol, user, host + slash + place, query)


T = TypeVar("T")

_SECONDS = 60.0
_VARIABLE = "CALLTAPE_REMOTE_SECONDS"
_MOST_SHOWN = 300
_ADVICE = "check the address, the network and the credentials"
_LATER = "try again in a minute"

_OF_WEB_SERVERS = ("http", "https")
_MOST_CONNECTED = 16
_MOST_FAILED, _SILENT_SECONDS = 2, 30.0
_PASSING = ("ClientConnectionError", "ClientPayloadError", "EndpointConnectionError")
"""Errors of the clients' libraries, which say nothing about the file that was asked for."""

_VERSIONS = (
    "ETag", "etag", "md5Hash", "generation", "VersionId", "LastModified", "last_modified", "mtime",
    "updated", "created", "time", "modify",
)  # fmt: skip
_COMPARES = ("s3", "s3a")
_TRUSTED_SECONDS = 2.0

_connected: dict[Any, Any] = {}  # file systems that connect when they are made: one for each host
_failing: dict[str, _Failing] = {}


class RemoteFacts(NamedTuple):
    """What tells two states of a remote file apart: size in bytes, and names and values of what
    else differs (an ETag, times, versions)."""

    size: int
    version: tuple[tuple[str, str], ...]


def other_facts(url: str) -> TapeError:
    """The error of a file of another size or version."""
    reason = "the file changed since it was opened: another file has taken its place"
    return TapeError("damaged", reason, path=shown(url), advice="open it again")


class _UnavailableError(RemoteError):
    """The server is there, and says that it cannot answer now."""


class _NoAnswerError(RemoteError):
    """No answer came."""


class _Failing:
    """A server that did not answer."""

    def __init__(self) -> None:
        self.times = 0
        self.until = 0.0
        self.reason = ""

    def add(self, error: TapeError, times: int) -> None:
        self.times += times
        self.until = time.monotonic() + _SILENT_SECONDS
        self.reason = error.reason


def _seconds_allowed() -> float:
    """How long one answer may take, in seconds: 60, or ``CALLTAPE_REMOTE_SECONDS``.

    Raises:
        UsageError: the variable holds no number above 0.
    """
    given = os.environ.get(_VARIABLE)
    try:
        found = _SECONDS if given is None else float(given)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise UsageError(
            f"{_VARIABLE} is not a number of seconds", advice="set it to 60, or unset it"
        )
    return found


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, with the options and credentials that fsspec finds for it, and the
    place of the URL in it.

    Raises:
        TapeError: ``usage`` if it is of a web server, a package is missing, the protocol is
            unknown, or the URL chains several; ``io`` if the file system cannot be made.
    """
    if protocol_of(url) in _OF_WEB_SERVERS:
        # It may be anybody's, and fsspec reads whatever it sends.
        raise UsageError(
            "calltape does not read tapes from web servers", path=shown(url),
            advice="download the file, for example with `curl -O URL`, and open it from disk",
        )  # fmt: skip
    if "::" in name_of(url):
        raise UsageError(
            "URLs that chain file systems are not read", path=shown(url),
            advice="name the file itself",
        )  # fmt: skip
    kind = _kind_of(url)
    try:
        if kind.async_impl:  # made at once, connects later, and fsspec keeps it for all threads
            return _made(url)
        key = os.getpid(), kind, repr(kind._get_kwargs_from_urls(url))
        known = _connected.get(key)
        if known is None:
            known = _connected[key] = answer_of(url, lambda: _made(url))[0]
            while len(_connected) > _MOST_CONNECTED:
                _connected.pop(next(iter(_connected)), None)
        return known, str(known._strip_protocol(url))
    except Exception as error:
        raise _told_of(error, url) from None


def _kind_of(url: str) -> Any:
    """The class of a URL's file system. It is imported here, and not in the thread that asks."""
    try:
        from fsspec import get_filesystem_class
    except ImportError:
        raise _not_installed(url, "fsspec is not installed") from None
    try:
        return get_filesystem_class(protocol_of(url))
    except ImportError as error:
        raise _not_installed(url, str(error)) from None
    except ValueError:
        reason = f"unknown protocol {protocol_of(url)}://"
        raise UsageError(
            reason,
            path=shown(url),
            advice="use s3://, gs://, az://, file:// or another protocol of fsspec",
        ) from None


def _made(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    found, place = url_to_fs(url)
    return found, str(place)


def _not_installed(url: str, what: str) -> UsageError:
    return UsageError(
        f"this Python cannot read {protocol_of(url)}:// ({what.rstrip('.')})",
        path=shown(url),
        advice=f"for s3://, {to_install('remote')}; for another protocol, also install the package "
        "that fsspec needs for it, such as gcsfs for gs://",
    )


def answer_of(url: str, ask: Callable[[], T]) -> T:
    """What a file system answers.

    Args:
        url: what is asked about; errors show it without its secrets.
        ask: asks, in another thread.

    Raises:
        TapeError: ``not_found``; ``io`` for any other failure, and if no answer comes in time. A
            server that failed twice in a row is not asked for half a minute: it may have a thousand
            files, and each would wait for it.
    """
    seconds = _seconds_allowed()
    place = _place_of(url)
    failing = _failing.get(place)
    if failing is not None and failing.times >= _MOST_FAILED and time.monotonic() < failing.until:
        raise RemoteError(
            "io", f"not asked, because {place} failed {failing.times} times: {failing.reason}",
            path=shown(url), advice=_LATER,
        )  # fmt: skip
    try:
        found = _answered(url, ask, seconds)
    except _NoAnswerError as error:
        _failing.setdefault(place, _Failing()).add(error, _MOST_FAILED)
        raise
    except _UnavailableError as error:
        _failing.setdefault(place, _Failing()).add(error, 1)
        raise
    except TapeError:
        _failing.pop(place, None)  # it answered, if only to refuse
        raise
    _failing.pop(place, None)
    return found


def _answered(url: str, ask: Callable[[], T], seconds: float) -> T:
    answers: list[T] = []
    errors: list[Exception] = []
    ended = threading.Event()

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="calltape-remote", daemon=True).start()
    if not ended.wait(seconds):
        raise _NoAnswerError(
            "io", f"the server did not answer within {seconds:g} s", path=shown(url),
            advice=f"try again, or allow more with {_VARIABLE}",
        )  # fmt: skip
    if errors:
        raise _told_of(errors[0], url) from None
    return answers[0]


def _told_of(error: Exception, url: str) -> TapeError:
    """An error of a file system as one of ours."""
    if isinstance(error, TapeError):
        return error.at(path=shown(url))
    cause = error
    while isinstance(cause.__cause__, Exception) and not isinstance(cause, FileNotFoundError):
        cause = cause.__cause__
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return TapeError("not_found", "no such file", path=shown(url), advice="check the URL")
    text = " ".join(without_secrets(str(cause), url).split()) or "no reason was given"
    if len(text) > _MOST_SHOWN:
        text = f"{text[:_MOST_SHOWN]}…"
    reason = f"cannot be read: {type(cause).__name__}: {text}"
    kind = _UnavailableError if _is_passing(error) else RemoteError
    return kind("io", reason, path=shown(url), advice=_ADVICE)


def _is_passing(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is about the way to the server or its load."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        busy = isinstance(error, OSError) and error.errno == errno.EBUSY
        if busy or isinstance(error, ConnectionError | TimeoutError) or names & set(_PASSING):
            return True
        error = error.__cause__
    return False


def _place_of(url: str) -> str:
    """The server or bucket of a URL, as it may be shown."""
    parts = urlsplit(name_of(url))
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"


class StoredRanges:
    """A file that an object store or another machine has.

    Args:
        url: of the file.

    Attributes:
        facts: size and version.

    Raises:
        TapeError: ``not_found``, ``io``; ``not_a_tape`` for a directory.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._system, self._place = file_system(url)
        self._compares = protocol_of(url) in _COMPARES
        self._file: Any = None
        self.facts = answer_of(url, self._opened)
        self._looked = time.monotonic()

    def look(self) -> RemoteFacts:
        """The facts as they are now."""

        def again() -> RemoteFacts:
            self._system.invalidate_cache(self._place)
            return _facts_of(self._system.info(self._place), self._url)

        found = answer_of(self._url, again)
        self._looked = time.monotonic()
        return found

    def fetch(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``.

        Raises:
            TapeError: ``damaged`` if the file is not what it was; ``io``.
        """
        if not self._compares and time.monotonic() - self._looked > _TRUSTED_SECONDS:
            self._expect(self.look())
        try:
            data = answer_of(self._url, lambda: self._bytes(start, end))
        except TapeError as error:
            if error.kind == "not_found":
                raise other_facts(self._url) from None
            raise
        received_bytes(len(data))
        if len(data) != end - start:
            self._expect(self.look())
            reason = f"the server sent {len(data):,} bytes, and was asked for {end - start:,}"
            raise RemoteError("io", reason, path=shown(self._url))
        return data

    def _expect(self, found: RemoteFacts) -> None:
        if found != self.facts:
            raise other_facts(self._url)

    def _opened(self) -> RemoteFacts:
        """Opens the file: a request for its facts, or none if a listing has told them."""
        from fsspec.spec import AbstractBufferedFile

        file = self._system.open(self._place, "rb", cache_type="none")
        if isinstance(file, AbstractBufferedFile):
            self._file, facts = file, _facts_of(file.details, self._url)
        else:  # it may be shared, as those in memory are
            file.close()
            facts = _facts_of(self._system.info(self._place), self._url)
        return facts

    def _bytes(self, start: int, end: int) -> bytes:
        if self._file is None:
            found: bytes = self._system.cat_file(self._place, start=start, end=end)
            return found
        try:
            return self._pieces(start, end)
        except OSError as error:
            if type(error).__name__ == "FileExpired":
                raise other_facts(self._url) from None
            raise

    def _pieces(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        found: bytes = self._file.read(end - start)
        while found and len(found) < end - start:
            more = self._file.read(end - start - len(found))
            if not more:
                break
            found += more
        return found


def _facts_of(info: dict[str, Any], url: str) -> RemoteFacts:
    """The facts in what a file system tells of a file.

    Raises:
        TapeError: ``not_a_tape`` for a directory; ``io`` if there is no size.
    """
    if info.get("type") == "directory":
        raise TapeError("not_a_tape", "not a regular file", path=shown(url))
    size = info.get("size")
    if not isinstance(size, int) or not 0 <= size < 2**63:
        raise RemoteError("io", "the server does not tell the size of the file", path=shown(url))
    # One of them: a listing tells fewer than a question about one file, and coarser times.
    version = tuple((name, str(info[name])) for name in _VERSIONS if info.get(name))[:1]
    return RemoteFacts(size, version)
