"""How much time and memory a command may spend on reading: what its files are worth, and no more.

Limits bound single parts of a tape; this bounds what nobody thought of. A thread looks now and then
at what was spent since the last look. What is spent on importing (torch takes seconds) is not the
tape's.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import FrameType

from calltape_analyzer.interruption import is_finalizing, is_importing
from calltape_analyzer.reading.remote_access import received_bytes
from calltape_schema.errors import TapeError

__all__ = [
    "REDACTION_EFFORT",
    "Exceeded",
    "Limits",
    "limits",
    "reading",
    "seconds_for",
    "spent",
]

# A budget is for tapes that mean harm: an honest one is never refused, on a slow machine either. A
# MiB has up to 15,000 calls without values, and the slowest verb takes 0.1 ms for each. Calls with
# thousands of arguments, each time others, take 32 bytes of memory for one of theirs.
_SECONDS, _SECONDS_PER_MEBIBYTE = 4.0, 5.0
_BYTES, _BYTES_PER_BYTE = 2**30, 64
_OF_THE_MACHINE = 0.75  # beyond it, the system ends a process, and not always this one
_MEBIBYTE = 2**20
REDACTION_EFFORT = 10
"""How many times as long as reading redaction may take: what the analysis says of both tapes is
compared, under several keys if it differs, and the new tape is searched for what was removed."""

_LOOK_EVERY = 0.1
_AGAIN_AFTER = 1.0


class Exceeded(BaseException):
    """More was spent than a command may; ``error`` says so. No ``Exception``, because those are
    handled if a call is in the way."""

    def __init__(self, error: TapeError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Limits:
    """What the person at the prompt allows instead: seconds of processor time, and bytes."""

    seconds: float | None = None
    nbytes: int | None = None


limits = Limits()


def seconds_for(nbytes: int, effort: int = 1) -> float:
    """How much processor time files of so many bytes are worth, or the person allows."""
    worth = effort * max(_SECONDS, _SECONDS_PER_MEBIBYTE * nbytes / _MEBIBYTE)
    return worth if limits.seconds is None else limits.seconds


class _Budget:
    """What a thread may spend, and has spent. Of the main thread that is the time and memory of the
    process; of another one its own time, because nobody knows which thread has how much memory."""

    def __init__(self, *, is_main: bool = True) -> None:
        self.tape_bytes = 0
        self.effort = 1
        self.spent = 0.0
        self.grown = 0
        self._clock = time.process_time if is_main else _clock_of_thread()
        self._holds = _held if is_main else lambda: 0
        self._at, self._held = self._clock(), self._holds()
        self._told = float("-inf")
        self._received = received_bytes()

    @property
    def seconds(self) -> float:
        return seconds_for(self._worth, self.effort)

    @property
    def nbytes(self) -> int:
        worth = min(_BYTES + _BYTES_PER_BYTE * self._worth, _most_bytes())
        return worth if limits.nbytes is None else limits.nbytes

    @property
    def _worth(self) -> int:
        """Bytes of local files, and what came of remote ones: a server may claim any size."""
        return self.tape_bytes + received_bytes() - self._received

    def look(self, frame: FrameType | None) -> TapeError | None:
        """Adds up what was spent since the last look. Out comes what is too much, once a second.
        Within a ``__del__`` nothing does: raised there, it would be lost."""
        now, held = self._clock(), self._holds()
        if not is_importing(frame):
            self.spent += now - self._at
            self.grown += held - self._held
        self._at, self._held = now, held
        error = self._error()
        if error is None or now - self._told <= _AGAIN_AFTER or is_finalizing(frame):
            return None
        self._told = now
        return error

    def _error(self) -> TapeError | None:
        if self.spent > self.seconds:
            what = f"reading took more than {self.seconds:.1f} s of processor time"
            option = "--max-seconds 600"
        elif self.grown > self.nbytes:
            what = f"reading took more than {self.nbytes / _MEBIBYTE:.0f} MiB of memory"
            option = "--max-memory 8192"
        else:
            return None
        advice = f"if you trust the tape, allow more: `calltape {option} ...`"
        return TapeError("limit", what, advice=advice)


_current: dict[int, _Budget] = {}
_exceeded: TapeError | None = None


def spent() -> TapeError | None:
    """What the latest block of :func:`reading` spent too much of. A library that calls our code
    back may have made another error of :class:`Exceeded`."""
    return _exceeded


@contextmanager
def reading(paths: Iterable[str], effort: int = 1) -> Iterator[None]:
    """Bounds what this thread spends within, by the size of these files; within another such block,
    theirs is added.

    Args:
        paths: the files.
        effort: how many times as long it may take as to ask each call twice.

    Raises:
        Exceeded: more was spent.
    """
    global _exceeded
    own = threading.get_ident()
    if own in _current:
        _current[own].tape_bytes += _bytes_of(paths)
        yield
        return
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main and not hasattr(time, "pthread_getcpuclockid"):
        yield  # the system has no clock for each thread
        return
    _exceeded = None
    budget = _current[own] = _Budget(is_main=is_main)
    budget.tape_bytes, budget.effort = _bytes_of(paths), effort
    ended, deciding = threading.Event(), threading.Lock()
    raised: list[TapeError] = []

    def watch() -> None:
        global _exceeded
        while not ended.wait(_LOOK_EVERY):
            error = budget.look(sys._current_frames().get(own))
            with deciding:
                if error is not None and not ended.is_set():
                    _exceeded = error
                    raised.append(error)
                    _raise_in(own, error)

    watching = threading.Thread(target=watch, name="calltape-budget", daemon=True)
    try:
        watching.start()
        yield
    finally:
        while True:  # what the watching thread raises may come at any moment
            try:
                ended.set()
                with deciding:  # from here on nothing more is raised
                    last = raised[-1:]
                raised.clear()
                for error in last:
                    # It takes the place of one that did not come yet, and so none is left behind.
                    _raise_in(own, error)
                    while True:
                        time.sleep(0)
                break
            except Exceeded:
                continue
        watching.join()
        del _current[own]


def _clock_of_thread() -> Callable[[], float]:
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def _raise_in(thread: int, error: TapeError) -> None:
    """Raises Exceeded in another thread, between two instructions of Python. What is raised so
    cannot be taken back: CPython 3.11 would look for it for ever, and hang under a profiler."""
    # The interpreter makes the exception there, from a class and without arguments.
    made = {"__init__": lambda self: Exceeded.__init__(self, error)}
    kind = ctypes.py_object(type("Exceeded", (Exceeded,), made))
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)


def _bytes_of(paths: Iterable[str]) -> int:
    """What the files take on disk: a hole is worth nothing."""
    total = 0
    for path in paths:
        try:
            found = os.stat(path)
        except OSError:
            continue
        total += min(found.st_size, getattr(found, "st_blocks", found.st_size) * 512)
    return total


@cache
def _most_bytes() -> int:
    """What one process may hold of the machine's memory, and the first GiB in any case."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize
    return max(_BYTES, int(machine * _OF_THE_MACHINE))


def _held() -> int:
    """Bytes of memory that are the process's own; files that are mapped are not."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
