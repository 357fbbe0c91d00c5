"""A pair of forward hooks on one module, and which of its calls they belong to."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from calltape_recorder.attach import Attachment, vanishing
from calltape_recorder.compilers import breaks_graph, off, skip_frame
from calltape_recorder.encoding import Call
from calltape_recorder.streams import KINDS, note_unfinished
from calltape_recorder.tap import Tap

__all__ = ["HookPair"]


class _Under:
    """A recorded call that is under way, and what tells which call a later hook belongs to."""

    __slots__ = ("call", "frame", "kwargs", "thread")

    def __init__(self, call: Call, kwargs: dict[str, Any], frame: FrameType) -> None:
        self.call = call
        self.kwargs = kwargs
        self.frame = frame
        self.thread = _thread()


def _thread() -> Any:
    """What runs one call after the other: this thread, or within it this greenlet."""
    greenlets = sys.modules.get("greenlet")
    return threading.get_ident() if greenlets is None else greenlets.getcurrent()


class HookPair(Attachment):
    """A forward pre-hook and an always-called forward hook on exactly one module.

    Hooks do not see exceptions; an always-called one runs inside the handler of the model's
    ``Exception``, where ``sys.exc_info()`` has it. Other ``BaseException``s pass hooks by: such a
    call stays under way until the next call in its thread, the writer's next look, or the end finds
    that its frame is gone; at the end, one whose frame a traceback keeps is ``unfinished``.

    Attributes:
        tap: is told.
        under_way: recorded calls of all threads, in the order in which they began. A call belongs
            to whoever takes it out: other threads take those that ended.
    """

    def __init__(self, module: torch.nn.Module, tap: Tap) -> None:
        self.tap = tap
        self.under_way: list[_Under] = []
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
        for under in list(self.under_way):  # nobody will tell how these end
            if self._take(under):
                self.tap.abandon(under.call)

    def settle(self, error: BaseException | None) -> None:
        if not self.tap.active:
            return
        calls = list(self.under_way)
        if not calls:
            return
        thread = _thread()
        running = _with_callers(sys._getframe())
        for under in calls:
            # The frames of other threads are not to be walked: while Python 3.11 does that, those
            # threads can run and end them.
            is_over = under.frame not in running if under.thread == thread else _is_over(under)
            if is_over:
                self._end(under, error)

    def begin(self, call: Call, kwargs: dict[str, Any], frame: FrameType) -> None:
        """A recorded call begins in this thread."""
        self.under_way.append(_Under(call, kwargs, frame))

    def after(self, kwargs: dict[str, Any], result: Any, frame: FrameType) -> None:
        """A call of this thread ends, recorded or not."""
        under = self._matching(kwargs, frame)
        if under is None:
            return
        error = sys.exc_info()[1]
        if error is not None and _passes_through(error, frame):
            self.tap.fail(under.call, error)
        else:
            # What only runs later stays the host's own: a hook that returned another object would
            # change the output for the hooks after it, and for whoever has the first one.
            if type(result) in KINDS:
                note_unfinished(under.call, result)
            self.tap.finish(under.call, result)

    def _matching(self, kwargs: dict[str, Any], frame: FrameType) -> _Under | None:
        """The call that a post hook ends; calls of this thread above it ended without one."""
        thread = _thread()
        for under in self.under_way[-1:]:
            # Nearly always: torch makes one dict per call. A hook of the host's may return another,
            # and the same one in every thread.
            if under.kwargs is kwargs and under.thread == thread:
                return under if self._take(under) else None
        frames = (frame, frame.f_back)
        above: list[_Under] = []
        for under in self.under_way[::-1]:
            if under.thread != thread:
                continue
            # The pre-hook ran in _call_impl's inner function, the post hook in either of the two.
            if under.kwargs is kwargs or under.frame in frames or under.frame.f_back is frame:
                for other in above:
                    self._end(other, None)
                return under if self._take(under) else None
            above.append(under)
        return None

    def drop_ended(self, frame: FrameType) -> None:
        """Hands over calls of this thread that ended before the one that begins in ``frame``."""
        thread = _thread()
        mine = [under for under in list(self.under_way) if under.thread == thread]
        if not mine:
            return
        running = _with_callers(frame)
        for under in mine:
            if under.frame not in running:
                self._end(under, sys.exc_info()[1])

    def _take(self, under: _Under) -> bool:
        """Takes a call out; False where another thread was faster."""
        try:
            self.under_way.remove(under)  # one step under the interpreter lock
        except ValueError:
            return False
        return True

    def _end(self, under: _Under, error: BaseException | None) -> None:
        if self._take(under):
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


def _with_callers(top: FrameType) -> set[FrameType]:
    """The frames of this thread, from this one on."""
    running: set[FrameType] = set()
    frame: FrameType | None = top
    while frame is not None:
        running.add(frame)
        frame = frame.f_back
    return running


class _Framed:
    __slots__ = ("frame",)

    def __init__(self, frame: Any) -> None:
        self.frame = frame


def _references_of_one(framed: Any) -> int:
    return sys.getrefcount(framed.frame)


_OURS_ONLY = _references_of_one(_Framed(object()))


def _is_over(under: _Under) -> bool:
    """Whether a frame of another thread has ended, as far as its references tell: while it runs, it
    has one to itself. Where a traceback keeps it, that thread's next call tells."""
    return _references_of_one(under) <= _OURS_ONLY


@breaks_graph
def _run_before(pair: HookPair, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    previous = off(None)
    try:
        if pair.under_way:
            pair.drop_ended(sys._getframe(2))
        call = pair.tap.begin(args, kwargs)
        if call is not None:
            pair.begin(call, kwargs, sys._getframe(2))
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
        # Dynamo only: what else traces is told apart in the body, and this is asked in every call.
        if is_dynamo_compiling() and self._vanishes():
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
        if is_dynamo_compiling():
            if self._vanishes():
                return
        elif not self._pair.under_way:  # most calls, where few are kept
            return
        _run_after(self._pair, kwargs, result)
