"""Copies sealed tape files to a store, as they appear.

In come a directory and a URL. Each complete file is sent, compared with its copy, and only then
removed here, if that was asked for. It may be killed at any time and run again, also twice at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal, NamedTuple

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.file_descriptors import RemoteError
from calltape_analyzer.shipping.checksums import Checksums, checksums_of, part_bytes
from calltape_analyzer.shipping.ending import Ending
from calltape_analyzer.shipping.local_tapes import (
    LocalTape,
    is_left,
    ready_state,
    tapes_below,
)
from calltape_analyzer.shipping.ship_report import ShipReport
from calltape_analyzer.shipping.store import Store
from calltape_analyzer.text import counted
from calltape_schema.errors import TapeError

__all__ = ["Shipment", "ship"]

_MOST_PROBLEMS = 1000
_STEP = 1024 * 1024
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)

_MOST_FAILURES = 3  # of the store, one after the other: then it is down

State = Literal["done", "refused", "failed", "unsealed", "gone"]


class _Known(NamedTuple):
    """What became of a file in one state of it, and why it was not shipped."""

    tape: LocalTape
    state: State
    problem: str | None = None

    @property
    def is_settled(self) -> bool:
        return self.state in ("done", "refused")


class Shipment:
    """Ships what is complete in a directory, again and again.

    Args:
        directory: and all directories below it.
        url: where to.
        delete_after: whether a file is removed here once it was found equal there.
        unsealed: whether files without an end are shipped too, if nobody writes to them.
        told: is called with each file that was shipped: its name, and its size in bytes.

    Raises:
        TapeError: ``usage``; ``not_found`` if there is no such directory; ``io``.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        url: str,
        *,
        delete_after: bool = False,
        unsealed: bool = False,
        told: Callable[[str, int], None] = lambda name, size: None,
    ) -> None:
        self._directory = os.fspath(directory)
        if not os.path.isdir(self._directory):
            raise TapeError("not_found", "no such directory", path=self._directory)
        self._store = Store(url)
        _expect_elsewhere(self._directory, self._store)
        self._delete_after = delete_after
        self._unsealed = unsealed
        self._told = told
        self._known: dict[str, _Known] = {}
        self._unread: list[str] = []
        self._failures = 0
        self._shipped = self._shipped_bytes = self._there = self._deleted = 0

    @property
    def report(self) -> ShipReport:
        """What came of it so far."""
        return ShipReport(
            target=self._store.shown,
            shipped=self._shipped,
            shipped_bytes=self._shipped_bytes,
            there=self._there,
            deleted=self._deleted,
            unsealed=sum(known.state == "unsealed" for known in self._known.values()),
            problems=tuple(islice(self._problems(), _MOST_PROBLEMS)),
        )

    def follow(
        self, every: float, ending: Ending, looked: Callable[[ShipReport], None] = lambda _: None
    ) -> None:
        """Ships until the end is asked for, and then what was sealed meanwhile.

        Args:
            every: how many seconds pass between two looks at the directory.
            ending: is asked for the end by somebody else.
            looked: is called after each look.
        """
        while True:
            is_last = ending.is_asked
            self.look(ending)
            looked(self.report)
            if is_last:
                return
            ending.wait(every)

    def look(self, ending: Ending | None = None) -> None:
        """Ships what is complete now. What fails is tried again at the next look."""
        before, self._known = self._known, {}
        self._unread, self._failures = [], 0
        untried = 0
        for tape in tapes_below(self._directory, self._note_unread):
            known = before.get(tape.name)
            if known is not None and known.tape != tape:
                known = None
            if known is not None and known.is_settled:
                pass
            elif self._failures >= _MOST_FAILURES:
                untried += 1
            elif ending is None or ending.may_begin():
                known = self._tried(tape, known)
            if known is not None and known.state != "gone":
                self._known[tape.name] = known
        if untried:
            more = counted(untried, "more file")
            self._unread.append(
                f"{more}: not tried, because the target failed {_MOST_FAILURES} times"
            )

    def _problems(self) -> Iterator[str]:
        for name, known in self._known.items():
            if known.problem is not None:
                yield f"{name}: {known.problem}"
        yield from self._unread

    def _note_unread(self, folder: str, reason: str) -> None:
        if len(self._unread) < _MOST_PROBLEMS:
            self._unread.append(f"{folder}: {reason}")

    def _tried(self, tape: LocalTape, known: _Known | None) -> _Known:
        """Ships a file if it is complete, and says what became of it."""
        try:
            tape.name.encode()
            is_open = known is not None and known.state == "unsealed"
            is_sealed = not is_open and ready_state(tape) == "sealed"
            if not is_sealed and not (self._unsealed and tape.size and is_left(tape)):
                return _Known(tape, "unsealed")
        except UnicodeEncodeError:
            return _Known(tape, "refused", "its name is no UTF-8")
        except TapeError as error:
            if error.kind == "not_found":
                return _Known(tape, "gone")
            return _Known(tape, "failed" if error.kind == "io" else "refused", _words(error))
        try:
            found = self._ship(tape)
        except TapeError as error:
            self._failures += isinstance(error, RemoteError)
            return _Known(tape, "failed", _words(error))
        if found.state == "done":
            self._failures = 0
        return found

    def _ship(self, tape: LocalTape) -> _Known:
        try:
            file = os.open(tape.path, _FLAGS)
        except FileNotFoundError:
            return _Known(tape, "gone")
        except OSError as error:
            return _Known(tape, "failed", f"cannot read the file: {error.strerror}")
        try:
            return self._ship_open(tape, file)
        finally:
            os.close(file)

    def _ship_open(self, tape: LocalTape, file: int) -> _Known:
        if not tape.is_same(os.fstat(file)):
            return _Known(tape, "unsealed")  # it changed since the directory was read
        sums = checksums_of(_pieces(file, tape.size), tape.size)
        if sums.size != tape.size or not tape.is_same(os.fstat(file)):
            return _Known(tape, "unsealed")
        found = self._store.has(tape.name, sums)
        if found:
            self._there += 1
        elif found is None:
            found = self._send(tape, file, sums)
        if not found:
            reason = f"{self._store.shown} has other bytes under this name, which stay there"
            return _Known(tape, "refused", reason)
        return _Known(tape, "done", self._delete(tape) if self._delete_after else None)

    def _send(self, tape: LocalTape, file: int, sums: Checksums) -> bool:
        # By its descriptor, where the system can: a name may be given to another file meanwhile.
        opened = f"/proc/self/fd/{file}"
        source = opened if os.path.exists(opened) else tape.path
        if not self._store.put(tape.name, source, sums):
            return False
        self._shipped += 1
        self._shipped_bytes += tape.size
        self._told(tape.name, tape.size)
        return True

    def _delete(self, tape: LocalTape) -> str | None:
        """Removes a file that is as it was when it was sent. Returns why that is not possible."""
        try:
            if tape.is_same(os.lstat(tape.path)):
                os.unlink(tape.path)
                self._deleted += 1
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"it is shipped, and cannot be deleted: {error.strerror}"
        return None


def _words(error: TapeError) -> str:
    return f"{error.reason}; {error.advice}"


def ship(
    directory: str | os.PathLike[str],
    url: str,
    *,
    delete_after: bool = False,
    unsealed: bool = False,
) -> ShipReport:
    """Copies the sealed tape files of a directory to an object store, once each: a file that is
    there with the same bytes is left out, and one with other bytes is never written over. It may be
    killed at any time, and run again.

    Args:
        directory: and all directories below it; paths below it stay as they are.
        url: where to: ``s3://bucket/folder``, or any file system that fsspec can write to.
        delete_after: whether a file is removed here once it was found equal there, by size and
            checksum.
        unsealed: whether files that a recorder did not seal are shipped too, if nothing was
            written to them for a minute and no process that can be seen has them open.

    Returns:
        What was shipped, and why not the rest.

    Raises:
        TapeError: ``usage``; ``not_found`` if there is no such directory; ``io`` if the store
            cannot be reached at all. What goes wrong with single files is in the report.
    """
    shipment = Shipment(directory, url, delete_after=delete_after, unsealed=unsealed)
    shipment.look()
    return shipment.report


def _pieces(file: int, size: int) -> Iterator[bytes]:
    """The bytes of a file, so that no piece spans two of the parts that it is sent in."""
    assert part_bytes(size) % _STEP == 0
    offset = 0
    while offset < size:
        piece = os.pread(file, min(_STEP - offset % _STEP, size - offset), offset)
        if not piece:
            return
        yield piece
        offset += len(piece)


def _expect_elsewhere(directory: str, store: Store) -> None:
    """Raises UsageError if the store is in the directory itself."""
    if store.folder is None:
        return
    own, other = os.path.realpath(directory), os.path.realpath(store.folder)
    if os.path.commonpath([own, other]) == own:
        raise UsageError(
            "the target is within the directory", path=store.shown,
            advice="name a target outside of it",
        )  # fmt: skip
