"""Runs of a model with synthetic arguments, which must not end this process.

With an argument that points to nothing, a native kernel reads beyond its memory, loops forever or
takes all memory. Takes a function that answers questions. It runs in a fork of this process, which
has the model already, answers many questions, and is replaced when it dies. Returns the answers, or
how the fork ended. Changes that a run makes in the fork are not visible here.

Where a fork is not safe (a model on CUDA, a system other than Linux), the function runs here.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import io
import os
import pickle
import random
import re
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from calltape_analyzer.exporting.session.budget import time_limit
from calltape_analyzer.programs.reasons import End, Ended

__all__ = ["AnswerError", "RunEndedError", "Sandbox", "half_of_free", "may_fork"]

Say = Callable[[str], None]
"""Is called with what a run does next."""

_OWN = "calltape_analyzer.", "calltape_schema."
_HEAD = 8
"""The bytes of a message that contain its length."""
_CHUNK = 2**20
_POLL = 0.2
"""Seconds between checks whether the fork lives."""
_START_SECONDS, FIRST_SECONDS = 20.0, 60.0
"""Seconds that a fork gets to start, and for the first question."""
_MAX_FORKS = 3
"""How many forks are tried, because another thread may happen to hold a lock when one starts."""
_PARENT_DEATH_SIGNAL = 1
_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)\b[^/]*\.so[^/]*$")
_PAUSE_SOFT = 1
_LEAST_ADDRESSES = 2**28
"""Bytes of address space that a fork may take in any case."""


unusable_because: list[str] = []
"""Why forks of this process do not work, once that was found."""


class RunEndedError(Exception):
    """A run did not finish.

    Attributes:
        ended: how it ended.
        doing: what it did then, if it reported that.
    """

    def __init__(self, ended: Ended, doing: str = "") -> None:
        super().__init__(str(ended))
        self.ended = ended
        self.doing = doing


class AnswerError(RuntimeError):
    """A function raised an error, and its process lives."""


def may_fork(device: str) -> bool:
    """Whether a fork of this process can run a model on a device."""
    import torch

    if unusable_because or sys.platform != "linux" or not device.startswith("cpu"):
        return False
    # A context of CUDA does not outlive a fork.
    return not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


class Sandbox:
    """Answers questions in a fork of this process, which ends with the block: a context manager.

    Args:
        function: answers a question with plain data.
        device: of the model that it runs. If that rules out a fork, the function runs here.
        first: a question that was already answered in this process. If other threads run here, one
            of them may hold a lock when a fork starts. A fork that does not answer it is discarded.
        begin: is called once in each fork, before the first question.
    """

    def __init__(
        self,
        function: Callable[[Any, Say], Any],
        device: str,
        first: Any = None,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self._function = function
        self._forks = may_fork(device)
        self._first = first
        self._begin = begin
        self._fork: _Fork | None = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def runs_here(self) -> bool:
        """Whether the function runs in this process."""
        return not self._forks

    def ask(self, question: Any, seconds: float) -> Any:
        """The answer of the function.

        Args:
            question: for the function.
            seconds: how long it may take.

        Raises:
            RunEndedError: the run ended the fork, or took too long and was stopped.
            AnswerError: the function raised an error, or its answer cannot be sent.
        """
        if self._fork is None and self._forks:
            self._fork = self._start_fork()
        if self._fork is None:
            try:
                with time_limit(seconds):
                    return self._function(question, lambda _: None)
            except TimeoutError:
                raise RunEndedError(Ended(End.LATE, seconds=seconds)) from None
        try:
            return self._fork.ask(question, seconds)
        except AnswerError:
            raise
        except BaseException:  # it died or does not finish; or Ctrl-C
            self.close()
            raise

    def _start_fork(self) -> _Fork | None:
        """A new fork; None if the system refuses, or no fork can answer the first question."""
        reason = ""
        for _ in range(_MAX_FORKS):
            try:
                fork = _Fork(self._function, self._begin)
            except OSError:
                break
            try:
                fork.receive(_START_SECONDS)
                if self._first is not None and threading.active_count() > 1:
                    fork.ask(self._first, FIRST_SECONDS)
                    self._first = None
            except RunEndedError as error:
                fork.end()
                reason = str(error)
            except BaseException:
                fork.end()
                raise
            else:
                return fork
        else:
            unusable_because.append(reason)
        self._forks = False
        return None

    def close(self) -> None:
        """Ends the fork, if there is one."""
        if self._fork is not None:
            self._fork.end()
            self._fork = None


class _Fork:
    """A fork of this process that answers questions until it is ended."""

    def __init__(
        self, function: Callable[[Any, Say], Any], begin: Callable[[], None] | None
    ) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # buffered output would be written twice
                stream.flush()
        room, threads = int(2 * half_of_free()), _threads_after_fork()
        state = random.getstate()  # a fork gets another one
        question_pipe, answer_pipe = os.pipe(), os.pipe()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns of a fork beside other threads
                self._process = os.fork()
        except BaseException:
            for end in (*question_pipe, *answer_pipe):
                os.close(end)
            raise
        if not self._process:
            try:
                os.close(question_pipe[1])
                os.close(answer_pipe[0])
                random.setstate(state)
                _isolate(room, threads)
                if begin is not None:
                    begin()
                _answer_all(function, question_pipe[0], answer_pipe[1])
            finally:
                os._exit(1)
        os.close(question_pipe[0])
        os.close(answer_pipe[1])
        self._questions, self._answers = question_pipe[1], answer_pipe[0]
        self._code = 0
        self._doing = ""

    def ask(self, question: Any, seconds: float) -> Any:
        """The answer to a question.

        Raises:
            RunEndedError, AnswerError: as :meth:`Sandbox.ask`.
        """
        try:
            _write(self._questions, question)
        except BrokenPipeError:
            raise self._death() from None
        return self.receive(seconds)

    def receive(self, seconds: float) -> Any:
        """The next answer. Each step that it reports may take so many seconds.

        Raises:
            RunEndedError, AnswerError: as :meth:`ask`.
        """
        until = time.monotonic() + seconds
        self._doing = ""
        while True:
            size = int.from_bytes(self._read(_HEAD, until, seconds), "big")
            kind, value = _loaded(self._read(size, until, seconds))
            if kind == "doing":
                self._doing, until = value, time.monotonic() + seconds
            elif kind == "answer":
                return value
            elif kind == "late":
                raise self._late(seconds)
            else:
                raise AnswerError(value)

    def _read(self, size: int, until: float, seconds: float) -> bytes:
        data = bytearray()
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(self._answers, select.POLLIN | select.POLLHUP)
        while len(data) < size:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise self._late(seconds)
            if not poll.poll(1000 * min(remaining, _POLL)):
                if self._status() is not None:  # a process that it started keeps the pipe open
                    raise self._death()
                continue
            part = os.read(self._answers, min(size - len(data), _CHUNK))
            if not part:
                raise self._death()
            data += part
        return bytes(data)

    def _late(self, seconds: float) -> RunEndedError:
        return RunEndedError(Ended(End.LATE, seconds=seconds), self._doing)

    def _death(self) -> RunEndedError:
        until = time.monotonic() + 1
        while (status := self._status()) is None and time.monotonic() < until:
            time.sleep(0.001)
        how = f"exit code {status}"
        if status is not None and status < 0:
            how = f"signal {-status}"
            with suppress(ValueError):
                how = signal.Signals(-status).name
        return RunEndedError(Ended(End.DIED, how=how), self._doing)

    def _status(self) -> int | None:
        """Its exit code if it has ended, negative for a signal; None if it has not."""
        if not self._process:
            return self._code
        try:
            ended, status = os.waitpid(self._process, os.WNOHANG)
        except ChildProcessError:  # somebody else waited for it
            ended, status = self._process, 0
        if not ended:
            return None
        self._process, self._code = 0, os.waitstatus_to_exitcode(status)
        return self._code

    def end(self) -> None:
        """Ends it, and everything that it started."""
        if self._status() is None:
            with suppress(OSError):
                os.killpg(self._process, signal.SIGKILL)
            with suppress(OSError):
                os.kill(self._process, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(self._process, 0)
            self._process, self._code = 0, -signal.SIGKILL
        for pipe in (self._questions, self._answers):
            with suppress(OSError):
                os.close(pipe)


def _threads_after_fork() -> int:
    """How many threads torch may use in the next fork. A thread pool does not survive a fork, and a
    kernel would wait for it forever. So the pool is released, and each process creates its own when
    it needs one. If that is impossible, one thread needs no pool."""
    import torch

    threads = torch.get_num_threads()
    if threads == 1:
        return 1
    with suppress(OSError, AttributeError):
        with open("/proc/self/maps") as file:
            paths = {line.split()[-1] for line in file if _OPENMP.search(line)}
        given_up = [ctypes.CDLL(path).omp_pause_resource_all(_PAUSE_SOFT) for path in paths]
        if given_up and not any(given_up):
            return threads
    return 1


def _isolate(room: int, threads: int) -> None:
    """Makes a fork harmless: it prints nothing, leaves nothing behind, ends with its parent, and
    gets no more memory than is free."""
    import torch

    with suppress(OSError):
        os.setsid()  # so that what it starts ends with it
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT):
        with suppress(ValueError):  # not the main thread of an interpreter
            signal.signal(number, signal.SIG_DFL)
    faulthandler.disable()
    recorders = sys.modules.get("calltape_recorder.host.lifecycle")
    for recorder in recorders.registered() if recorders is not None else ():
        with suppress(Exception):  # a run with synthetic arguments is no call of the application
            recorder.close()
    gc.freeze()  # a collection would write to all shared memory
    torch.set_num_threads(threads)
    with suppress(OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + max(room, _LEAST_ADDRESSES)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # the kernel should kill this process first
    if not os.environ.get("CALLTAPE_DEBUG"):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        # Another thread may have held the locks of the previous streams.
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _answer_all(function: Callable[[Any, Say], Any], questions: int, answers: int) -> NoReturn:
    _write(answers, ("answer", None))  # the fork works
    while True:
        head = _read_exactly(questions, _HEAD)
        question = _loaded(_read_exactly(questions, int.from_bytes(head, "big")))
        try:
            answer = ("answer", function(question, lambda doing: _write(answers, ("doing", doing))))
            message = pickle.dumps(answer)
        except TimeoutError:
            message = pickle.dumps(("late", None))
        except Exception as error:  # models raise errors of any type
            message = pickle.dumps(("error", f"{type(error).__name__}: {str(error)[:500]}"))
        _send(answers, message)


class _OwnFacts(pickle.Unpickler):
    """Reads plain data and facts of calltape, and nothing else: a fork runs the model with
    arguments from a tape."""

    def find_class(self, module: str, name: str) -> Any:
        found = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if not (module.startswith(_OWN) and isinstance(found, type)):
            raise pickle.UnpicklingError(f"{module}:{name} is no fact of calltape")
        return found


def _loaded(message: bytes) -> Any:
    return _OwnFacts(io.BytesIO(message)).load()


def _read_exactly(pipe: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = os.read(pipe, size - len(found))
        if not part:
            os._exit(0)  # there are no more questions
        found += part
    return found


def _write(pipe: int, value: Any) -> None:
    _send(pipe, pickle.dumps(value))


def _send(pipe: int, message: bytes) -> None:
    data = memoryview(len(message).to_bytes(_HEAD, "big") + message)
    while data:
        data = data[os.write(pipe, data) :]


_UNKNOWN = 4 * 2**30
_CGROUPS = Path("/sys/fs/cgroup")
# Of version 2 and 1: the limit, what is used, and what of that is cached.
_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def half_of_free(device: str = "cpu") -> int:
    """Half of the bytes that are free on a device now. On the CPU, the smaller of what the system
    reports as available and what the limits of the process's control groups leave."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0]) // 2
    amounts = (available_bytes(), *map(_free_in_group, control_groups()))
    return min((free for free in amounts if free is not None), default=_UNKNOWN) // 2


def available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:  # other systems report only the total
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):
        return None


def control_groups() -> list[Path]:
    """The folders of the control groups of the process. In a container, the outermost folder is
    that of the container's group."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers in ("", "memory"):
            inside = Path(path.strip("/"))
            found += [_CGROUPS / controllers / part for part in (inside, *inside.parents)]
    return found


def _free_in_group(group: Path) -> int | None:
    """What the limits of a group leave; None if none can be read."""
    for limit, used, cached in _LIMITS:
        try:
            most, now = (int((group / name).read_text()) for name in (limit, used))
            facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            # The kernel drops cached file pages if memory is short.
            return max(most - now + int(facts.get(cached, 0)), 0)
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None
