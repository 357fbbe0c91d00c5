"""Writes the inputs of a call to a file before the model runs.

Each call under way has a small tape of its own next to the recording, with only this call in it.
When the call ends, the file is emptied and used for the next one. If the process dies in the call
(a segmentation fault, a device assert), the file stays and has the inputs. It is a tape like any
other, so tools that open the directory find the call.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass

from calltape_recorder.bounds import MAX_AHEAD_FILES
from calltape_recorder.snapshot.call import Call
from calltape_recorder.threads import is_interrupt, new_count
from calltape_recorder.write.disk_file import next_file
from calltape_recorder.write.encoding import Encoder
from calltape_recorder.write.segments import DiskBudget
from calltape_schema.groups import planned
from calltape_schema.records import Manifest
from calltape_schema.writer import manifest_member

UNDER_WAY = "under way"


@dataclass(eq=False)
class WriteAhead:
    """The files of calls under way.

    Args:
        stem: the recording's path without ``.tape``.
        manifest: makes the manifest of each file.
        complain: logs what went wrong. The call is recorded without write-ahead then.
        budget: lends the bytes that the files take. If it does not, the call is recorded without
            write-ahead.
        overwrite: whether to replace existing files. They may be what another process left when it
            crashed.
        file_mode: the permissions of the files.
    """

    stem: str
    manifest: Callable[[], Manifest]
    complain: Callable[[str, BaseException], None]
    budget: DiskBudget
    overwrite: bool
    file_mode: int

    def __post_init__(self) -> None:
        # Their changes are one step each, so no thread waits for another one.
        self._idle: list[_File] = []
        self._files: list[_File] = []
        self.numbers = new_count()  # of the files
        self._is_closed = False

    def write(self, call: Call) -> None:
        """Writes the inputs of a call in the application's thread, which is the cost of
        write-ahead."""
        try:
            if self._is_closed:
                return
            file = self._free_file()
            call.ahead_file = file
            call.outputs_missing = UNDER_WAY
            file.write(call)
        except Exception as error:
            if is_interrupt(error):
                raise
            self.complain("inputs could not be written ahead", error)
        finally:
            call.outputs_missing = None
        if self._is_closed:  # meanwhile, so the end of this call may not be seen
            self.done(call)

    def done(self, call: Call) -> None:
        """Empties the file of a call that ended."""
        file = call.ahead_file
        if not isinstance(file, _File):
            return
        try:
            if not self._is_closed:
                file.clear()
        except Exception as error:  # it is tried again before the next use
            if is_interrupt(error):
                raise
            if not self._is_closed:
                self.complain("a file of inputs written ahead could not be emptied", error)
        finally:
            # No interrupt comes between these two: the file would be lost.
            call.ahead_file = None; self._idle.append(file)  # noqa: E702  # fmt: skip
        if self._is_closed:
            self._close_idle()

    def close(self) -> None:
        """Removes the files. Those of calls under way are closed when these end: if one was closed
        while it is written to, a file of the application could get its descriptor."""
        self._is_closed = True
        for file in list(self._files):
            file.remove()
        self._close_idle()

    def abandon(self) -> None:
        """Closes the files in a fork, as they are the parent's."""
        self._is_closed = True
        for file in self._files:
            file.tape.close()

    def _free_file(self) -> _File:
        """A file that no other call has."""
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        if len(self._files) >= MAX_AHEAD_FILES:
            raise RuntimeError(f"more than {MAX_AHEAD_FILES} calls are under way")
        file = _File(self)
        self._files.append(file)
        if self._is_closed:  # meanwhile, so it may have been overlooked
            file.remove()
        return file

    def _close_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread closes it
                self._idle.pop().tape.close()


class _File:
    """A file for one call at a time."""

    def __init__(self, ahead: WriteAhead) -> None:
        manifest = ahead.manifest()
        self._budget = ahead.budget
        self._tape_id = manifest.tape
        self._encoder = Encoder()
        self._lent = 0
        self._borrow(len(manifest_member(manifest)))
        try:
            # Each number is used once: with overwrite, the file of another call could be replaced.
            self.tape, _ = next_file(
                lambda _: f"{ahead.stem}.ahead-{next(ahead.numbers)}.tape",
                0, ahead.overwrite, ahead.file_mode,
            )  # fmt: skip
        except BaseException:
            self._budget.give_back(self._lent)
            raise
        try:
            self.tape.begin(manifest)
        except BaseException:
            self.remove()
            self.tape.close()
            raise

    def write(self, call: Call) -> None:
        if self._lent > self.tape.size or self.tape.calls:
            self.clear()
        encoded = self._encoder.encode(call)  # the model waits
        append = planned(self._tape_id, [encoded], level=0)
        self._borrow(append.size)
        self.tape.commit(append)

    def clear(self) -> None:
        self.tape.rewind()
        of_call = max(self._lent - self.tape.size, 0)
        self._lent -= of_call
        self._budget.give_back(of_call)

    def remove(self) -> None:
        if self.tape.remove():
            lent, self._lent = self._lent, 0
            self._budget.give_back(lent)

    def _borrow(self, nbytes: int) -> None:
        if not self._budget.lend(nbytes):
            raise OSError(errno.ENOSPC, "max_disk_bytes is reached")
        self._lent += nbytes
