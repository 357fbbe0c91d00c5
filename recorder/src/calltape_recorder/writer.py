"""The queue and the one background thread behind it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from traceback import format_tb

from calltape_recorder.buffers import Buffers
from calltape_recorder.encoding import Call, Encoder
from calltape_recorder.segments import Refusal, Segments
from calltape_recorder.snapshot import release
from calltape_recorder.stats import Ledger

__all__ = ["Writer"]

log = logging.getLogger("calltape")

# One write for many small calls: every write gives the interpreter lock away, and a busy host
# lets it come back only after its switch interval.
_BATCH_CALLS = 32
_BATCH_BYTES = 1024 * 1024

# While small calls keep coming the writer polls instead of being woken: waking it costs the host's
# thread a system call, in the call, and then they compete for the interpreter. Polling less often
# costs the host less and acknowledges later.
_POLL_SECONDS = 0.01
_IDLE_POLLS = 10

# Whoever wants the interpreter waits for its switch interval (5 ms) while the writer works through
# a batch; a pause long enough for another thread to wake up spares them that.
_WORK_SECONDS = 0.001
_PAUSE_SECONDS = 0.00005

# How often the writer looks for calls that ended without a hook: they hold queue bytes, and by
# their frames the host's tensors. The second is for when bytes are short.
_LOOK_SECONDS = 1.0
_SETTLE_SECONDS = 1.0
_SETTLE_SOON_SECONDS = 0.05

# At the end nobody waits for longer for a disk that takes nothing any more.
_STUCK_SECONDS = 30.0

_MAX_TEXT = 500

# What a call without any tensor takes in the queue; so many of those are few in any case.
_ITEM_BYTES = 1024
_FEWEST_ITEMS = 256

# A call of this size fills the queue sooner than the next poll comes.
_LARGE_BYTES = 1024 * 1024


class _Task:
    """Something to do between calls, and whether it is done."""

    __slots__ = ("action", "done")

    def __init__(self, action: Callable[[], None] | None) -> None:
        self.action = action
        self.done = threading.Event()


class Writer:
    """Takes calls in the host's threads and appends them to the tape in its own.

    ``put`` takes no lock and makes no system call while calls keep coming. About once a second
    ``look`` is called for what does not wait for a call, and ``settle``, where there is one, to put
    calls that ended unnoticed; ``lost`` for every call that ``keep`` took and that is dropped here;
    ``written``, where values are withheld, for every call that is in the file. Then the text of an
    exception is not logged either: it may quote a value.

    Attributes:
        is_full: whether as many calls wait as the byte bound has room for, were they empty. The
            next call must not be recorded.
    """

    def __init__(
        self, segments: Segments, encoder: Encoder, ledger: Ledger, buffers: Buffers,
        look: Callable[[], None], settle: Callable[[], None] | None, lost: Callable[[], None],
        written: Callable[[Call], None] | None,
    ) -> None:  # fmt: skip
        self._segments = segments
        self._encoder = encoder
        self._ledger = ledger
        self._buffers = buffers
        self._items: deque[Call | _Task] = deque()
        self._most_items = max(_FEWEST_ITEMS, ledger.max_bytes // _ITEM_BYTES)
        self._wake = threading.Event()
        self._look_around = look
        self._settle = settle
        self._lost = lost
        self._written = written
        self._looked = self._settled = time.monotonic()
        self._settle_soon = False
        self._asleep = False
        self.is_full = False
        self._stopping = False
        self._turns = 0  # that the thread made
        self._said: set[str] = set()
        self._process = 0
        self._over = threading.Event()
        self._over.set()
        self._thread = threading.Thread(target=self._run, name="calltape-writer", daemon=True)

    def start(self) -> None:
        self._over.clear()
        self._process = os.getpid()
        self._thread.start()

    @property
    def _is_over(self) -> bool:
        # Not is_alive() and join(): interrupted, they take a thread that runs for one that ended.
        return self._over.is_set() or self._process != os.getpid()

    def put(self, call: Call) -> None:
        """Hands a finished call over."""
        items = self._items
        items.append(call)
        if len(items) >= self._most_items:
            self.is_full = True  # until the writer's next turn
        # ``_asleep`` is set before the writer looks a last time, so no call is left behind.
        if self._asleep or call.nbytes >= _LARGE_BYTES:
            self._wake.set()

    def settle_soon(self) -> None:
        """Bytes are short: calls that ended unnoticed must not hold any."""
        if self._settle is not None and not self._settle_soon:
            self._settle_soon = True
            if self._asleep:
                self._wake.set()

    def flush(self, timeout: float | None) -> bool:
        """Returns when everything put so far was written (or dropped); False on timeout."""
        return self.ask(None, timeout)

    def ask(self, action: Callable[[], None] | None, timeout: float | None) -> bool:
        """Runs an action in the writer's thread, after everything put so far; False where that is
        not done after ``timeout`` seconds."""
        if self._is_over:
            return not self._items and action is None
        task = _Task(action)
        self._items.append(task)
        self._wake.set()
        if self._thread is threading.current_thread():
            return False
        deadline = None if timeout is None else time.monotonic() + timeout
        done = task.done
        while not done.wait(0.1 if deadline is None else min(0.1, deadline - time.monotonic())):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if self._is_over:
                return done.is_set()
        return True

    def stop(self) -> bool:
        """Writes what is queued and ends the thread; False where the disk does not answer."""
        self._stopping = True
        self._wake.set()
        if self._thread is threading.current_thread():
            return False
        turns, since = self._turns, time.monotonic()
        while not self._is_over:
            self._over.wait(0.5)
            if self._turns != turns:
                turns, since = self._turns, time.monotonic()
            elif time.monotonic() - since > _STUCK_SECONDS:
                return False
        return True

    def complain(self, about: str, error: BaseException) -> None:
        """Says once per kind of trouble what went wrong; recording goes on."""
        if about not in self._said:
            self._said.add(about)
            with contextlib.suppress(Exception):  # a handler of the host's that raises
                what = _one_line(error) if self._written is None else _without_text(error)
                log.warning("%s: %s (said once; see Recorder.stats())", about, what)
                if self._written is None:
                    log.debug("%s", about, exc_info=error)
                else:
                    log.debug("%s\n%s", about, "".join(format_tb(error.__traceback__)))

    def warn(self, text: str) -> None:
        """Says a text once."""
        if text not in self._said:
            self._said.add(text)
            with contextlib.suppress(Exception):
                log.warning("%s", text)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._over.set()

    def _work(self) -> None:
        empty = 0
        while True:
            self._turns += 1
            self.is_full = len(self._items) >= self._most_items
            self._look()
            if self._items:
                empty = 0
                try:
                    self._write_batch()
                except Exception as error:  # without this thread nothing more would be written
                    self.complain("calls could not be written", error)
            elif self._stopping:
                return
            else:
                empty += 1
                self._wait(asleep=empty >= _IDLE_POLLS and not self._settle_soon)

    def _look(self) -> None:
        """What is done now and then, whether calls come or not."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            try:
                self._look_around()
            except Exception as error:
                self.complain("the recording could not be looked after", error)
        if self._settle is None:
            return
        if now - self._settled >= (_SETTLE_SOON_SECONDS if self._settle_soon else _SETTLE_SECONDS):
            self._settled = now
            self._settle_soon = False
            try:
                self._settle()
            except Exception as error:
                self.complain("calls that ended could not be looked for", error)

    def _wait(self, *, asleep: bool) -> None:
        seconds: float | None = _POLL_SECONDS
        if asleep:
            seconds = _LOOK_SECONDS
        self._wake.clear()
        self._asleep = asleep
        if not (self._items or self._stopping or (asleep and self._settle_soon)):
            self._wake.wait(seconds)
        self._asleep = False

    def _write_batch(self) -> None:
        calls: list[Call] = []
        encoded = []
        size = 0
        task = None
        begun = time.monotonic()
        while self._items and len(calls) < _BATCH_CALLS and size < _BATCH_BYTES:
            if time.monotonic() - begun > _WORK_SECONDS:
                time.sleep(_PAUSE_SECONDS)
                begun = time.monotonic()
            item = self._items.popleft()
            if isinstance(item, _Task):
                task = item
                break
            parts = self._encode(item)
            if parts is not None:
                calls.append(item)
                encoded.append(parts)
                size += parts[2]
        try:
            if calls:
                self._write(calls, encoded)
        finally:
            if task is not None:
                self._do(task)

    def _do(self, task: _Task) -> None:
        try:
            if task.action is not None:
                task.action()
        except Exception as error:
            self.complain("what was asked of the recording could not be done", error)
        finally:
            task.done.set()

    def _encode(self, call: Call) -> tuple[int, list[object], int] | None:
        try:
            following = self._items[0] if self._items else None
            return self._encoder.encode(call, others_wait=type(following) is Call)
        except Exception as error:
            self.complain("a call could not be encoded", error)
            self._account(call, "internal")
            return None

    def _write(self, calls: list[Call], encoded: list[tuple[int, list[object], int]]) -> None:
        try:
            self._segments.append(encoded)
        except Refusal as refusal:
            self._refuse(calls, encoded, str(refusal))
            return
        except Exception as error:
            if len(calls) > 1 and isinstance(error, OSError):
                # A small call may still fit where a large one does not.
                for call, parts in zip(calls, encoded, strict=False):
                    self._write([call], [parts])
                return
            self.complain(f"the tape {self._segments.first_path} cannot be written", error)
            for call in calls:
                self._account(call, "io" if isinstance(error, OSError) else "internal")
            return
        for call in calls:
            self._account(call, None)

    def _refuse(
        self, calls: list[Call], encoded: list[tuple[int, list[object], int]], reason: str
    ) -> None:
        if len(calls) > 1:
            for call, parts in zip(calls, encoded, strict=False):
                self._write([call], [parts])
            return
        path = self._segments.first_path
        self.warn(f"the bound {reason} of the tape {path} is reached: calls are dropped")
        self._account(calls[0], reason)

    def _account(self, call: Call, dropped: str | None) -> None:
        """The last word on a call: kept, or dropped for a reason."""
        for side in (call.inputs, call.outputs):
            if side is not None:
                release(side.pieces, self._buffers)
        self._ledger.settle(call, dropped, written=True)
        if dropped is None:
            if self._written is not None:
                self._written(call)
        elif not call.held:
            self._lost()


def _without_text(error: BaseException) -> str:
    """Type, and what the system says of it."""
    number = error.errno if isinstance(error, OSError) else None
    reason = f": {os.strerror(number)}" if type(number) is int else ""
    return f"{type(error).__name__}{reason}"


def _one_line(error: BaseException) -> str:
    """Type and message, without what else torch tells over many lines."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # the host's own __str__
        text = "(no text)"
    return f"{type(error).__name__}: {text[:_MAX_TEXT]}"
