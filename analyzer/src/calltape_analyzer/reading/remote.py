"""Tapes behind URLs: how their file systems are asked, what is said if they do not answer, and the
bytes of a tape, in as few and as small requests as reading needs.

Takes a URL, and a question; returns the answer, or one TapeError that shows nobody a password. The
question is asked in a thread of its own: a server that never answers holds up nothing else. Of a
file, bytes at offsets: reads close to each other are served from one piece, and pieces grow while a
file is read from front to back. A file that changes is the same error as one on a disk.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from calltape_analyzer.errors import RemoteError, UsageError, to_install
from calltape_analyzer.limits import received_bytes
from calltape_analyzer.reading.compressed import is_compressed, unpacked
from calltape_analyzer.reading.tape_file import TapeBytes, TapeFile
from calltape_analyzer.reading.urls import displayed_url, file_url, protocol_of, without_secrets
from calltape_schema.errors import TapeError
from calltape_schema.packing import crc32

__all__ = [
    "LAST_PIECE",
    "MOST_ASKED",
    "MOST_CACHED",
    "MOST_FAILED",
    "SECONDS",
    "SILENT_SECONDS",
    "TRUSTED_SECONDS",
    "VARIABLE",
    "answer_of",
    "blocks",
    "file_system",
    "opened_url",
]

T = TypeVar("T")

SECONDS = 60.0
VARIABLE = "CALLTAPE_REMOTE_SECONDS"
_MOST_SHOWN = 300
_ADVICE = "check the address, the network and the credentials"
_LATER = "try again in a minute"

_OF_WEB_SERVERS = ("http", "https")
_MOST_CONNECTED = 16
MOST_FAILED, SILENT_SECONDS = 2, 30.0
_PASSING = ("ClientConnectionError", "ClientPayloadError", "EndpointConnectionError")
"""Errors of the clients' libraries, which say nothing about the file that was asked for."""

_VERSIONS = (
    "ETag", "etag", "md5Hash", "generation", "VersionId", "LastModified", "last_modified", "mtime",
    "updated", "created", "time", "modify",
)  # fmt: skip
_COMPARES = ("s3", "s3a")
TRUSTED_SECONDS = 2.0
_REPLACED = "another file has taken its place"

_BLOCK, LAST_PIECE = 16 * 1024, 4 * 1024 * 1024
_NEAR = 1024 * 1024  # reading this much on takes less time than another request
MOST_ASKED = 8 * 1024 * 1024
MOST_CACHED = 64 * 1024 * 1024

_numbers = itertools.count()
_connected: dict[Any, Any] = {}  # file systems that connect when they are made: one for each host
_failing: dict[str, _Failing] = {}


class _Facts(NamedTuple):
    """What tells two states of a remote file apart: size in bytes, and names and values of what
    else differs (an ETag, times, versions)."""

    size: int
    version: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, info: dict[str, Any], path: str) -> _Facts:
        """The facts in what a file system says of a file.

        Raises:
            TapeError: ``not_a_tape`` for a directory; ``io`` if there is no size.
        """
        if info.get("type") == "directory":
            raise TapeError("not_a_tape", "not a regular file", path=path)
        size = info.get("size")
        if not isinstance(size, int) or not 0 <= size < 2**63:
            raise RemoteError("io", "the server does not tell the size of the file", path=path)
        # One of them: a listing has fewer than an answer about one file, and coarser times.
        version = tuple((name, str(info[name])) for name in _VERSIONS if info.get(name))[:1]
        return cls(size, version)


class _UnavailableError(RemoteError):
    """The server is there, and says that it cannot answer now."""

    counts_as = 1


class _NoAnswerError(_UnavailableError):
    """No answer came."""

    counts_as = MOST_FAILED


class _Failing(NamedTuple):
    """A server that did not answer: how often, until when it is not asked, and why."""

    times: int
    until: float
    reason: str


def _seconds_allowed() -> float:
    """How long one answer may take, in seconds: 60, or ``CALLTAPE_REMOTE_SECONDS``.

    Raises:
        UsageError: the variable holds no number above 0.
    """
    variable = os.environ.get(VARIABLE)
    try:
        seconds = SECONDS if variable is None else float(variable)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(
            f"{VARIABLE} is not a number of seconds", advice="set it to 60, or unset it"
        )
    return seconds


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
            "calltape does not read tapes from web servers", path=displayed_url(url),
            advice="download the file, for example with `curl -O URL`, and open it from disk",
        )  # fmt: skip
    if "::" in file_url(url):
        raise UsageError(
            "URLs that chain file systems are not read", path=displayed_url(url),
            advice="name the file itself",
        )  # fmt: skip
    kind = _kind_of(url)
    try:
        if kind.async_impl:  # made at once, connects later, and fsspec keeps it for all threads
            return _new_file_system(url)
        key = os.getpid(), kind, repr(kind._get_kwargs_from_urls(url))
        connected = _connected.get(key)
        if connected is None:
            connected = _connected[key] = answer_of(url, lambda: _new_file_system(url))[0]
            while len(_connected) > _MOST_CONNECTED:
                _connected.pop(next(iter(_connected)), None)
        return connected, str(connected._strip_protocol(url))
    except Exception as error:
        raise _as_tape_error(error, url) from None


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
            path=displayed_url(url),
            advice="use s3://, gs://, az://, file:// or another protocol of fsspec",
        ) from None


def _new_file_system(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    new_system, place = url_to_fs(url)
    return new_system, str(place)


def _not_installed(url: str, what: str) -> UsageError:
    return UsageError(
        f"this Python cannot read {protocol_of(url)}:// ({what.rstrip('.')})",
        path=displayed_url(url),
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
    parts = urlsplit(file_url(url))
    port = f":{parts.port}" if parts.port else ""
    place = f"{parts.scheme}://{parts.hostname or ''}{port}"  # the server or bucket
    failing = _failing.get(place)
    if failing is not None and failing.times >= MOST_FAILED and time.monotonic() < failing.until:
        raise RemoteError(
            "io", f"not asked, because {place} failed {failing.times} times: {failing.reason}",
            path=displayed_url(url), advice=_LATER,
        )  # fmt: skip
    try:
        answer = _answered(url, ask, seconds)
    except _UnavailableError as error:
        before = 0 if failing is None else failing.times
        until = time.monotonic() + SILENT_SECONDS
        _failing[place] = _Failing(before + error.counts_as, until, error.reason)
        raise
    except TapeError:
        _failing.pop(place, None)  # it answered, if only to refuse
        raise
    _failing.pop(place, None)
    return answer


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
            "io", f"the server did not answer within {seconds:g} s", path=displayed_url(url),
            advice=f"try again, or allow more with {VARIABLE}",
        )  # fmt: skip
    if errors:
        raise _as_tape_error(errors[0], url) from None
    return answers[0]


def _as_tape_error(error: Exception, url: str) -> TapeError:
    """An error of a file system as one of ours."""
    if isinstance(error, TapeError):
        return error.at(path=displayed_url(url))
    cause = error
    while isinstance(cause.__cause__, Exception) and not isinstance(cause, FileNotFoundError):
        cause = cause.__cause__
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return TapeError(
            "not_found", "no such file", path=displayed_url(url), advice="check the URL"
        )
    text = " ".join(without_secrets(str(cause), url).split()) or "no reason was given"
    if len(text) > _MOST_SHOWN:
        text = f"{text[:_MOST_SHOWN]}…"
    reason = f"cannot be read: {type(cause).__name__}: {text}"
    kind = _UnavailableError if _is_passing(error) else RemoteError
    return kind("io", reason, path=displayed_url(url), advice=_ADVICE)


def _is_passing(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is about the way to the server or its load."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        busy = isinstance(error, OSError) and error.errno == errno.EBUSY
        if busy or isinstance(error, ConnectionError | TimeoutError) or names & set(_PASSING):
            return True
        error = error.__cause__
    return False


class BlockCache:
    """Keeps the blocks of remote files that were used last. Manifest and end of a tape are asked
    for more than once, and small reads are served from the larger piece that was fetched."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def __len__(self) -> int:
        """How many blocks are held."""
        return len(self._blocks)

    def get(self, file: int, block: int) -> bytes | None:
        """A block of a file, which has a number that no other file has; None if it is not held."""
        with self._lock:
            block_bytes = self._blocks.get((file, block))
            if block_bytes is not None:
                self._blocks.move_to_end((file, block))
            return block_bytes

    def put(self, file: int, block: int, piece: bytes) -> None:
        """Keeps a piece of a file that begins with this block, instead of blocks that were not used
        for the longest time."""
        with self._lock:
            for i in range(0, len(piece), _BLOCK):
                self._blocks[file, block + i // _BLOCK] = piece[i : i + _BLOCK]
            while len(self._blocks) > MOST_CACHED // _BLOCK:
                self._blocks.popitem(last=False)

    def drop(self, file: int) -> None:
        """Forgets a file."""
        with self._lock:
            for key in [key for key in self._blocks if key[0] == file]:
                del self._blocks[key]

    def _renew(self) -> None:
        """In a fork, the lock may be held by a thread that does not exist there, in the middle of a
        change."""
        self._lock = threading.Lock()
        self._blocks.clear()


blocks = BlockCache()
"""The blocks of all remote files of this process."""


def opened_url(url: str) -> TapeBytes:
    """The bytes of a tape behind a URL. A compressed one is read once, from front to back.

    Raises:
        TapeError: ``not_found``, ``io``, ``usage``, ``not_a_tape``; ``damaged`` or ``limit`` for a
            compressed file that cannot be read.
    """
    remote = RemoteFile(url)
    if not is_compressed(file_url(url)):
        return remote
    stream = _Stream(remote)
    try:
        with io.BufferedReader(stream, _NEAR) as source:
            unpacked_file = unpacked(source, remote.path, lambda: stream.done)
    except OSError as error:
        reason = f"cannot decompress the file: {error.strerror or error}"
        raise TapeError("io", reason, path=remote.path) from None
    finally:
        remote.close()
    if unpacked_file is None:
        return RemoteFile(url)
    return TapeFile(remote.path, url, (unpacked_file, remote.disk_bytes))


class RemoteFile(TapeBytes):
    """A file behind a URL.

    Args:
        url: as the caller gave it.

    Raises:
        TapeError: ``not_found``, ``io``, ``usage``; ``not_a_tape`` for a directory.
    """

    def __init__(self, url: str) -> None:
        super().__init__(displayed_url(url), url)
        self._number = next(_numbers)
        self._connect()
        self.size = self._facts.size
        self._expect_content()

    def _connect(self) -> None:
        """Opens the file for this process."""
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._step, self._end = _BLOCK, 0
        self._system, self._place = file_system(self.location)
        self._file: Any = None
        self._facts: _Facts = answer_of(self.location, self._opened)
        self._looked = time.monotonic()

    def _opened(self) -> _Facts:
        """Opens the file: a request for its facts, or none if a listing has told them."""
        from fsspec.spec import AbstractBufferedFile

        file = self._system.open(self._place, "rb", cache_type="none")
        if isinstance(file, AbstractBufferedFile):
            self._file = file
            return _Facts.of(file.details, self.path)
        file.close()  # it may be shared, as those in memory are
        return _Facts.of(self._system.info(self._place), self.path)

    def _facts_now(self) -> _Facts:
        """The facts as they are now."""

        def again() -> _Facts:
            self._system.invalidate_cache(self._place)
            return _Facts.of(self._system.info(self._place), self.path)

        facts = answer_of(self.location, again)
        self._looked = time.monotonic()
        return facts

    @property
    def disk_bytes(self) -> int:
        """Its size: the user's own configuration leads to the store, and objects have no holes."""
        return self.size

    def refresh(self) -> bool:
        self._expect_open()
        with self._lock:
            try:
                facts = self._facts_now()
            except TapeError as error:
                if error.kind == "not_found":
                    raise self.changed("it was removed") from None
                raise
            if facts == self._facts:
                return True
            blocks.drop(self._number)
            self._connect()
            self.size = self._facts.size
            return False

    def expect_unchanged(self, head: int, *, is_sealed: bool) -> None:
        """Nothing to note: all of it must stay as it is."""

    def read_at(self, offset: int, size: int) -> bytes:
        size = self._up_to_end(offset, size)
        self._expect_open()
        if not size:
            return b""
        if size > LAST_PIECE:
            return b"".join(self._pieces(offset, size))
        first, end = offset // _BLOCK, -(-(offset + size) // _BLOCK)
        pieces = [blocks.get(self._number, block) for block in range(first, end)]
        missing = [first + i for i, block in enumerate(pieces) if block is None]
        if missing:
            begin, behind = missing[0], missing[-1] + 1
            piece = self._read_on(begin, behind)
            pieces[begin - first : behind - first] = [piece[: (behind - begin) * _BLOCK]]
        data = b"".join(block for block in pieces if block is not None)
        return data[offset - first * _BLOCK :][:size]

    def _read_on(self, begin: int, end: int) -> bytes:
        """The bytes from a block to another one, and more that is not held yet: more each time,
        while the file is read front to back. A record is read before its blob, which is in front of
        it."""
        with self._lock:
            start = begin * _BLOCK
            is_near = abs(start - self._end) <= _NEAR and self._end
            self._step = min(4 * self._step, LAST_PIECE) if is_near else _BLOCK
            until = begin + self._step // _BLOCK
            while end < until and blocks.get(self._number, end) is None:
                end += 1
            piece = self._fetch(start, min(end * _BLOCK, self.size))
        blocks.put(self._number, begin, piece)
        return piece

    def copy(self, offset: int, size: int) -> bytearray:
        result = bytearray()
        for piece in self._pieces(offset, size):
            result += piece
        return result

    def crc32(self, offset: int, size: int, before: int = 0) -> int:
        for piece in self._pieces(offset, size):
            before = crc32(piece, before)
        return before

    def close(self) -> None:
        self.is_closed = True
        blocks.drop(self._number)

    def _pieces(self, offset: int, size: int) -> Iterator[bytes]:
        self._expect_open()
        end = offset + self._up_to_end(offset, size)
        while offset < end:
            some = min(end - offset, MOST_ASKED)
            if some <= LAST_PIECE:
                yield self.read_at(offset, some)
            else:
                with self._lock:
                    piece = self._fetch(offset, offset + some)
                yield piece
            offset += some

    def _fetch(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``.

        Raises:
            TapeError: ``damaged`` if the file is not what it was; ``io``.
        """
        file = self._file
        compares = file is not None and protocol_of(self.location) in _COMPARES
        if not compares and time.monotonic() - self._looked > TRUSTED_SECONDS:
            self._expect(self._facts_now())
        try:
            data = answer_of(self.location, lambda: self._bytes(file, start, end))
        except _NoAnswerError:
            self._file = None  # it may be read still, and has one position for all
            raise
        except TapeError as error:
            if error.kind == "not_found":
                raise self.changed(_REPLACED) from None
            raise
        received_bytes(len(data))
        if len(data) != end - start:
            self._expect(self._facts_now())
            reason = f"the server sent {len(data):,} bytes, and was asked for {end - start:,}"
            raise RemoteError("io", reason, path=self.path)
        self._end = end
        return data

    def _bytes(self, file: Any, start: int, end: int) -> bytes:
        piece: bytes
        if file is None:
            piece = self._system.cat_file(self._place, start=start, end=end)
            return piece
        try:
            file.seek(start)
            piece = file.read(end - start)
            while piece and len(piece) < end - start:
                more = file.read(end - start - len(piece))
                if not more:
                    break
                piece += more
        except OSError as error:
            if type(error).__name__ == "FileExpired":
                raise self.changed(_REPLACED) from None
            raise
        return piece

    def _expect(self, facts: _Facts) -> None:
        if facts != self._facts:
            raise self.changed(_REPLACED)

    def _expect_open(self) -> None:
        """Raises if the file was closed. In a fork, opens it anew: connections do not outlive it,
        and a thread that is not there may hold the lock."""
        if self.is_closed:
            raise TapeError("closed", "the tape was closed", path=self.path)
        if self._process != os.getpid():
            before = self._facts
            self._connect()
            self._expect(before)


class _Stream(io.RawIOBase):
    """A remote file from front to back.

    Attributes:
        done: how many bytes were read.
    """

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file = file
        self.done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._file.read_at(self.done, len(buffer))
        buffer[: len(piece)] = piece
        self.done += len(piece)
        return len(piece)
