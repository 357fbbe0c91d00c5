"""A pair of forward hooks on one module, and which of its calls they belong to."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_compiling

from calltape_recorder.attach import Attachment, vanishing
from calltape_recorder.compilers import breaks_graph, off, skip_frame
from calltape_recorder.encoding import Call
from calltape_recorder.tap import Tap

__all__ = ["HookPair"]


class _Under:
    """A call that is under way in this thread: its record (None if it is not recorded), and what
    tells which call a later hook belongs to."""

    __slots__ = ("call", "frame", "kwargs")

    def __init__(self, call: Call | None, kwargs: dict[str, Any], frame: FrameType) -> None:
        self.call = call
        self.kwargs = kwargs
        self.frame = frame


class _Thread:
    """The calls that are under way in one thread, the innermost last.

    Other threads take calls away that have ended, so a call belongs to whoever took it.
    """

    __slots__ = ("calls", "ident")

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.calls: list[_Under] = []

    def take(self, under: _Under) -> bool:
        """Takes this call away; False where another thread was faster."""
        try:
            self.calls.remove(under)  # one step under the interpreter lock
        except ValueError:
            return False
        return True


class HookPair(Attachment):
    """A forward pre-hook and an always-called forward hook on exactly one module.

    Hooks do not see exceptions; an always-called one runs inside the handler of the model's
    ``Exception``, where ``sys.exc_info()`` has it. Other ``BaseException``s pass hooks by: such a
    call stays with its thread until the next call there, the writer's next look, or the end finds
    that its frame is gone.
    """

    def __init__(self, module: torch.nn.Module, tap: Tap) -> None:
        self.tap = tap
        self._local = threading.local()
        self._threads: list[_Thread] = []
        before = _Before(self, vanishing(tap, counts=True))
        after = _After(self, vanishing(tap, counts=False))
        # Scripted modules run hooks, but their own methods refuse to register any from outside.
        scripted = isinstance(module, torch.jit.ScriptModule)
        methods = torch.nn.Module if scripted else type(module)
        with contextlib.ExitStack() as undo:
            first = methods.register_forward_pre_hook(module, before, with_kwargs=True)
            undo.callback(first.remove)
            last = methods.register_forward_hook(
                module, after, with_kwargs=True, always_call=True
            )  # fmt: skip
            undo.pop_all()
        self._handles = [first, last]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def settle(self, error: BaseException | None) -> None:
        if not self.tap.active:
            return
        # First the calls, then the frames: a call that begins in between is not among the calls.
        threads = list(self._threads)
        under_way = [(thread, under) for thread in threads for under in list(thread.calls)]
        tops = sys._current_frames()
        for thread in threads:
            if thread.ident not in tops and not thread.calls:
                self._forget(thread)
        if not under_way:
            return
        running = _with_callers(tops.values())
        for thread, under in under_way:
            if under.frame not in running:
                self._end(thread, under, error)

    def thread(self) -> _Thread:
        """The calls of the current thread."""
        try:
            thread: _Thread = self._local.thread
        except AttributeError:
            thread = _Thread()
            for other in list(self._threads):
                if other.ident == thread.ident:  # it ended; its number is ours now
                    self._forget(other)
            self._threads.append(thread)
            self._local.thread = thread
        return thread

    def after(self, kwargs: dict[str, Any], result: Any, frame: FrameType) -> None:
        under = self._matching(self.thread(), kwargs, frame)
        if under is None or under.call is None:
            return
        error = sys.exc_info()[1]
        if error is not None and _passes_through(error, frame):
            self.tap.fail(under.call, error)
        else:
            self.tap.finish(under.call, result)

    def _matching(self, thread: _Thread, kwargs: dict[str, Any], frame: FrameType) -> _Under | None:
        """The call that a post hook ends; calls above it ended without one."""
        calls = thread.calls
        # Nobody else takes a call that is still running, and this one is.
        if calls and calls[-1].kwargs is kwargs:  # nearly always
            return calls.pop()
        frames = (frame, frame.f_back)
        above: list[_Under] = []
        for under in reversed(list(calls)):
            # The pre-hook ran in _call_impl's inner function, the post hook in either of the two.
            if under.kwargs is kwargs or under.frame in frames or under.frame.f_back is frame:
                for other in reversed(above):
                    self._end(thread, other, None)
                return under if thread.take(under) else None
            above.append(under)
        return None

    def drop_ended(self, thread: _Thread, frame: FrameType) -> None:
        """Hands over calls of this thread that ended before the one that begins in ``frame``."""
        running = _with_callers([frame])
        for under in list(thread.calls):
            if under.frame not in running:
                self._end(thread, under, sys.exc_info()[1])

    def _forget(self, thread: _Thread) -> None:
        """Its thread ended: no hook asks for it any more."""
        for under in list(thread.calls):
            self._end(thread, under, None)
        with contextlib.suppress(ValueError):  # somebody else was faster
            self._threads.remove(thread)

    def _end(self, thread: _Thread, under: _Under, error: BaseException | None) -> None:
        if thread.take(under) and under.call is not None:
            mine = error is not None and _passes_through(error, under.frame)
            self.tap.fail(under.call, error if mine else None)


def _passes_through(error: BaseException, frame: FrameType) -> bool:
    """Whether an exception left a call by way of this frame: an exception that the host is already
    handling while it calls the model did not."""
    around = (frame, frame.f_back)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame in around and trace.tb_frame.f_code.co_name in _CALL_FRAMES:
            return True
        trace = trace.tb_next
    return False


# torch.nn.Module's own: hooks run in the second within the first.
_CALL_FRAMES = frozenset({"_call_impl", "inner"})


def _with_callers(tops: Iterable[FrameType]) -> set[FrameType]:
    running: set[FrameType] = set()
    for top in tops:
        frame: FrameType | None = top
        while frame is not None and frame not in running:
            running.add(frame)
            frame = frame.f_back
    return running


@breaks_graph
def _run_before(pair: HookPair, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    previous = off(None)
    try:
        frame = sys._getframe(2)
        thread = pair.thread()
        if thread.calls:
            pair.drop_ended(thread, frame)
        thread.calls.append(_Under(pair.tap.begin(args, kwargs), kwargs, frame))
    except Exception as error:
        pair.tap.fault(error)
    finally:
        off(previous)


@breaks_graph
def _run_after(pair: HookPair, kwargs: dict[str, Any], result: Any) -> None:
    previous = off(None)
    try:
        pair.after(kwargs, result, sys._getframe(2))
    except Exception as error:
        pair.tap.fault(error)
    finally:
        off(previous)


class _Inert:
    """Copies and pickles to a standard-library function that takes anything and returns None."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Before(_Inert):
    __slots__ = ("_pair", "_vanishes")

    def __init__(self, pair: HookPair, vanishes: Callable[[], bool]) -> None:
        self._pair = pair
        self._vanishes = vanishes

    @skip_frame
    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_compiling() and self._vanishes():
            return
        _run_before(self._pair, args, kwargs)


class _After(_Inert):
    __slots__ = ("_pair", "_vanishes")

    def __init__(self, pair: HookPair, vanishes: Callable[[], bool]) -> None:
        self._pair = pair
        self._vanishes = vanishes

    @skip_frame
    def __call__(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if is_compiling() and self._vanishes():
            return
        _run_after(self._pair, kwargs, result)
