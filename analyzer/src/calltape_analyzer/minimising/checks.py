"""Checks, which are commands or functions that fail for some tapes.

A check returns why a tape fails, normalised so that the same failure with other sizes has the same
reason. The user's code runs in another process, where it may crash or hang.
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
"""The end of a traceback, or the line of a report about a call that raised."""


class Outcome(NamedTuple):
    """The result of running a check.

    Attributes:
        end: ``unusable`` if the check cannot test this tape, or cannot be run; ``time`` if it was
            stopped.
        reasons: why the tape failed, the last line of output first.
        seconds: how long it took.
    """

    end: Literal["failed", "passed", "time", "unusable"]
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.end}: {self.reasons[0]}" if self.reasons else self.end


class CommandCheck:
    """A shell command, such as ``python check.py {}``. A tape fails if the exit code is not 0, or
    if a signal ends the command. Exit codes 125 to 128 mean that the tape cannot be tested.

    Args:
        command: the command, with ``{}`` for the path of the tape, which is appended otherwise.

    Attributes:
        name: the command.
    """

    def __init__(self, command: str) -> None:
        self.name = command

    def command(self, path: str) -> str:
        """The command for one tape."""
        template = self.name if "{}" in self.name else f"{self.name} {{}}"
        return template.replace("{}", shlex.quote(path))

    def run(self, path: str, seconds: float) -> Outcome:
        """Runs the command on a tape."""
        began = time.monotonic()
        with tempfile.TemporaryFile() as output:
            # Hashes are the same in each run, and killing the group ends its children too.
            process = subprocess.Popen(
                self.command(path), shell=True, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )  # fmt: skip
            try:
                with suppress(OSError):  # the kernel is to kill it first if memory runs out
                    Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return Outcome("time", seconds=time.monotonic() - began)
            finally:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(max(output.seek(0, os.SEEK_END) - _MAX_OUTPUT, 0))
            text = output.read().decode("utf-8", "replace")
        elapsed = time.monotonic() - began
        if code == 0:
            return Outcome("passed", seconds=elapsed)
        lines = [line[:_MAX_TEXT] for line in _COLOURS.sub("", text).splitlines() if line.strip()]
        if code in _UNTESTABLE:
            reasons = (f"exit code {code}", *map(normalised, lines[-1:]))
            return Outcome("unusable", reasons, elapsed)
        if code < 0 or code > _SIGNALS:
            return Outcome("failed", (_signal_text(code),), elapsed)
        matches = map(_EXCEPTION.search, reversed(lines))
        exceptions = dict.fromkeys(normalised(match[0]) for match in matches if match is not None)
        reasons = tuple(exceptions)[:_MAX_REASONS] or (f"exit code {code}",)
        return Outcome("failed", reasons, elapsed)


class FunctionCheck:
    """A function of an open tape. A tape fails if the function returns something true, whose text
    is the reason, or raises. It runs in a fork of this process, if the system has forks.

    Args:
        function: the check.
        classes: classes for opening tapes.

    Attributes:
        name: the name of the function.
    """

    def __init__(self, function: Callable[[Tape], Any], classes: Classes) -> None:
        self.name = getattr(function, "__qualname__", "a function")
        self._function = function
        self._classes = classes

    def run(self, path: str, seconds: float) -> Outcome:
        """Runs the function on a tape in a new fork."""
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
        elapsed = time.monotonic() - began
        if reason is None:
            return Outcome("passed", seconds=elapsed)
        return Outcome("failed", (reason,) if reason else (), elapsed)

    def _reason(self, path: str) -> str | None:
        """Why a tape fails; None if it passes."""
        import torch

        torch.manual_seed(0)
        random.seed(0)
        with open_tape(path, classes=self._classes) as tape:
            try:
                result = self._function(tape)
                reason = "the check returned true" if result is True else str(result)
                return normalised(reason) if result else None
            except (Exception, SystemExit) as error:
                return normalised("".join(traceback.format_exception_only(error)))


def _signal_text(code: int) -> str:
    number = -code if code < 0 else code - _SIGNALS
    with suppress(ValueError):
        return f"ended by {signal.Signals(number).name}"
    return f"exit code {code}"


def normalised(text: str) -> str:
    """A message with ``#`` for each number, and for each row of numbers, because these depend on
    sizes, values and memory addresses."""
    valid = text[: 20 * _MAX_TEXT].encode("utf-8", "backslashreplace").decode()
    plain = _ADDRESS.sub("0x", _COLOURS.sub("", valid))
    plain = _NUMBERS.sub("#", _NUMBER.sub("#", " ".join(plain.split())))
    return plain[:_MAX_TEXT]


Check = CommandCheck | FunctionCheck
