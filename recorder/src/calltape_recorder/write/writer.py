"""Ended calls that wait in memory, and the one thread that writes them.

A call that looks like an earlier one waits as its bytes, with the two sides that it shares with
that one. Python's garbage collector does not visit these. If thousands of calls waited as objects,
it would visit all objects of the application whenever their number had grown much: measured, that
took 0.1 s of an application, and a third of the cost of recording small calls. The calls of a
flight recorder are objects.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from calltape_recorder.bounds import (
    FEWEST_QUEUED_CALLS,
    LOOK_SECONDS,
    QUEUED_CALL_BYTES,
    STUCK_SECONDS,
)
from calltape_recorder.keep.ledger import Ledger
from calltape_recorder.snapshot.buffers import Buffers
from calltape_recorder.snapshot.call import OMITTED, Call, QueuedCall
from calltape_recorder.snapshot.copies import release
from calltape_recorder.snapshot.side import Side
from calltape_recorder.threads import (
    Event,
    HasLock,
    get_ident,
    locks_released,
    sleep,
    start_thread,
    wait_for,
)
from calltape_recorder.write.encoding import Encoder
from calltape_recorder.write.notices import Notices
from calltape_recorder.write.segments import LimitReached, OtherFile, Segments
from calltape_schema import TapeError
from calltape_schema.drop_reasons import DropReason
from calltape_schema.groups import NewCall

# Many small calls are written at once. Every write releases the interpreter lock, and a busy
# application returns it only after its switch interval. Records of calls that are written together
# share what is equal. With four times as many, they are a sixth smaller, but making their group
# takes longer than _WORK_SECONDS.
BATCH_CALLS = 128
_BATCH_BYTES = 1024 * 1024

# While small calls keep coming, the writer polls. Waking it would cost the application a system
# call within its call, and then both threads compete for the interpreter lock. If the writer polls
# less often, the application pays less, and calls reach the file later.
POLL_SECONDS = 0.05
_IDLE_POLLS = 10

# While the writer works through a batch, a thread that wants the interpreter lock waits for its
# switch interval (5 ms). A pause in which another thread can wake up saves it this wait.
_WORK_SECONDS = 0.001
_PAUSE_SECONDS = 0.00005

_WAIT_SECONDS = 0.5


# The writer is woken for a large call, for a call of a flight recorder, for a call that raised, and
# when a quarter of the calls that may wait do. A few calls that wait as objects wake it, too: for
# many objects, Python's garbage collector would visit all objects of the application.
_LARGE_BYTES = 1024 * 1024
_MOST_OBJECTS = 32
_SMALL_BYTES = 64 * 1024  # each side of a call that waits as its bytes has fewer

_PLACES = 3  # of a call or a task

# The numbers of a call: its number, time, thread, duration, cost and reserved bytes; and whether it
# is novel.
_CALL_NUMBERS = struct.Struct("<qqQqqq?")


class Task(NamedTuple):
    """An action to run between calls, and an event that is set when it is done."""

    action: Callable[[], object]
    done: Event


class CallQueue:
    """Calls and tasks, in order. Any thread may add some; one thread takes them out.

    Args:
        max_bytes: the byte bound of the recording.
        batch: how many calls are in memory besides those that wait.

    Attributes:
        is_full: whether the waiting calls would reach the byte bound even without tensors. Then the
            next call must not be recorded. :meth:`look` finds out when there is room again.
        wake: is set if the thread that takes calls out should look at once.
        is_asleep: whether that thread sleeps until ``wake`` is set.
    """

    def __init__(self, max_bytes: int, batch: int) -> None:
        # Three places each. For a call that waits as bytes: its two sides without their bytes, and
        # its bytes. For another call, or a task: None, None, and the call or the task.
        self._places: deque[Any] = deque()
        calls = max(FEWEST_QUEUED_CALLS, max_bytes // QUEUED_CALL_BYTES - batch)
        self._max_places = _PLACES * calls
        self._urgent_places = min(
            self._max_places // 4, _PLACES * (max_bytes // (4 * _SMALL_BYTES))
        )
        self._urgent_object_places = _PLACES * min(_MOST_OBJECTS, max_bytes // (4 * _LARGE_BYTES))
        self.is_full = False
        self.is_asleep = False
        self.wake = Event()

    def __len__(self) -> int:
        return len(self._places) // _PLACES

    def put(self, call: Call) -> None:
        """Adds an ended call. It takes no lock and makes no system call, unless the other thread
        has to be woken."""
        places, nbytes = self._places, call.nbytes
        template = _templates_of(call)
        if template is None:
            # One step, also where a signal handler comes between two.
            places.extend((None, None, call))
            call.__class__ = QueuedCall  # type: ignore[assignment]
            is_urgent = call.is_provisional or call.error is not None or nbytes >= _LARGE_BYTES
            wakes = is_urgent or len(places) >= self._urgent_object_places
        else:
            packed = _CALL_NUMBERS.pack(
                call.number, call.time_ns, call.thread, call.duration_ns, call.cost_ns, nbytes,
                call.is_novel,
            )  # fmt: skip
            if nbytes:
                inputs, outputs = call.inputs, call.outputs
                packed += (inputs and inputs.joined) or b""
                packed += (outputs and outputs.joined) or b""
            # No signal handler runs between these two: the call would be lost without a count.
            call.__class__ = QueuedCall; places.extend((*template, packed))  # type: ignore  # noqa: E702  # fmt: skip
            wakes = len(places) >= self._urgent_places
        if len(places) >= self._max_places:
            self.is_full = True
        # ``is_asleep`` is set before the other thread looks a last time, so no call is missed.
        if self.is_asleep or wakes:
            self.wake.set()

    def ask(self, task: Task) -> None:
        """Adds a task."""
        self._places.extend((None, None, task))
        self.wake.set()

    def take(self) -> QueuedCall | Task | None:
        """Takes out the first call or task; None if there is none."""
        if not self._places:
            return None
        take = self._places.popleft
        inputs, outputs, item = take(), take(), take()
        return item if inputs is None else _unpacked(inputs, outputs, item)

    def look(self) -> bool:
        """Whether anything waits. Updates ``is_full``, too."""
        self.is_full = len(self._places) >= self._max_places
        return bool(self._places)


def _templates_of(call: Call) -> tuple[Side, Side | None] | None:
    """The templates of the two sides, if a call consists only of these, its numbers and its bytes;
    else None."""
    inputs, outputs = call.inputs, call.outputs
    assert inputs is not None
    if inputs.scalars or call.error is not None or call.is_provisional:
        return None
    template = inputs if inputs.is_template else inputs.template
    if template is None:
        return None
    if outputs is None:
        return (template, None) if call.outputs_missing == OMITTED else None
    other = outputs if outputs.is_template else outputs.template
    if other is None or outputs.scalars or call.outputs_missing is not None:
        return None
    return template, other


def _unpacked(inputs: Side, outputs: Side | None, packed: bytes) -> QueuedCall:
    number, time_ns, thread, duration_ns, cost_ns, nbytes, is_novel = _CALL_NUMBERS.unpack_from(
        packed
    )
    call = QueuedCall(number, time_ns, thread)
    call.duration_ns, call.cost_ns, call.nbytes = duration_ns, cost_ns, nbytes
    call.is_novel = is_novel
    call.inputs, call.outputs, call.joined = inputs, outputs, packed[_CALL_NUMBERS.size :]
    if outputs is None:
        call.outputs_missing = OMITTED
    return call


class Writer:
    """Takes calls out of a queue and appends them to the tape, in a thread of its own.

    About once a second, it calls ``each_second`` for what must not wait for a call. It calls
    ``lost`` for every call that it drops, and ``written``, if given, for every call that is in the
    file.

    Attributes:
        queue: has the calls that wait.
        last_write_ns: as in :class:`~calltape_recorder.keep.ledger.Stats`.
        failure: why the last call could not be written; None if it was.
        waits_with: the objects whose locks the writer takes. A thread that waits for the writer
            releases them.
    """

    def __init__(
        self, segments: Segments, encoder: Encoder, ledger: Ledger, buffers: Buffers,
        each_second: Callable[[], None], lost: Callable[[QueuedCall], None], notices: Notices,
        written: Callable[[QueuedCall], None] | None,
    ) -> None:  # fmt: skip
        self._segments = segments
        self._batch_bytes = min(segments.max_file_bytes or _BATCH_BYTES, _BATCH_BYTES)
        self._encoder = encoder
        self._ledger = ledger
        self._buffers = buffers
        self.queue = CallQueue(ledger.max_bytes, BATCH_CALLS)
        self._each_second = each_second
        self._lost = lost
        self._notices = notices
        self._written = written
        self._last_look = time.monotonic()
        self.waits_with: list[HasLock] = []
        self._stopping = False
        self._rounds = 0  # that the thread made
        self.last_write_ns: int | None = None
        self.failure: DropReason | None = None
        self._process = 0
        self._over = Event()
        self._over.set()
        self._ident: int | None = None  # of the thread, from when it runs

    def start(self) -> None:
        self._over.clear()
        self._process = os.getpid()
        try:
            start_thread(self._run, "calltape-writer")
        except BaseException:
            self._over.set()
            raise

    @property
    def _is_over(self) -> bool:
        return self._over.is_set() or self._process != os.getpid()

    def flush(self, timeout: float | None) -> bool:
        """Waits until everything put so far was written or dropped; False on timeout."""
        return self.ask(None, timeout)

    def ask(self, action: Callable[[], None] | None, timeout: float | None) -> bool:
        """Runs an action in the writer's thread, after everything put so far; False if that is
        not done after ``timeout`` seconds."""
        if self._is_over:
            return not self.queue and action is None
        task = Task(action or bool, Event())
        self.queue.ask(task)
        if self._ident == get_ident():
            return False
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        with locks_released(self.waits_with):
            while not wait_for(task.done, min(0.1, deadline - time.monotonic())):
                if time.monotonic() >= deadline:
                    return False
                if self._is_over:
                    return task.done.is_set()
        return True

    def stop(self) -> bool:
        """Writes what is queued and ends the thread; False if the disk does not answer."""
        self._stopping = True
        self.queue.wake.set()
        if self._ident == get_ident():
            return False
        rounds, waited = self._rounds, 0.0
        with locks_released(self.waits_with):
            while not self._is_over:
                if wait_for(self._over, _WAIT_SECONDS) or self._rounds != rounds:
                    rounds, waited = self._rounds, 0.0
                    continue
                # The clock would run on while the process is paused, which is not the disk's fault.
                waited += _WAIT_SECONDS
                if waited > STUCK_SECONDS:
                    return False
        return True

    def _run(self) -> None:
        self._ident = get_ident()
        try:
            self._work()
        finally:
            self._over.set()

    def _work(self) -> None:
        idle_polls = 0
        while True:
            self._rounds += 1
            self._ledger.in_thread_ns = time.thread_time_ns()
            now = time.monotonic()
            if now - self._last_look >= LOOK_SECONDS:  # whether calls come or not
                self._last_look = now
                try:
                    self._each_second()
                except Exception as error:
                    self._notices.complain("the periodic check of the recording failed", error)
                self._notices.log_news()
            if self.queue.look():
                idle_polls = 0
                begun = time.thread_time_ns()
                try:
                    self._write_batch()
                except Exception as error:  # without this thread nothing more would be written
                    self._notices.complain("calls could not be written", error)
                self._ledger.writing_ns += time.thread_time_ns() - begun
            elif self._stopping:
                return
            else:
                idle_polls += 1
                self.queue.wake.clear()
                self.queue.is_asleep = idle_polls >= _IDLE_POLLS
                if not (self.queue.look() or self._stopping):
                    left = max(LOOK_SECONDS - (now - self._last_look), 0.0)
                    self.queue.wake.wait(left if idle_polls >= _IDLE_POLLS else POLL_SECONDS)
                self.queue.is_asleep = False

    def _write_batch(self) -> None:
        calls: list[QueuedCall] = []
        encoded: list[NewCall] = []
        size = 0
        task = None
        begun = time.monotonic()
        while len(calls) < BATCH_CALLS and size < self._batch_bytes:
            if time.monotonic() - begun > _WORK_SECONDS:
                sleep(_PAUSE_SECONDS)
                begun = time.monotonic()
            item = self.queue.take()
            if item is None:
                break
            if isinstance(item, Task):
                task = item
                break
            parts = self._encode(item)
            if parts is not None:
                calls.append(item)
                encoded.append(parts)
                size += item.nbytes
        try:
            if calls:
                self._write(calls, encoded)
        finally:
            if task is not None:
                try:
                    task.action()
                except Exception as error:
                    self._notices.complain("a request to the recorder failed", error)
                finally:
                    task.done.set()

    def _encode(self, call: QueuedCall) -> NewCall | None:
        try:
            return self._encoder.encode(call, self._segments.file_serial)
        except Exception as error:
            self._notices.complain("a call could not be encoded", error)
            self._account([call], DropReason.INTERNAL)
            return None

    def _write(self, calls: list[QueuedCall], encoded: list[NewCall]) -> None:
        novel_calls, file_serial = (
            sum([call.is_novel for call in calls]),
            self._segments.file_serial,
        )
        try:
            self._segments.append(encoded, novel_calls, file_serial)
        except OtherFile:
            calls, encoded = self._encoded_again(calls)
            if calls:
                self._write(calls, encoded)
            return
        except Exception as error:
            if len(calls) > 1 and isinstance(error, (LimitReached, OSError, TapeError)):
                self._write_singly(calls)
                return
            tape, reason = f"the tape {self._segments.first_path}", _reason(error)
            if isinstance(error, LimitReached):
                self._notices.warn(f"{tape} reached its limit {reason}: calls are dropped")
            else:
                self._notices.complain(f"{tape} cannot be written", error)
            self._account(calls, reason)
            return
        self.last_write_ns = time.time_ns()
        self._account(calls, None)

    def _encoded_again(self, calls: list[QueuedCall]) -> tuple[list[QueuedCall], list[NewCall]]:
        """Calls that were not written, encoded for the file that is current now."""
        for call in calls:
            self._encoder.forget(call)
        pairs = [(call, parts) for call in calls if (parts := self._encode(call)) is not None]
        return [call for call, _ in pairs], [parts for _, parts in pairs]

    def _write_singly(self, calls: list[QueuedCall]) -> None:
        """Writes calls that could not be written together: a small one may still fit if a large one
        does not."""
        for call in calls:
            self._encoder.forget(call)
        for call in calls:
            alone, encoded = self._encoded_again([call])
            if alone:
                self._write(alone, encoded)

    def _account(self, calls: list[QueuedCall], dropped: DropReason | None) -> None:
        """Counts calls as kept, or as dropped for a reason, and frees their memory."""
        for call in calls:
            if call.joined is None:
                for side in (call.inputs, call.outputs):
                    if side is not None:
                        release(side.places, self._buffers)
        self._ledger.account(calls, dropped, written=True)
        self.failure = dropped
        if dropped is None:
            if self._written is not None:
                for call in calls:
                    self._written(call)
            return
        for call in calls:
            self._encoder.forget(call)
            self._lost(call)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def _reason(error: Exception) -> DropReason:
    """For which reason calls are dropped that were not written."""
    if isinstance(error, LimitReached):
        return error.reason
    if not isinstance(error, OSError):
        return DropReason.INTERNAL
    return DropReason.DISK_FULL if error.errno in _NO_ROOM else DropReason.IO
