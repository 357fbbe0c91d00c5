"""Write-ahead: the inputs of a call are in a file before the model runs.

Each call under way has a small tape of its own beside the recording, with nothing but that call in
it, which is emptied when the call ends and used for the next one. Where the process dies in the
call (a segmentation fault, a device assert), the file stays and has its inputs. It is a tape like
any other, so whoever opens the directory finds the call.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator

from calltape_recorder.encoding import Call, Encoder
from calltape_recorder.room import Room
from calltape_recorder.tape_writer import TapeWriter, manifest_bytes
from calltape_schema import TapeError
from calltape_schema.records import Manifest

__all__ = ["UNDER_WAY", "Ahead"]

UNDER_WAY = "under way"
_MAX_FILES = 256


class Ahead:
    """The files of calls under way.

    Args:
        stem: the recording's path without ``.tape``.
        manifest: gives the first member of each file.
        complain: says once what went wrong; the call goes on and is recorded without.
        room: lends the bytes that the files take; where it does not, the call goes on without.
        overwrite: replaces files that are there, which may be what another process left when it
            crashed.
        file_mode: their permissions.
    """

    def __init__(
        self,
        stem: str,
        manifest: Callable[[], Manifest],
        complain: Callable[[str, BaseException], None],
        room: Room,
        overwrite: bool,
        file_mode: int,
    ) -> None:
        self._stem = stem
        self._manifest = manifest
        self._complain = complain
        self._room = room
        self._overwrite = overwrite
        self._file_mode = file_mode
        self._lock = threading.RLock()
        self._idle: list[_File] = []
        self._files: list[_File] = []
        self._number = 0  # of the next file
        self._is_closed = False

    def write(self, call: Call) -> None:
        """Writes the inputs of a call, in the host's thread: this is what write-ahead costs."""
        try:
            file = self._take()
            if file is None:
                return
            call.ahead = file
            call.outputs_missing = UNDER_WAY
            file.write(call)
        except Exception as error:
            self._complain("inputs could not be written ahead", error)
        finally:
            call.outputs_missing = None

    def done(self, call: Call) -> None:
        """The call ended: its file is empty again."""
        file, call.ahead = call.ahead, None
        if not isinstance(file, _File) or self._is_closed:
            return
        try:
            file.clear()
        except Exception as error:  # tried again before its next use
            if not self._is_closed:
                self._complain("a file of inputs written ahead could not be emptied", error)
        self._idle.append(file)  # one step: the writer, who comes here too, must not wait

    def close(self) -> None:
        """Removes the files."""
        with self._lock:
            self._is_closed = True
            files, self._files, self._idle = self._files, [], []
        for file in files:
            file.remove()

    def abandon(self) -> None:
        """In a fork: the files are the parent's, and so are threads that hold a lock."""
        self._lock = threading.RLock()
        self._is_closed = True
        for file in self._files:
            file.tape.close()

    def _take(self) -> _File | None:
        with self._lock:
            if self._is_closed:
                return None
            if self._idle:
                return self._idle.pop()
            if len(self._files) >= _MAX_FILES:
                raise RuntimeError(f"more than {_MAX_FILES} calls are under way")
            file = _File(self._next_tape, self._manifest(), self._room)
            self._files.append(file)
            return file

    def _next_tape(self) -> TapeWriter:
        while True:
            number, self._number = self._number, self._number + 1
            try:
                path = f"{self._stem}.ahead-{number}.tape"
                return TapeWriter(path, self._overwrite, self._file_mode)
            except TapeError as error:
                if error.kind != "exists":
                    self._number = number
                    raise


class _File:
    """One of them, of one call at a time. Whoever uses it last closes it: in between, its number
    could go to a file of the host's."""

    def __init__(self, open_next: Callable[[], TapeWriter], manifest: Manifest, room: Room) -> None:
        self._lock = threading.RLock()
        self._room = room
        self._users = 0
        self._is_gone = False
        self._lent_to_call = 0
        self._lent = manifest_bytes(manifest)
        self._borrow(self._lent)
        try:
            self.tape = open_next()
        except BaseException:
            room.give_back(self._lent)
            raise
        try:
            self.tape.begin(manifest)
        except BaseException:
            self.remove()
            raise
        self._encoder = Encoder(manifest.tape)

    def write(self, call: Call) -> None:
        with self._used():
            if self.tape.calls or self._lent_to_call:
                self._clear()
            encoded = self._encoder.encode(call, others_wait=True)  # the model does
            self._borrow(encoded[2])
            self._lent_to_call = encoded[2]
            self.tape.append([encoded])

    def clear(self) -> None:
        with self._used():
            self._clear()

    def remove(self) -> None:
        """Removes the file; it is closed when nobody uses it."""
        if self.tape.remove():
            self._room.give_back(self._lent + self._lent_to_call)
            self._lent = self._lent_to_call = 0
        with self._lock:
            self._is_gone = True
            if not self._users:
                self.tape.close()

    def _clear(self) -> None:
        self.tape.rewind()
        lent, self._lent_to_call = self._lent_to_call, 0
        self._room.give_back(lent)

    def _borrow(self, nbytes: int) -> None:
        if not self._room.lend(nbytes):
            raise OSError(errno.ENOSPC, "max_disk_bytes is reached")

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        with self._lock:
            if self._is_gone:
                raise OSError(errno.EBADF, "the recording is closed")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._is_gone and not self._users:
                    self.tape.close()
