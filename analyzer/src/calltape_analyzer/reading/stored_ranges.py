"""Ranges of a file on any file system that fsspec knows.

In come a URL and offsets; out go exactly these bytes. S3 compares the version with each request;
of other stores it is asked again from time to time.
"""

from __future__ import annotations

import time
from typing import Any

from calltape_analyzer.reading.damage import RemoteError
from calltape_analyzer.reading.remote_access import (
    RemoteFacts,
    answer_of,
    file_system,
    other_facts,
    received_bytes,
)
from calltape_analyzer.reading.urls import protocol_of, shown
from calltape_schema.errors import TapeError

__all__ = ["StoredRanges", "facts_of"]

_VERSIONS = (
    "ETag", "etag", "md5Hash", "generation", "VersionId", "LastModified", "last_modified", "mtime",
    "updated", "created", "time", "modify",
)  # fmt: skip
_COMPARES = ("s3", "s3a")
_TRUSTED_SECONDS = 2.0


class StoredRanges:
    """A file that an object store or another machine has.

    Args:
        url: of the file.

    Attributes:
        facts: size and version.
        first: nothing; the first bytes are read when they are asked for.

    Raises:
        TapeError: ``not_found``, ``io``; ``not_a_tape`` for a directory.
    """

    sizes_are_true = True
    """The user's own configuration leads to the server, and objects have no holes."""

    first = b""

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
            return facts_of(self._system.info(self._place), self._url)

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
            self._file, facts = file, facts_of(file.details, self._url)
        else:  # it may be shared, as those in memory are
            file.close()
            facts = facts_of(self._system.info(self._place), self._url)
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


def facts_of(info: dict[str, Any], url: str) -> RemoteFacts:
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
