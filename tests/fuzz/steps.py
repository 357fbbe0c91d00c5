"""One step after another of reading a tape, and what none of them may do: raise anything but
``TapeError``, print what a terminal obeys, take long, or take much memory."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import resource
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calltape_analyzer import TapeError

__all__ = ["BYTES", "SECONDS", "Finding", "Outcome", "Steps", "WrongAnswerError", "measured"]

SECONDS, BYTES = 2.0, 300 * 1000 * 1000
"""More than one mutant may take: of processor time to open it and ask what each mutant is asked, or
for one group of dear questions, or for one command; of memory all that is read together."""


class WrongAnswerError(AssertionError):
    """Two ways to ask the same thing gave two answers."""


@dataclass(frozen=True)
class Finding:
    """What should not have been: ``kind`` groups findings of one cause."""

    step: str
    kind: str
    text: str


@dataclass
class Outcome:
    """What reading one tape gave.

    Attributes:
        findings: everything that should not have been.
        kinds: how often which kind of ``TapeError`` was met.
        steps: the names of all steps that were taken.
        seconds: processor time of the slowest step, and its name.
        total: processor time of the longest session (see ``SECONDS``).
        rise: bytes by which the memory of the process rose at most.
    """

    findings: list[Finding] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    steps: set[str] = field(default_factory=set)
    seconds: tuple[float, str] = (0.0, "")
    total: float = 0.0
    rise: int = 0

    def limited(self, seconds: float = SECONDS, nbytes: int = BYTES) -> None:
        """Adds what took more than a mutant may to the findings."""
        if self.total > seconds:
            text = f"{self.total:.1f} s, of which {self.seconds[0]:.1f} s in {self.seconds[1]}"
            self.findings.append(Finding(self.seconds[1], f"slow in {self.seconds[1]}", text))
        if self.rise > nbytes:
            self.findings.append(Finding("", "large", f"{self.rise / 1e6:.0f} MB"))


class Steps:
    """Takes steps, and notes what came of each in an :class:`Outcome`."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self._spent = 0.0

    def begin(self) -> None:
        """What comes is another session."""
        self._spent = 0.0

    def step(self, name: str, ask: Callable[[], Any]) -> Any:
        """What ``ask`` returns; None where it raised."""
        self.outcome.steps.add(name)
        began = _cpu_seconds()
        try:
            return ask()
        except TapeError as error:
            kinds = self.outcome.kinds
            kinds[error.kind] = kinds.get(error.kind, 0) + 1
            self.text(name, str(error))
            for problem in error.problems:
                self.text(name, str(problem))
        except Exception as error:
            self.untyped(name, error)
        finally:
            took = _cpu_seconds() - began
            self._spent += took
            self.outcome.total = max(self.outcome.total, self._spent)
            self.outcome.seconds = max(self.outcome.seconds, (took, name))
        return None

    def untyped(self, name: str, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "calltape" in f.filename] or frames
        where = f"{os.path.basename(ours[-1].filename)}:{ours[-1].name}"
        if isinstance(error, WrongAnswerError):
            where = name
        text = "".join(traceback.format_exception(error)[-6:])
        self.found(name, f"{type(error).__name__} in {where}", text)

    def text(self, name: str, text: str) -> None:
        """Notes a text for people with a character that a terminal acts on."""
        if text.isprintable():
            return
        bad = {c for line in text.split("\n") for c in line if not c.isprintable()}
        if bad:
            self.found(name, f"raw {sorted(bad)!r:.60} in {name}", repr(text)[:300])

    def found(self, name: str, kind: str, text: str) -> None:
        self.outcome.findings.append(Finding(name, kind, text))

    def shown(self, name: str, value: Callable[[], Any]) -> None:
        text = self.step(name, lambda: str(value()))
        if text is not None:
            self.text(name, text)


def _cpu_seconds() -> float:
    """Processor time of this thread: a machine may be busy."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


class _Memory:
    """The memory of a process, which Linux tells in files. They stay open: a mutant takes
    milliseconds."""

    def __init__(self, process: int) -> None:
        self._status = os.open(f"/proc/{process}/status", os.O_RDONLY | os.O_CLOEXEC)
        self._peaks = os.open(f"/proc/{process}/clear_refs", os.O_WRONLY | os.O_CLOEXEC)

    def now(self) -> int:
        """How many bytes it has; from here on they are its peak."""
        os.write(self._peaks, b"5")
        return self._field(b"VmRSS:")

    def peak(self) -> int:
        return self._field(b"VmHWM:")

    def _field(self, name: bytes) -> int:
        _, _, rest = os.pread(self._status, 8192, 0).partition(name)
        return int(rest.split(maxsplit=1)[0]) * 1024


@functools.lru_cache(1)
def _memory_of(process: int) -> _Memory | None:
    return _Memory(process) if Path(f"/proc/{process}/clear_refs").exists() else None


@contextlib.contextmanager
def measured(outcome: Outcome) -> Iterator[None]:
    """Notes by how much the process grew at its peak, and keeps stderr quiet."""
    memory = _memory_of(os.getpid())
    before = 0 if memory is None else memory.now()
    with contextlib.redirect_stderr(io.StringIO()):
        yield
    outcome.rise = 0 if memory is None else max(memory.peak() - before, 0)
