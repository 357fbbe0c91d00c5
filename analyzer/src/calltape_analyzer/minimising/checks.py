"""What a tape is tried with, a command or a function, and why it failed.

Takes the path of a tape; returns reasons in words that outlive other sizes: a smaller tape that
fails for another reason is another failure. Code of the user runs in another process, so that one
that crashes or hangs is an answer too.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from calltape_analyzer.exporting.session.sandbox import AnswerError, RunEndedError, Sandbox
from calltape_analyzer.opening import open_tape
from calltape_analyzer.programs.reasons import End
from calltape_analyzer.pytree.classes import Classes
from calltape_analyzer.tape import Tape

__all__ = ["Check", "CommandCheck", "FunctionCheck", "Outcome", "normalised"]

_MAX_TEXT = 400
_MAX_REASONS = 100
_MAX_OUTPUT = 2**18
_UNTESTABLE = (125, 126, 127, 128)
"""As for ``git bisect run``. A shell ends with 126 or 127 if it cannot run the command."""
_SIGNALS = 128
"""A shell adds it to the signal that ended a command."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"(?<![A-Za-z_])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NUMBERS = re.compile(r"#(?:[\s,x]+#)+")
_EXCEPTION = re.compile(r"\b(?:\w+[.:])*\w*(?:Error|Exception|Interrupt|Exit)\b(?:: .*)?$")
"""What a traceback ends with, and what a report says of a call that raised."""


class Outcome(NamedTuple):
    """What came of one run.

    Attributes:
        end: ``unusable`` if the check says that it cannot test this tape, or cannot be run.
        reasons: why it failed, the last one that was said first.
        seconds: how long it took.
    """

    end: Literal["failed", "passed", "time", "unusable"]
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.end}: {self.reasons[0]}" if self.reasons else self.end


class CommandCheck:
    """A command for a shell, such as ``python check.py {}``. A tape fails if it ends with another
    code than 0, or by a signal; 125 to 128 mean that the tape cannot be tested.

    Args:
        command: with ``{}`` for the path of the tape, which otherwise is its last word.

    Attributes:
        name: the same.
    """

    def __init__(self, command: str) -> None:
        self.name = command

    def command(self, path: str) -> str:
        """The command for one tape."""
        template = self.name if "{}" in self.name else f"{self.name} {{}}"
        return template.replace("{}", shlex.quote(path))

    def run(self, path: str, seconds: float) -> Outcome:
        """Runs it on a tape."""
        began = time.monotonic()
        with tempfile.TemporaryFile() as output:
            # The same random choices of hash tables each time; what it starts ends with it.
            process = subprocess.Popen(
                self.command(path), shell=True, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )  # fmt: skip
            try:
                with suppress(OSError):  # if memory is short, it is the one to end
                    Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return Outcome("time", seconds=time.monotonic() - began)
            finally:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(max(output.seek(0, os.SEEK_END) - _MAX_OUTPUT, 0))
            said = output.read().decode("utf-8", "replace")
        took = time.monotonic() - began
        if code == 0:
            return Outcome("passed", seconds=took)
        lines = [line[:_MAX_TEXT] for line in _COLOURS.sub("", said).splitlines() if line.strip()]
        if code in _UNTESTABLE:
            return Outcome("unusable", (f"exit code {code}", *map(normalised, lines[-1:])), took)
        found = map(_EXCEPTION.search, reversed(lines))
        exceptions = dict.fromkeys(normalised(one[0]) for one in found if one is not None)
        is_signal = code < 0 or code > _SIGNALS
        reasons = () if is_signal else tuple(exceptions)[:_MAX_REASONS]
        return Outcome("failed", reasons or (_words_of(code),), took)


class FunctionCheck:
    """A function of an open tape, which fails if that returns something true, whose text is the
    reason, or raises. It runs in a fork of this process, where the system has forks.

    Args:
        function: the check.
        classes: for opening tapes.

    Attributes:
        name: of the function.
    """

    def __init__(self, function: Callable[[Tape], Any], classes: Classes) -> None:
        self.name = getattr(function, "__qualname__", "a function")
        self._function = function
        self._classes = classes

    def run(self, path: str, seconds: float) -> Outcome:
        """Runs it on a tape, each time in a new fork."""
        began = time.monotonic()
        try:
            with Sandbox(lambda question, _: self._reason(question), "cpu") as sandbox:
                reason: str | None = sandbox.ask(path, seconds)
        except RunEndedError as error:
            if error.ended.end is End.LATE:
                return Outcome("time", seconds=time.monotonic() - began)
            reason = f"ended by {error.ended.how}"
        except AnswerError as error:
            reason = str(error)
        took = time.monotonic() - began
        return Outcome("passed" if reason is None else "failed", (reason,) if reason else (), took)

    def _reason(self, path: str) -> str | None:
        """Why the tape at a path fails; None if it passes."""
        import torch

        torch.manual_seed(0)
        random.seed(0)
        with open_tape(path, classes=self._classes) as tape:
            try:
                found = self._function(tape)
                reason = "the check returned true" if found is True else str(found)
                return normalised(reason) if found else None
            except (Exception, SystemExit) as error:
                return normalised("".join(traceback.format_exception_only(error)))


def _words_of(code: int) -> str:
    number = -code if code < 0 else code - _SIGNALS
    with suppress(ValueError):
        return f"ended by {signal.Signals(number).name}"
    return f"exit code {code}"


def normalised(text: str) -> str:
    """A message without what depends on sizes, values and memory: each number, and each row of
    numbers, is ``#``."""
    valid = text[: 20 * _MAX_TEXT].encode("utf-8", "backslashreplace").decode()
    plain = _ADDRESS.sub("0x", _COLOURS.sub("", valid))
    plain = _NUMBERS.sub("#", _NUMBER.sub("#", " ".join(plain.split())))
    return plain[:_MAX_TEXT]


Check = CommandCheck | FunctionCheck
