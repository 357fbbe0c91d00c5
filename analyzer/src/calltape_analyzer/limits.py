"""How much time and memory reading may take: as much as the size of the files allows.

Limits bound single parts of a tape; this bounds what nobody thought of. A thread looks now and then
at what was spent since the last look. What is spent on importing (torch takes seconds) is not the
tape's. A command is bounded as a whole, and every call of the API by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from types import FrameType
from typing import Any, TypeVar, cast

from typing_extensions import ParamSpec, Self

from calltape_analyzer.interruption import is_finalizing, is_importing
from calltape_schema.bounds import allow
from calltape_schema.errors import TapeError
from calltape_schema.remedies import Remedy

__all__ = [
    "LEAST_BYTES",
    "LEAST_SECONDS",
    "REDACTION_EFFORT",
    "SECONDS_PER_MEBIBYTE",
    "Allowance",
    "Exceeded",
    "Limits",
    "Spending",
    "add_allowance",
    "advice_to_allow",
    "bounded",
    "check_memory",
    "current",
    "limits",
    "memory_limit_of",
    "metered",
    "most_bytes",
    "reading",
    "received_bytes",
    "seconds_for",
    "spent",
]

P = ParamSpec("P")
R = TypeVar("R")

# A budget is for tapes that mean harm: an honest one is never refused, on a slow machine either. A
# MiB has up to 15,000 calls without values, and the slowest verb takes 0.1 ms for each. Calls with
# thousands of arguments, each time others, take 32 bytes of memory for one of theirs.
LEAST_SECONDS, SECONDS_PER_MEBIBYTE = 4.0, 5.0
_BYTES, _BYTES_PER_BYTE = 2**30, 64
_LEAST_GROWTH = 2**26  # of what else a process does meanwhile
_OF_THE_MACHINE = 0.75  # beyond it, the system ends a process, and not always this one
_MEBIBYTE = 2**20
REDACTION_EFFORT = 5
"""How many times as long as reading redaction may take: the tape is read twice and the new one
once, and a bundle says what is on it."""

LEAST_BYTES = 192 * 1024 * 1024
"""How many bytes may be made for one call of a small tape that are not on it."""
TIMES_TAPE = 4

LOOK_EVERY = 0.1
_AGAIN_AFTER = 1.0


class Exceeded(BaseException):
    """More was spent than a command may; ``error`` says so. No ``Exception``, because those are
    handled if a call is in the way."""

    def __init__(self, error: TapeError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Limits:
    """What reading tapes may cost, if that is not to follow from their size.

    Hand it to ``open_tape(..., limits=...)``, and it holds for all questions about that tape. Or
    ask within ``with Limits(...):``, and it holds for every call of calltape there, in this thread
    or task. What is more than a limit is a :class:`TapeError` of the kind ``limit``.

    Attributes:
        seconds: of processor time that one call of the API, or a command, may take. By default 4,
            or 5 per MiB of the tapes.
        nbytes: of memory that it may take; that may be made for one call and are not on the tape;
            and that all compressed tapes which are open may be when they are decompressed. By
            default 1 GiB and 64 times the tapes; 192 MiB, or four times the tape; 256 MiB, or 64
            times the files.
        format_times: how many times as much a tape may have of what the format limits for
            strangers: bytes of a document, nodes of a tree, calls of a group, ... (FORMAT.md §10).
    """

    seconds: float | None = None
    nbytes: int | None = None
    format_times: int = 1

    def __enter__(self) -> Self:
        _entered.set((*_entered.get(), self))
        allow(self.format_times)
        return self

    def __exit__(self, *_: object) -> None:
        _entered.set(_entered.get()[:-1])
        allow(limits().format_times)


_entered: ContextVar[tuple[Limits, ...]] = ContextVar("limits", default=(Limits(),))


def limits() -> Limits:
    """The limits that hold here."""
    return _entered.get()[-1]


def seconds_for(nbytes: int, effort: int = 1) -> float:
    """The processor time in seconds for reading files of this many bytes, unless the user set a
    limit."""
    allowed = effort * max(LEAST_SECONDS, SECONDS_PER_MEBIBYTE * nbytes / _MEBIBYTE)
    seconds = limits().seconds
    return allowed if seconds is None else seconds


_received = [0]


def received_bytes(more: int = 0) -> int:
    """How many bytes of remote files this process received, with ``more`` that just came. Of two
    threads that tell it at once, one may be forgotten: it is a measure, no count."""
    _received[0] += more
    return _received[0]


class Allowance:
    """What questions about a tape may cost.

    Attributes:
        limits: that were given with the tape.
        exceeded: how often a question took more than it may: each time halves the seconds of the
            next one, so that asking a bad tape many questions has an end, too.

    Args:
        nbytes: gives the size of its files.
        is_forged: looks whether what its files say of their calls is not so.
    """

    def __init__(
        self,
        nbytes: Callable[[], int],
        limits_given: Limits | None = None,
        is_forged: Callable[[], bool] = bool,
    ) -> None:
        self.nbytes = nbytes
        self.limits = limits_given
        self.is_forged = is_forged
        self.exceeded = 0


class Spending:
    """What a thread may spend, and has spent.

    Args:
        is_process: whether the time of all threads counts, as in a command; else that of this one.
        effort: how many times as long it may take as to ask each call twice.
        halvings: how many times the seconds are halved.
    """

    def __init__(self, *, is_process: bool = True, effort: int = 1, halvings: int = 0) -> None:
        self.tape_bytes = 0
        self.effort = effort
        self.spent = 0.0
        self.grown = 0
        self.is_process = is_process
        self.limits = limits()
        self.raised: list[TapeError] = []
        self.deciding = threading.Lock()
        self.has_ended = self.is_settled = False
        self._share = 0.5**halvings
        self._clock = time.process_time if is_process else clock_of_thread()
        self._looked_at, self._of_all = self._clock(), time.process_time()
        # To ask takes longer than most calls of the API do.
        self._memory: int | None = memory_now() if is_process else None
        self._told = float("-inf")
        self._received = received_bytes()

    @property
    def seconds(self) -> float:
        with self.limits:
            return self._share * seconds_for(self._allowance, self.effort)

    @property
    def nbytes(self) -> int:
        allowed = min(_BYTES + _BYTES_PER_BYTE * self._allowance, most_bytes())
        limit = self.limits.nbytes
        return allowed if limit is None else limit if self.is_process else max(limit, _LEAST_GROWTH)

    @property
    def _allowance(self) -> int:
        """Bytes of local files, and what came of remote ones: a server may claim any size."""
        return self.tape_bytes + received_bytes() - self._received

    def look(self, frame: FrameType | None) -> TapeError | None:
        """Adds up what was spent since the last look. Returns what is too much, once a second.
        Within a ``__del__`` nothing does: raised there, it would be lost."""
        try:
            now = self._clock()
        except OSError:  # its thread ended just now, and has no clock any more
            return None
        memory, of_all = memory_now(), time.process_time()
        if not is_importing(frame):
            self.spent += now - self._looked_at
            # Nobody knows which thread has how much memory: it is that of the one that works most.
            if self._memory is not None and now - self._looked_at >= (of_all - self._of_all) / 2:
                self.grown += memory - self._memory
        self._looked_at, self._memory, self._of_all = now, memory, of_all
        error = self._error()
        if error is None or now - self._told <= _AGAIN_AFTER or is_finalizing(frame):
            return None
        self._told = now
        return error

    def _error(self) -> TapeError | None:
        if self.spent > self.seconds:
            return _too_slow(self.seconds)
        if self.grown > self.nbytes:
            what = f"reading took more than {self.nbytes / _MEBIBYTE:.0f} MiB of memory"
            return TapeError(
                "limit", what, advice=advice_to_allow("nbytes=2**33", "--max-memory 8192")
            )
        return None


def advice_to_allow(limit: str, option: str) -> Remedy:
    """What to do about a limit: the value to pass to :class:`Limits`, and the option of the
    command."""
    return Remedy(f"open_tape(..., limits=Limits({limit}))", f"`calltape {option} ...`").after(
        "if you trust the tape, allow more: "
    )


def memory_limit_of(tape_bytes: int) -> int:
    """How many bytes may be made for one call of a tape of this size in bytes: a leaf of a few
    bytes may claim 2^63 elements, because its value was not kept, or it is expanded."""
    limit = limits().nbytes
    return max(LEAST_BYTES, TIMES_TAPE * tape_bytes) if limit is None else limit


def check_memory(limit: int | None, shapes: Sequence[tuple[Sequence[int], int]], what: str) -> None:
    """Raises if tensors would take more memory than the limit.

    Args:
        limit: in bytes; None if there is no limit.
        shapes: for each tensor its sizes, and the bytes of one element.
        what: names the tensors in the message.

    Raises:
        TapeError: ``limit``.
    """
    needed = sum(math.prod(shape) * width for shape, width in shapes)
    if limit is not None and needed > limit:
        raise TapeError(
            "limit",
            f"{what} would take {needed:,} bytes, which are not on the tape (at most {limit:,})",
            advice=advice_to_allow(f"nbytes={needed}", f"--max-memory {-(-needed // 2**20)}"),
        )


_current: dict[int, Spending] = {}
_starting = threading.Lock()
_watching: threading.Thread | None = None
_exceeded: TapeError | None = None


def current() -> Spending | None:
    """The budget that this thread reads with; None outside of :func:`reading`."""
    return _current.get(threading.get_ident())


def spent() -> TapeError | None:
    """What the latest block of :func:`reading` spent too much of. A library that calls our code
    back may have made another error of :class:`Exceeded`."""
    return _exceeded


@contextmanager
def reading(paths: Iterable[str], effort: int = 1) -> Iterator[None]:
    """Bounds what a command spends within, by the size of these files; within another such block,
    theirs is added.

    Args:
        paths: the files.
        effort: how many times as long it may take as to ask each call twice.

    Raises:
        Exceeded: more was spent.
    """
    thread = threading.get_ident()
    if thread in _current:
        _current[thread].tape_bytes += _bytes_of(paths)
        yield
        return
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main and not _HAS_CLOCKS:
        yield
        return
    spending = Spending(is_process=is_main, effort=effort)
    spending.tape_bytes = _bytes_of(paths)
    try:
        _begin(thread, spending)
        yield
    finally:
        try:
            _settle(thread, spending)
        except Exceeded:
            _settle(thread, spending)
            raise


def bounded(effort: int = 1) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function of the API that may take what the tapes among its arguments allow: those
    that have an :class:`Allowance` as their ``_allowance``. Within a call that is bounded already,
    nothing is added.

    Args:
        effort: as for :func:`reading`.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            thread = threading.get_ident()
            if thread in _current:
                return function(*args, **kwargs)
            values = [_allowance_of(value) for value in (*args, *kwargs.values())]
            allowances = [allowance for allowance in values if allowance is not None]
            given_limits = next(
                (allowance.limits for allowance in allowances if allowance.limits is not None), None
            )
            with nullcontext() if given_limits is None else given_limits:
                if not _HAS_CLOCKS:
                    return function(*args, **kwargs)
                halvings = max((allowance.exceeded for allowance in allowances), default=0)
                spending = Spending(is_process=False, effort=effort, halvings=halvings)
                spending.tape_bytes = sum(allowance.nbytes() for allowance in allowances)
                result: list[R] = []
                try:
                    try:
                        _begin(thread, spending)
                        result.append(function(*args, **kwargs))
                    finally:
                        _settle(thread, spending)
                except (Exception, Exceeded) as error:
                    _settle(thread, spending)
                    # A library may have made another error of it, and somebody may have handled it.
                    if not spending.raised:
                        reported = _error_for_caller(error, allowances)
                        if reported is None:
                            raise
                        raise reported from error
                if not spending.raised:
                    return result[0]
            for allowance in allowances:
                allowance.exceeded += 1
            raise spending.raised[-1] from None

        return run

    return decorated


def _error_for_caller(error: BaseException, allowances: Sequence[Allowance]) -> TapeError | None:
    """The error of a tape that is the cause of one of another kind; None if no tape is."""
    if isinstance(error, TapeError) or not allowances:
        return None
    if isinstance(error, MemoryError):
        return TapeError("limit", "there is not enough memory for this")
    with contextlib.suppress(TapeError):
        if any(allowance.is_forged() for allowance in allowances):
            reason = "the answer relied on what a file claims about its calls, which is false"
            advice = Remedy("open it with scan=True", "pass --scan").after(
                "its damage says more; ask again, or "
            )
            return TapeError("damaged", reason, advice=advice)
    return None


def metered(items: Iterable[R], allowances: Sequence[Allowance]) -> Iterator[R]:
    """The items, as long as making them takes no more time than the tapes allow together.
    Within a call that is bounded already, nothing is added.

    Raises:
        TapeError: ``limit``.
    """

    def allowed() -> float:
        given_limits = next(
            (allowance.limits for allowance in allowances if allowance.limits is not None), limits()
        )
        with given_limits:
            return seconds_for(sum(allowance.nbytes() for allowance in {*allowances}))

    # Passed time is never less than processor time, and a tenth as dear to ask for: only where it
    # goes beyond what is allowed, processor time is counted from then on.
    thread, clock, spent, seconds = threading.get_ident(), time.perf_counter, 0.0, allowed()
    iterator, nothing = iter(items), cast("R", object())
    while True:
        began = clock()
        item = next(iterator, nothing)
        if item is nothing:
            return
        spent += clock() - began
        if spent > seconds and thread not in _current:
            seconds = allowed()  # more of a remote file may have come
            if spent > seconds and clock is time.thread_time:
                raise _too_slow(seconds)
            if spent > seconds:
                clock, spent = time.thread_time, 0.0
        yield item


def _too_slow(seconds: float) -> TapeError:
    what = f"reading took more than {seconds:.1f} s of processor time"
    return TapeError("limit", what, advice=advice_to_allow("seconds=600", "--max-seconds 600"))


def _allowance_of(value: Any) -> Allowance | None:
    if type(value) is Limits:
        return Allowance(int, value)
    allowance = (
        getattr(value, "_allowance", None) if type(value).__module__.startswith(_OURS) else None
    )
    return allowance if isinstance(allowance, Allowance) else None


_OURS = __name__.partition(".")[0]


def add_allowance(nbytes: int) -> None:
    """Adds the bytes of a file that a call of the API opened to what that may take."""
    spending = current()
    if spending is not None and not spending.is_process:
        spending.tape_bytes += nbytes


def _begin(thread: int, spending: Spending) -> None:
    """Has what this thread spends from now on looked at, until :func:`_settle`."""
    global _exceeded, _watching
    _exceeded = None
    with _starting:
        _current[thread] = spending
        if _watching is None or not _watching.is_alive():
            _watching = threading.Thread(target=_watch, name="calltape-budget", daemon=True)
            _watching.start()


def _settle(thread: int, spending: Spending) -> None:
    """Ends the budget of this thread. What the watching thread raises may come at any moment, also
    where this begins: then it is to be called again. Nothing is raised afterwards."""
    while True:
        try:
            spending.has_ended = True
            with spending.deciding:  # from here on nothing more is raised
                last = spending.raised[-1:]
            if last and not spending.is_settled:
                spending.is_settled = True
                # It takes the place of one that did not come yet, and so none is left behind.
                _raise_in(thread, last[0])
                while True:
                    time.sleep(0)
            break
        except Exceeded:
            continue
    _current.pop(thread, None)


def _watch() -> None:
    """Looks at all budgets, as long as there are any."""
    global _exceeded, _watching
    while True:
        time.sleep(LOOK_EVERY)
        with _starting:
            budgets = list(_current.items())
            if not budgets:
                _watching = None
                return
        frames = sys._current_frames()
        for thread, spending in budgets:
            error = spending.look(frames.get(thread))
            with spending.deciding:
                if error is not None and not spending.has_ended:
                    _exceeded = error
                    spending.raised.append(error)
                    _raise_in(thread, error)
        del frames  # they hold what the calls have


def _renew() -> None:
    """In a fork, nobody watches, and the lock may be held by a thread that does not exist there."""
    global _starting, _watching
    _starting, _watching = threading.Lock(), None
    _current.clear()


os.register_at_fork(after_in_child=_renew)

_HAS_CLOCKS = hasattr(time, "pthread_getcpuclockid")
"""Whether the system has a clock for each thread."""


def clock_of_thread() -> Callable[[], float]:
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def _raise_in(thread: int, error: TapeError) -> None:
    """Raises Exceeded in another thread, between two instructions of Python. What is raised so
    cannot be taken back: CPython 3.11 would look for it for ever, and hang under a profiler."""
    # The interpreter makes the exception there, from a class and without arguments.
    members = {"__init__": lambda self: Exceeded.__init__(self, error)}
    kind = ctypes.py_object(type("Exceeded", (Exceeded,), members))
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)


def _bytes_of(paths: Iterable[str]) -> int:
    """What the files take on disk: a hole is worth nothing."""
    total = 0
    for path in paths:
        try:
            facts = os.stat(path)
        except OSError:
            continue
        total += min(facts.st_size, getattr(facts, "st_blocks", facts.st_size) * 512)
    return total


@cache
def most_bytes() -> int:
    """What one process may hold of the machine's memory, and the first GiB in any case."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize
    return max(_BYTES, int(machine * _OF_THE_MACHINE))


def memory_now() -> int:
    """Bytes of memory that are the process's own; files that are mapped are not."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
