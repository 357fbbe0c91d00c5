"""A pair of forward hooks on one module, and which of its calls they belong to."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from threading import get_ident
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


def _greenlet() -> Any:
    """What runs one call after the other within a thread, where there are such."""
    greenlets = sys.modules.get("greenlet")
    return None if greenlets is None else greenlets.getcurrent()


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
        self.under_way: list[Call] = []
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
        for call in list(self.under_way):  # nobody will tell how these end
            if self.take(call):
                self.tap.abandon(call)

    def settle(self, error: BaseException | None) -> None:
        if not self.tap.active:
            return
        calls = list(self.under_way)
        if not calls:
            return
        mine = self._mine()
        running = _with_callers(sys._getframe())
        for call in calls:
            # The frames of other threads are not to be walked: while Python 3.11 does that, those
            # threads can run and end them.
            is_over = call.frame not in running if call in mine else _is_over(call)
            if is_over:
                self._end(call, error)

    def matching(self, kwargs: dict[str, Any], frame: FrameType) -> Call | None:
        """The call that a post hook ends, for the caller to take; calls of this thread above it
        ended without one."""
        frames = (frame, frame.f_back)
        above: list[Call] = []
        for call in self._mine()[::-1]:
            # The pre-hook ran in _call_impl's inner function, the post hook in either of the two.
            of_it = call.frame
            if call.kwargs is kwargs or of_it in frames or (of_it and of_it.f_back is frame):
                for other in above:
                    self._end(other, None)
                return call
            above.append(call)
        return None

    def drop_ended(self, frame: FrameType) -> None:
        """Hands over calls of this thread that ended before the one that begins in ``frame``."""
        mine = self._mine()
        if not mine:
            return
        running = _with_callers(frame)
        for call in mine:
            if call.frame not in running:
                self._end(call, sys.exc_info()[1])

    def _mine(self) -> list[Call]:
        """Those under way in this thread, or within it in this greenlet."""
        thread, greenlet = get_ident(), _greenlet()
        return [c for c in list(self.under_way) if c.thread == thread and c.greenlet is greenlet]

    def take(self, call: Call) -> bool:
        """Takes a call out; False where another thread was faster."""
        try:
            self.under_way.remove(call)  # one step under the interpreter lock
        except ValueError:
            return False
        call.kwargs = call.frame = call.greenlet = None
        return True

    def _end(self, call: Call, error: BaseException | None) -> None:
        frame = call.frame
        if self.take(call):
            mine = error is not None and frame is not None and _passes_through(error, frame)
            self.tap.fail(call, error if mine else None)


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


def _is_over(call: Call) -> bool:
    """Whether a frame of another thread has ended, as far as its references tell: while it runs, it
    has one to itself. Where a traceback keeps it, that thread's next call tells."""
    return _references_of_one(call) <= _OURS_ONLY


@breaks_graph
def _run_before(pair: HookPair, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    previous = off(None)
    try:
        if pair.under_way:
            pair.drop_ended(sys._getframe(2))
        call = pair.tap.begin(args, kwargs)
        if call is not None:
            call.kwargs = kwargs
            call.frame = sys._getframe(2)
            if "greenlet" in sys.modules:
                call.greenlet = _greenlet()
            pair.under_way.append(call)
    except Exception as error:
        pair.tap.fault(error)
    finally:
        off(previous)


@breaks_graph
def _run_after(pair: HookPair, kwargs: dict[str, Any], result: Any) -> None:
    previous = off(None)
    try:
        for call in pair.under_way[-1:]:
            # Nearly always: torch makes one dict per call. A hook of the host's may return another,
            # and the same one in every thread.
            if (
                call.kwargs is kwargs
                and call.thread == get_ident()
                and (call.greenlet is None or call.greenlet is _greenlet())
            ):
                break
        else:
            found = pair.matching(kwargs, sys._getframe(2))
            if found is None:
                return
            call = found
        if not pair.take(call):
            return
        error = sys.exc_info()[1]
        if error is not None and _passes_through(error, sys._getframe(2)):
            pair.tap.fail(call, error)
            return
        # What only runs later stays the host's own: a hook that returned another object would
        # change the output for the hooks after it, and for whoever has the first one.
        if type(result) in KINDS:
            note_unfinished(call, result)
        pair.tap.finish(call, result)
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
