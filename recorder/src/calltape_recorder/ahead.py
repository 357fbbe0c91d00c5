"""Write-ahead: the inputs of a call are in a file before the model runs.

Each call under way has a small tape of its own beside the recording, with nothing but that call in
it, which is emptied when the call ends and used for the next one. Where the process dies in the
call (a segmentation fault, a device assert), the file stays and has its inputs. It is a tape like
any other, so whoever opens the directory finds the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from calltape_recorder.encoding import Call, Encoder
from calltape_recorder.tape_writer import TapeWriter
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
    """

    def __init__(
        self,
        stem: str,
        manifest: Callable[[], Manifest],
        complain: Callable[[str, BaseException], None],
    ) -> None:
        self._stem = stem
        self._manifest = manifest
        self._complain = complain
        self._lock = threading.RLock()
        self._idle: list[_File] = []
        self._files: list[_File] = []

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
        if not isinstance(file, _File):
            return
        try:
            file.clear()
        except Exception as error:  # tried again before its next use
            self._complain("a file of inputs written ahead could not be emptied", error)
        with self._lock:
            self._idle.append(file)

    def close(self) -> None:
        """Removes the files."""
        with self._lock:
            files, self._files, self._idle = self._files, [], []
        for file in files:
            file.remove()

    def abandon(self) -> None:
        """In a fork: the files are the parent's."""
        for file in self._files:
            file.tape.close()

    def _take(self) -> _File | None:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            number = len(self._files)
            if number >= _MAX_FILES:
                raise RuntimeError(f"more than {_MAX_FILES} calls are under way")
            file = _File(f"{self._stem}.ahead-{number}.tape", self._manifest())
            self._files.append(file)
            return file


class _File:
    def __init__(self, path: str, manifest: Manifest) -> None:
        self.tape = TapeWriter(path, overwrite=True)
        try:
            self.tape.begin(manifest)
        except BaseException:
            self.remove()
            raise
        self._encoder = Encoder(manifest.tape)

    def write(self, call: Call) -> None:
        if self.tape.calls:
            self.clear()
        self.tape.append([self._encoder.encode(call)])

    def clear(self) -> None:
        self.tape.rewind()

    def remove(self) -> None:
        self.tape.close()
        self.tape.remove()
