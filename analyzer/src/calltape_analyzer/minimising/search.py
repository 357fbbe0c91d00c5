"""The search for the smallest tape that fails for the same reason.

A candidate is a tape of some calls. If the check fails for it with the same reason, it becomes the
smallest tape so far. A check is a command or a function that fails for some tapes. It returns why a
tape fails, normalised so that the same failure with other sizes has the same reason, and runs in
another process, where it may crash or hang.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shlex
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from calltape_analyzer.errors import InferenceError, TapeError, UsageError
from calltape_analyzer.exporting.session.sandbox import AnswerError, RunEndedError, Sandbox
from calltape_analyzer.minimising.changed_calls import ChangedCall
from calltape_analyzer.opening import open_tape
from calltape_analyzer.programs.reasons import End
from calltape_analyzer.pytree.classes import Classes
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted
from calltape_analyzer.writing.lineage import Numbering
from calltape_analyzer.writing.new_tape import NewTape
from calltape_analyzer.writing.synthetic import BuiltCall
from calltape_schema.records import Manifest

__all__ = [
    "Check",
    "CheckResult",
    "CommandCheck",
    "FunctionCheck",
    "Search",
    "TimeUpError",
    "fewest",
    "normalised",
    "smallest_number",
    "without_most",
]

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


class CheckResult(NamedTuple):
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

    def run(self, path: str, seconds: float) -> CheckResult:
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
                return CheckResult("time", seconds=time.monotonic() - began)
            finally:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(max(output.seek(0, os.SEEK_END) - _MAX_OUTPUT, 0))
            text = output.read().decode("utf-8", "replace")
        elapsed = time.monotonic() - began
        if code == 0:
            return CheckResult("passed", seconds=elapsed)
        lines = [line[:_MAX_TEXT] for line in _COLOURS.sub("", text).splitlines() if line.strip()]
        if code in _UNTESTABLE:
            reasons = (f"exit code {code}", *map(normalised, lines[-1:]))
            return CheckResult("unusable", reasons, elapsed)
        if code < 0 or code > _SIGNALS:
            return CheckResult("failed", (_signal_text(code),), elapsed)
        matches = map(_EXCEPTION.search, reversed(lines))
        exceptions = dict.fromkeys(normalised(match[0]) for match in matches if match is not None)
        reasons = tuple(exceptions)[:_MAX_REASONS] or (f"exit code {code}",)
        return CheckResult("failed", reasons, elapsed)


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

    def run(self, path: str, seconds: float) -> CheckResult:
        """Runs the function on a tape in a new fork."""
        began = time.monotonic()
        try:
            with Sandbox(lambda question, _: self._reason(question), "cpu") as sandbox:
                reason: str | None = sandbox.ask(path, seconds)
        except RunEndedError as error:
            if error.ended.end is End.LATE:
                return CheckResult("time", seconds=time.monotonic() - began)
            reason = f"ended by {error.ended.how}"
        except AnswerError as error:
            reason = str(error)
        elapsed = time.monotonic() - began
        if reason is None:
            return CheckResult("passed", seconds=elapsed)
        return CheckResult("failed", (reason,) if reason else (), elapsed)

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


_FIRST_SECONDS = 3600.0
_LEAST_SECONDS = 10.0
_TIMES_FIRST = 3.0
_MAX_TAPES = 8
"""How many of the smallest failing tapes stay on disk besides the whole one, in case smaller ones
do not fail again."""
_BY_HAND = "run it by hand on the tape, and see what it prints"


class TimeUpError(Exception):
    """The time limit of the search has passed."""


class Search:
    """A search for the smallest failing tape.

    Args:
        check: the check to run on each candidate.
        folder: a folder for candidates.
        manifest: the manifest of all candidates.
        classes: classes for opening tapes.
        deadline: when to end the search, in terms of ``time.monotonic()``; None for no limit.
        progress: receives a line about each candidate and its outcome.

    Attributes:
        reason: why the tape fails.
        tried: how many times the check was run.
    """

    def __init__(
        self,
        check: Check,
        folder: Path,
        manifest: Manifest,
        *,
        classes: Classes = (),
        deadline: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._check, self._folder = check, folder
        self._manifest, self._classes = manifest, classes
        self._deadline = deadline
        self._seconds = _FIRST_SECONDS
        self._progress = progress or (lambda _: None)
        self._failing: list[str] = []  # paths of failing tapes, the whole one first
        self._in_use: list[str] = []
        self._digests: set[str] = set()
        self._open: Tape | None = None
        self._written = 0
        self.reason = ""
        self.tried = 0

    @property
    def tape(self) -> Tape:
        """The smallest failing tape so far, open."""
        if self._open is None:
            self._open = open_tape(self._failing[-1], classes=self._classes)
        return self._open

    @contextmanager
    def opened(self) -> Iterator[Tape]:
        """Opens the tape that is the smallest one now. It stays on disk within the block, even if
        a smaller one is found."""
        path = self._failing[-1]
        self._in_use.append(path)
        try:
            with open_tape(path, classes=self._classes) as tape:
                yield tape
        finally:
            self._in_use.remove(path)

    def close(self) -> None:
        """Closes the tape."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def begin(self, calls: Iterable[Call], numbering: Numbering) -> None:
        """Runs the check twice on a tape of all calls, to learn why it fails, and on a tape
        without calls.

        Args:
            calls: the calls of the tape to minimise.
            numbering: their new numbers.

        Raises:
            InferenceError: the check passes, or does not fail in the same way each time.
            UsageError: the check cannot be run, takes too long, or also fails without calls.
        """
        path = str(self._folder / "whole.tape")
        with NewTape(path, self._manifest) as writer:
            for call in calls:
                writer.copy(call, number=numbering.number_of(call.ref.tape, call.ref.number))
            writer.seal(closed_ns=self._manifest.created_ns)
        first = self._run_whole(path)
        if first.end == "passed":
            raise InferenceError("nothing fails with this tape", advice="there is nothing to do")
        second = self._run_whole(path)
        shared = [reason for reason in first.reasons if reason in second.reasons]
        if not shared:
            raise InferenceError(
                f"it fails, but not each time in the same way ({first}; {second})",
                advice="make the failure come each time, for instance with fixed seeds",
            )
        self.reason = shared[0]
        # The minimum, because the first run may have been slowed down by cold caches.
        self._seconds = max(_LEAST_SECONDS, _TIMES_FIRST * min(first.seconds, second.seconds))
        self._digests.add(_digest_of(path))
        self._failing.append(path)
        empty = self._write([])
        # Twice, because a flaky check may fail once without calls.
        if all(self._is_same(self._run(empty, "no calls")) for _ in range(2)):
            raise UsageError(f"the check also fails with no calls: {self.reason}", advice=_BY_HAND)

    def _run_whole(self, path: str) -> CheckResult:
        outcome = self._run(path, "the whole tape")
        if outcome.end == "unusable":
            what = "; ".join(outcome.reasons)
            raise UsageError(f"the check cannot be run: {what}", advice=_BY_HAND)
        if outcome.end == "time":
            raise UsageError(
                f"the check of the whole tape takes more than {_FIRST_SECONDS:.0f} s",
                advice="if the failure is a hang, let the check end itself, as `timeout 60` does",
            )
        return outcome

    def keeps(self, what: str, calls: Iterable[Call | BuiltCall]) -> bool:
        """Tries a tape of these calls. If it fails for the same reason, it becomes the smallest
        tape, and the result is true.

        Args:
            what: a description for ``progress``.
            calls: calls of :attr:`tape`, or changed ones.

        Raises:
            TimeUpError: the time limit has passed.
        """
        self._check_deadline()
        try:
            path = self._write(calls)
        except TapeError as error:
            if error.kind == "io":
                raise
            return False  # the format does not allow such a call
        digest = _digest_of(path)
        is_new, fails = digest not in self._digests, False
        self._digests.add(digest)
        if is_new:
            outcome = self._run(path, what)
            if outcome.end == "time":
                self._check_deadline()
            fails = self._is_same(outcome)
        if fails:
            self.close()
            self._failing.append(path)
            for old in [path for path in self._failing[1:-_MAX_TAPES] if path not in self._in_use]:
                self._failing.remove(old)
                Path(old).unlink()
        else:
            Path(path).unlink(missing_ok=True)
        return fails

    def keeps_changed(
        self, what: str, calls: Iterable[Call], changed: Mapping[int, ChangedCall]
    ) -> bool:
        """Tries a tape on which some calls, given by their positions, are changed. False if none
        is."""
        candidate = (changed[i].built() if i in changed else call for i, call in enumerate(calls))
        return bool(changed) and self.keeps(what, candidate)

    def _is_same(self, outcome: CheckResult) -> bool:
        return outcome.end == "failed" and self.reason in outcome.reasons

    def confirm(self) -> int:
        """Runs the check again on the smallest tape. While it passes, the next larger tape is
        tried, up to the whole one.

        Returns:
            How many tapes did not fail again.

        Raises:
            InferenceError: no tape fails any more.
        """
        self._deadline = None  # it limits only the search
        for passed in range(len(self._failing)):
            if self._is_same(self._run(self._failing[-1], "once more")):
                return passed
            self.close()
            if len(self._failing) > 1:
                self._failing.pop()
        raise InferenceError(
            "it failed at first, and does not any more", advice="make the failure come each time"
        )

    def _run(self, path: str, what: str) -> CheckResult:
        seconds = self._seconds
        if self._deadline is not None and self._failing:
            seconds = max(min(seconds, self._deadline - time.monotonic()), 0.1)
        outcome = self._check.run(path, seconds)
        self.tried += 1
        self._progress(f"{what}: {'kept' if self._is_same(outcome) else outcome}")
        return outcome

    def _write(self, calls: Iterable[Call | BuiltCall]) -> str:
        self._written += 1
        path = str(self._folder / f"{self._written:06}.tape")
        with NewTape(path, self._manifest, overwrite=True) as writer:
            for call in calls:
                if isinstance(call, Call):
                    writer.copy(call)
                else:
                    writer.write(call.record, call.values)
            writer.seal(closed_ns=self._manifest.created_ns)
        return path

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise TimeUpError

    def __str__(self) -> str:
        return f"{counted(len(self.tape), 'call')}, {os.path.getsize(self._failing[-1]):,} bytes"


def _digest_of(path: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


T = TypeVar("T")


def fewest(parts: Sequence[T], enough: Callable[[list[T]], bool]) -> list[T]:
    """A subset from which no part can be removed, by delta debugging. If one of n parts is enough,
    finding it takes about 2 log2(n) tries.

    Args:
        parts: at least one part; together they are enough.
        enough: whether a subset is enough.
    """
    parts_kept, count = list(parts), 2
    while len(parts_kept) > 1:
        bounds = [len(parts_kept) * i // count for i in range(count + 1)]
        pieces = [parts_kept[a:b] for a, b in pairwise(bounds)]
        rests = [parts_kept[:a] + parts_kept[b:] for a, b in pairwise(bounds)]
        smaller = next((piece for piece in pieces if enough(piece)), None)
        if smaller is not None:
            parts_kept, count = smaller, 2
            continue
        smaller = next((piece for piece in rests if enough(piece)), None) if count > 2 else None
        if smaller is not None:
            parts_kept, count = smaller, max(count - 1, 2)
        elif count >= len(parts_kept):
            break
        else:
            count = min(2 * count, len(parts_kept))
    return parts_kept


def without_most(
    parts: Sequence[T], enough: Callable[[list[T]], bool], *, tries: int = 200
) -> list[T]:
    """A small subset that is enough, which may be empty: all parts are left out, then halves, then
    halves of these.

    Args:
        parts: parts that are enough together.
        enough: whether a subset is enough.
        tries: how often to ask at most.
    """
    parts_kept = list(range(len(parts)))
    queue = [list(parts_kept)] if parts else []
    while queue and tries > 0:
        chunk = queue.pop(0)
        left_out = set(chunk)
        candidates = [i for i in parts_kept if i not in left_out]
        tries -= 1
        if enough([parts[i] for i in candidates]):
            parts_kept = candidates
        elif len(chunk) > 1:
            queue += [chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]]
    return [parts[i] for i in parts_kept]


def smallest_number(number: int, unit: int, enough: Callable[[int], bool]) -> int:
    """The smallest number that is enough, if all larger numbers are: first the smallest ones are
    tried, then a bisection.

    Args:
        number: a number that is enough.
        unit: multiples of it are tried first, then any number.
        enough: whether a number above 0 is enough.
    """
    for step in dict.fromkeys((unit, 1)):
        low = 0
        for small in (step, 2 * step):
            if low < small < number:
                if enough(small):
                    number = small
                    break
                low = small
        while number - low > step:
            middle = low + max((number - low) // (2 * step), 1) * step
            if enough(middle):
                number = middle
            else:
                low = middle
    return number
