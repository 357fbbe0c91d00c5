"""Asks another process whether a tape fails. Whatever happens there, an outcome comes back."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from typing_extensions import Self

from calltape_analyzer.errors import UsageError
from calltape_analyzer.exporting.session.free_memory import own_memory
from calltape_analyzer.minimising.checks import Check, Outcome
from calltape_analyzer.model.factories import UnfitNameError
from calltape_schema.remedies import reader

__all__ = ["Judge"]

_COMMAND = (sys.executable, "-m", "calltape_analyzer.minimising.judge_process")
_MAX_DEATHS = 3
_LATE_SECONDS = 60.0
"""How much later than its limit an answer may come: the other process keeps the limit itself."""
_IMPORT_SECONDS = 600.0
_IMPORT_BYTES = 4 * 2**30
"""How much more memory than a run the import of torch and of the check may take."""
_POLL_SECONDS = 0.25


class Judge:
    """Runs a check in other processes. Use it in a ``with`` block, which ends them.

    Args:
        check: what is run.
        nbytes: of memory that one run may take.
        seconds: how long the import may take.

    Raises:
        UsageError: the check cannot be imported, or that takes more than it may; an
            UnfitNameError if its name means nothing that can be called.
    """

    def __init__(self, check: Check, nbytes: int, seconds: float | None = None) -> None:
        self._check = check
        self._bytes = nbytes
        self._seconds = max(seconds or _IMPORT_SECONDS, _LATE_SECONDS)
        self._deaths = 0
        self._process: subprocess.Popen[str] | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    def outcome(self, path: str, seconds: float) -> Outcome:
        """What the check says of a tape.

        Args:
            path: of the tape. Beside it, ``PATH.settled`` is the tape with the outputs of the
                reference, if the check has one and a call needs them.
            seconds: how long it may take.

        Raises:
            UsageError: the process that starts the runs was ended several times; or the check
                changed the tape.
        """
        before = _facts(path)
        question = {
            "tape": path, "settled": f"{path}.settled", "answer": f"{path}.answer",
            "seconds": seconds, "bytes": self._bytes,
        }  # fmt: skip
        answer = self._asked(question, seconds + _LATE_SECONDS)
        while answer is None:
            self._deaths += 1
            if self._deaths >= _MAX_DEATHS:
                raise UsageError(
                    "the process that runs the check was ended several times",
                    advice="see whether the machine has enough memory, or allow a run less",
                )
            self.close()
            self._start()
            answer = self._asked(question, seconds + _LATE_SECONDS)
        if _facts(path) != before:
            raise UsageError(
                f"{self._check.name} changes the tape that it is given, or removes it",
                advice="let it only read the tape",
            )
        return Outcome.model_validate(answer)

    def _start(self) -> None:
        # The same random choices of hash tables each time; Ctrl-C is for us to handle.
        self._process = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True, env={**os.environ, "PYTHONHASHSEED": "0",
                                         "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        path = [os.getcwd(), *(one for one in sys.path if one not in ("", os.getcwd()))]
        question = {"path": path, "check": self._check.model_dump(), "reader": reader()}
        hello = self._asked(question, self._seconds, self._bytes + _IMPORT_BYTES)
        if hello is None:
            name = self._check.name
            raise UsageError(
                f"{name} cannot be imported: the process ended meanwhile, or took more than "
                f"{self._seconds:.0f} s or too much memory",
                advice="import it by hand, and see what it does",
            )
        if "error" in hello:
            kind = UnfitNameError if hello.get("unfit") else UsageError
            raise kind(hello["error"], advice=hello.get("advice"))

    def _asked(
        self, question: dict[str, Any], seconds: float, nbytes: int | None = None
    ) -> dict[str, Any] | None:
        """The answer to a question; None if the process is no more, or took more than it may."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            if not self._answers(process, seconds, nbytes):
                process.kill()
                return None
            line = process.stdout.readline()
        except BrokenPipeError:
            return None
        found: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return found

    def _answers(self, process: subprocess.Popen[str], seconds: float, nbytes: int | None) -> bool:
        """Waits until there is an answer, or the end of the process. False if it took too long, or
        too much memory."""
        ends = time.monotonic() + seconds
        before = own_memory(process.pid)
        with selectors.DefaultSelector() as selector:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
            while not selector.select(_POLL_SECONDS):
                if time.monotonic() > ends:
                    return False
                if nbytes is not None and own_memory(process.pid) - before > nbytes:
                    return False
        return True


def _facts(path: str) -> tuple[int, int] | None:
    """What shows whether a file was changed."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    return None
