"""Asks another process whether a tape fails. Whatever happens there, an outcome comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from typing_extensions import Self

from calltape_analyzer.errors import UsageError
from calltape_analyzer.minimising.checks import Check
from calltape_analyzer.minimising.outcome import Outcome

__all__ = ["Judge"]

_COMMAND = (sys.executable, "-m", "calltape_analyzer.minimising.judge_process")
_MAX_DEATHS = 3


class Judge:
    """Runs a check in other processes. Use it in a ``with`` block, which ends them.

    Args:
        check: what is run.
        nbytes: of memory that one run may take.

    Attributes:
        code: a digest of the files that the check is in.

    Raises:
        UsageError: the check cannot be imported.
    """

    def __init__(self, check: Check, nbytes: int) -> None:
        self._check = check
        self._bytes = nbytes
        self._deaths = 0
        self._process: subprocess.Popen[str] | None = None
        self.code = ""
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
            UsageError: the process that starts the runs was ended several times.
        """
        question = {
            "tape": path, "settled": f"{path}.settled", "answer": f"{path}.answer",
            "seconds": seconds, "bytes": self._bytes,
        }  # fmt: skip
        answer = self._asked(question)
        while answer is None:
            self._deaths += 1
            if self._deaths >= _MAX_DEATHS:
                raise UsageError(
                    "the process that runs the check was ended several times",
                    advice="see whether the machine has enough memory, or allow a run less",
                )
            self.close()
            self._start()
            answer = self._asked(question)
        return Outcome.model_validate(answer)

    def _start(self) -> None:
        # The same random choices of hash tables each time; Ctrl-C is for us to handle.
        self._process = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True, env={**os.environ, "PYTHONHASHSEED": "0",
                                         "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        path = [os.getcwd(), *(one for one in sys.path if one not in ("", os.getcwd()))]
        hello = self._asked({"path": path, "check": self._check.model_dump()})
        if hello is None:
            name = self._check.name
            raise UsageError(f"{name} cannot be imported: the process ended meanwhile")
        if "error" in hello:
            raise UsageError(hello["error"])
        self.code = hello["code"]

    def _asked(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a question; None if the process is no more."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            return None
        found: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return found
