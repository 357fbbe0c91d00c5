"""Write-ahead puts the inputs of a call into a file before the model runs.

Each call under way has a small tape of its own beside the recording, with only this call in it.
When the call ends, the file is emptied and used for the next one. If the process dies in the call
(a segmentation fault, a device assert), the file stays and has the inputs. It is a tape like any
other, so whoever opens the directory finds the call.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator

from calltape_recorder.bounds import MAX_AHEAD_FILES
from calltape_recorder.call import Call
from calltape_recorder.threads import RLock
from calltape_recorder.write.disk_file import TapeFile
from calltape_recorder.write.encoding import Encoder
from calltape_recorder.write.segments import DiskBudget
from calltape_schema import TapeError
from calltape_schema.groups import planned
from calltape_schema.records import Manifest
from calltape_schema.writer import manifest_member

__all__ = ["UNDER_WAY", "WriteAhead"]

UNDER_WAY = "under way"


class WriteAhead:
    """The files of calls under way.

    Args:
        stem: the recording's path without ``.tape``.
        manifest: gives the first member of each file.
        complain: says once what went wrong. The call goes on, and is recorded without write-ahead.
        budget: lends the bytes that the files take. If it does not, the call goes
            on without write-ahead.
        overwrite: whether to replace existing files. They may be what another process left when it
            crashed.
        file_mode: the permissions of the files.
    """

    def __init__(
        self,
        stem: str,
        manifest: Callable[[], Manifest],
        complain: Callable[[str, BaseException], None],
        budget: DiskBudget,
        overwrite: bool,
        file_mode: int,
    ) -> None:
        self._stem = stem
        self._manifest = manifest
        self._complain = complain
        self._budget = budget
        self._overwrite = overwrite
        self._file_mode = file_mode
        self._lock = RLock()
        self._idle: list[_File] = []
        self._files: list[_File] = []
        self._number = 0  # of the next file
        self._is_closed = False

    def write(self, call: Call) -> None:
        """Writes the inputs of a call in the host's thread, which is the cost of write-ahead."""
        try:
            file = self._take()
            if file is None:
                return
            call.ahead_file = file
            call.outputs_missing = UNDER_WAY
            file.write(call)
        except Exception as error:
            self._complain("inputs could not be written ahead", error)
        finally:
            call.outputs_missing = None

    def done(self, call: Call) -> None:
        """Empties the file of a call that ended."""
        file, call.ahead_file = call.ahead_file, None
        if not isinstance(file, _File) or self._is_closed:
            return
        try:
            file.clear()
        except Exception as error:  # it is tried again before the next use
            if not self._is_closed:
                self._complain("a file of inputs written ahead could not be emptied", error)
        self._idle.append(file)  # without the lock: the writer comes here and must not wait

    def close(self) -> None:
        """Removes the files."""
        with self._lock:
            self._is_closed = True
            files, self._files, self._idle = self._files, [], []
        for file in files:
            file.remove()

    def abandon(self) -> None:
        """Closes the files in a fork, as they are the parent's. A thread of the parent may hold the
        old lock."""
        self._lock = RLock()
        self._is_closed = True
        for file in self._files:
            file.tape.close()

    def _take(self) -> _File | None:
        with self._lock:
            if self._is_closed:
                return None
            if self._idle:
                return self._idle.pop()
            if len(self._files) >= MAX_AHEAD_FILES:
                raise RuntimeError(f"more than {MAX_AHEAD_FILES} calls are under way")
            file = _File(self._next_tape, self._manifest(), self._budget)
            self._files.append(file)
            return file

    def _next_tape(self) -> TapeFile:
        while True:
            number, self._number = self._number, self._number + 1
            try:
                path = f"{self._stem}.ahead-{number}.tape"
                return TapeFile(path, self._overwrite, self._file_mode)
            except TapeError as error:
                if error.kind != "exists":
                    self._number = number
                    raise


class _File:
    """A file for one call at a time. Its last user closes it: if it was closed earlier, a file of
    the host could get its descriptor while it is used."""

    def __init__(
        self, open_next: Callable[[], TapeFile], manifest: Manifest, budget: DiskBudget
    ) -> None:
        self._lock = RLock()
        self._budget = budget
        self._users = 0
        self._is_gone = False
        self._lent_to_call = 0
        self._lent = len(manifest_member(manifest))
        self._borrow(self._lent)
        try:
            self.tape = open_next()
        except BaseException:
            budget.give_back(self._lent)
            raise
        try:
            self.tape.begin(manifest)
        except BaseException:
            self.remove()
            raise
        self._tape_id = manifest.tape
        self._encoder = Encoder()

    def write(self, call: Call) -> None:
        with self._used():
            if self.tape.calls or self._lent_to_call:
                self._clear()
            encoded = self._encoder.encode(call)  # the model waits
            append = planned(self._tape_id, [encoded], level=0)
            self._borrow(append.size)
            self._lent_to_call = append.size
            self.tape.commit(append)

    def clear(self) -> None:
        with self._used():
            self._clear()

    def remove(self) -> None:
        """Removes the file; it is closed when nobody uses it."""
        if self.tape.remove():
            self._budget.give_back(self._lent + self._lent_to_call)
            self._lent = self._lent_to_call = 0
        with self._lock:
            self._is_gone = True
            if not self._users:
                self.tape.close()

    def _clear(self) -> None:
        self.tape.rewind()
        lent, self._lent_to_call = self._lent_to_call, 0
        self._budget.give_back(lent)

    def _borrow(self, nbytes: int) -> None:
        if not self._budget.lend(nbytes):
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
