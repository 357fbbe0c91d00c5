"""Where tapes are shipped to: an object store, or another file system behind a URL.

In come a file, its name and its checksums. Afterwards an object of this name has exactly these
bytes, or an error says why not. An object that was there is never written over: a name is taken by
whole files only, because object stores show an object when it is complete, and elsewhere a file
gets its name after its bytes were compared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.file_descriptors import RemoteError
from calltape_analyzer.reading.remote_access import answer_of, file_system, is_web, seconds_allowed
from calltape_analyzer.reading.remote_file import RemoteFile
from calltape_analyzer.reading.urls import is_url, local_path, protocol_of, shown
from calltape_analyzer.shipping.checksums import Checksums, part_bytes
from calltape_schema.errors import TapeError

__all__ = ["Store"]

T = TypeVar("T")

_WHOLE_ONLY = {
    "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "tos", "cos",
}  # fmt: skip
_REFUSES_OTHERS = {"s3", "s3a"}
_LOCAL = {"file", "local"}
_WITH_BUCKETS = {"abfs", "abfss", "gcs", "gs", "s3", "s3a"}
_PIECE = 8 * 1024 * 1024
_SECONDS_PER_BYTE = 1 / (256 * 1024)
_AT_A_TIME = 4  # parts of one file: with 16 MiB each, 64 MiB of memory


class Store:
    """A directory behind a URL.

    Args:
        url: of the directory, which need not be there.

    Attributes:
        shown: the URL as people may see it.

    Raises:
        TapeError: ``usage`` for what is no URL, or takes no files; ``io``.
    """

    def __init__(self, url: str) -> None:
        if not is_url(url) and local_path(url) == url:
            raise UsageError(
                "tapes are shipped to a URL", path=url,
                advice="name one such as s3://bucket/folder, or file:///folder",
            )  # fmt: skip
        if is_web(url):
            raise UsageError(
                "a web server takes no files", path=shown(url),
                advice="name an object store, such as s3://bucket/folder",
            )  # fmt: skip
        self.shown = shown(url)
        self._url = url.rstrip("/")
        self._protocol = protocol_of(url)
        self._system, place = file_system(url)
        self._place = place.rstrip("/")
        self._refuses_others = True

    @property
    def folder(self) -> str | None:
        """The directory on this machine that it is; None if it is elsewhere."""
        return self._place if self._protocol in _LOCAL else None

    def has(self, name: str, sums: Checksums) -> bool | None:
        """Whether an object has these bytes; None if there is no object of this name.

        Raises:
            TapeError: ``io``.
        """
        return self._compared(name, sums)

    def put(self, name: str, source: str, sums: Checksums) -> bool:
        """Copies a file to a name that was free, and compares the copy.

        Args:
            name: below the directory.
            source: the path of the file.
            sums: of the file.

        Returns:
            False if an object with other bytes has the name.

        Raises:
            TapeError: ``io`` if it cannot be written, or is not what was sent.
        """
        if self._protocol in _WHOLE_ONLY:
            self._send(source, name, sums)
        else:
            self._send_beside(source, name, sums)
        found = self._compared(name, sums)
        if found is None:
            raise self._failed(name, "it is not there after it was sent")
        return found

    def _compared(self, name: str, sums: Checksums) -> bool | None:
        info = self._info(name)
        if info is None:
            return None
        if info.get("type") == "directory" or info.get("size") != sums.size:
            return False
        return sums.is_told_by(info) or self._sha256(name) == sums.sha256

    def _info(self, name: str) -> dict[str, Any] | None:
        place = self._of(name)

        def ask() -> dict[str, Any]:
            self._system.invalidate_cache(place)
            found: dict[str, Any] = self._system.info(place)
            return found

        try:
            return self._answer(name, ask)
        except TapeError as error:
            if error.kind == "not_found":
                return None
            raise

    def _sha256(self, name: str) -> str:
        """The checksum of an object, which is read for it."""
        made = hashlib.sha256()
        file = RemoteFile(f"{self._url}/{name}")
        try:
            for start in range(0, file.size, _PIECE):
                made.update(file.copy(start, _PIECE))
        finally:
            file.close()
        return made.hexdigest()

    def _send(self, source: str, name: str, sums: Checksums) -> None:
        """Writes an object, which is there when it is complete."""
        options: dict[str, Any] = {}
        if self._protocol in _REFUSES_OTHERS:
            options = {"chunksize": part_bytes(sums.size), "max_concurrency": _AT_A_TIME}
            if self._refuses_others:  # if another one came meanwhile, the store refuses this one
                options["mode"] = "create"
        place = self._of(name)
        try:
            self._answer(name, lambda: self._system.put_file(source, place, **options), sums.size)
        except TapeError as error:
            has_buckets = self._protocol in _WITH_BUCKETS
            if has_buckets and error.kind == "not_found" and os.path.exists(source):
                bucket = place.partition("/")[0]
                raise RemoteError(
                    "io", f"there is no bucket {bucket!r:.100}", path=self._shown(name),
                    advice="make it, or check its name",
                ) from None  # fmt: skip
            if self._info(name) is not None:
                return  # somebody else was faster; what is there is compared with the file now
            if "mode" not in options or "not implemented" not in error.reason.lower():
                raise error.at(path=self._shown(name)) from None
            self._refuses_others = False
            self._send(source, name, sums)

    def _send_beside(self, source: str, name: str, sums: Checksums) -> None:
        """Writes a file under another name, which it loses when its bytes were compared. A process
        that is killed leaves it; the next one writes it again."""
        folder, slash, last = name.rpartition("/")
        beside = f"{folder}{slash}.{last}.{sums.sha256[:16]}.part"
        at = self._of(beside)

        def write() -> None:
            parent = at.rpartition("/")[0]
            if parent:
                self._system.makedirs(parent, exist_ok=True)
            if self._protocol in _LOCAL:
                _make_private(at)
            self._system.put_file(source, at)

        self._answer(name, write, sums.size)
        if not self._compared(beside, sums):
            self._answer(name, lambda: self._system.rm_file(at))
            raise self._failed(name, "its bytes are not those that were sent")
        if self._info(name) is None:
            self._answer(name, lambda: self._system.mv(at, self._of(name)), sums.size)
        else:
            self._answer(name, lambda: self._system.rm_file(at))

    def _answer(self, name: str, ask: Callable[[], T], size: int = 0) -> T:
        allowed = seconds_allowed() + size * _SECONDS_PER_BYTE
        return answer_of(f"{self._url}/{name}", ask, allowed)

    def _of(self, name: str) -> str:
        return f"{self._place}/{name}"

    def _shown(self, name: str) -> str:
        return shown(f"{self._url}/{name}")

    def _failed(self, name: str, reason: str) -> TapeError:
        return TapeError("io", reason, path=self._shown(name), advice="run it again")


def _make_private(path: str) -> None:
    """An empty file that only its owner may read, as recorders make tapes."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    os.close(os.open(path, flags, 0o600))
