"""Sees the calls of one module with a pair of forward hooks.

One hook sees the begin of a call, the other one its end. This module finds out which begin and
which end belong to the same call.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from calltape_recorder.host.listener import (
    Attachment,
    Listener,
    breaks_graph,
    set_frame_callback,
    skip_frame,
    vanishing,
)
from calltape_recorder.host.streams import DEFERRED_TYPES, note_unfinished
from calltape_recorder.snapshot.call import Call
from calltape_recorder.threads import Local, get_ident, is_interrupt, traceback_of


class _Thread(Local):  # type: ignore[misc]
    """Shows whether a thread has ended: then, an object that only the thread holds is gone.

    Attributes:
        thread_alive: a weak reference to that object, which is dead after the thread has ended.
    """

    def __init__(self) -> None:
        self._mark = set[None]()  # anything that has weak references
        self.thread_alive = weakref.ref(self._mark)


_this_thread = _Thread()


def _greenlet() -> Any:
    """The current greenlet, or None if greenlets are not in use. Greenlets of one thread run in
    turn, so each may have a call under way."""
    greenlets = sys.modules.get("greenlet")
    return None if greenlets is None else greenlets.getcurrent()


class Running:
    """A recorded call that is under way, with what identifies it among the application's calls.

    Attributes:
        call: the recorded call.
        kwargs: the keywords that torch passes to both hooks.
        frame: the frame of torch's own function, around the hooks and the model.
        thread: the number of the thread. A later thread may get the same number.
        thread_alive: a weak reference that is dead after that thread has ended.
        greenlet: the greenlet within the thread, or None.
    """

    __slots__ = ("call", "frame", "greenlet", "kwargs", "thread", "thread_alive")

    def __init__(self, call: Call, kwargs: dict[str, Any], frame: FrameType) -> None:
        self.call = call
        self.kwargs = kwargs
        self.frame = frame
        self.thread = call.thread
        self.thread_alive = _this_thread.thread_alive
        self.greenlet = _greenlet() if "greenlet" in sys.modules else None

    def is_abandoned(self) -> bool:
        """Whether the thread or greenlet of the call has ended, so the end will not be seen."""
        return self.thread_alive() is None or (self.greenlet is not None and self.greenlet.dead)


class HookPair(Attachment):
    """A forward pre-hook and an always-called forward hook on exactly one module.

    Hooks are not passed exceptions. An always-called hook runs inside the handler of the model's
    ``Exception``, so ``sys.exc_info()`` has it. For any other ``BaseException``, no hook runs. The
    call then stays under way until its thread calls again, flushes, detaches or closes, and finds
    that the frame of the call no longer runs. If the thread has ended, another thread finds that. A
    call that is under way in another thread when the hooks are detached is ``unfinished``.

    Attributes:
        listener: is notified of the calls.
        under_way: recorded calls of all threads, in the order in which they began. The thread that
            removes a call notifies the listener of its end. It may be another thread if the thread
            of the call has ended.
    """

    def __init__(self, module: torch.nn.Module, listener: Listener) -> None:
        super().__init__()
        self._module = weakref.ref(module)
        self.listener = listener
        self.under_way: list[Running] = []
        before = _Before(self, vanishing(listener, counts=True))
        after = _After(self, vanishing(listener, counts=False))
        # A scripted module runs hooks, but its own methods refuse to register one.
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
        self._hooks = before, after

    def trouble(self) -> str | None:
        registered = [handle.hooks_dict_ref() for handle in self._handles]
        are_there = [
            hooks is not None and hooks.get(handle.id) is hook
            for hooks, handle, hook in zip(registered, self._handles, self._hooks, strict=True)
        ]
        if all(are_there) or self._module() is None:
            return None
        return (
            "the hooks of the recorder were taken off the module: later calls are not seen. Attach"
            ' after what takes hooks off, or pass via="method"'
        )

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        for running in list(self.under_way):  # without hooks, their ends will not be seen
            if self.remove(running):
                self.listener.abandon(running.call)

    def hand_over_ended(self, error: BaseException | None) -> None:
        if not self.under_way or not self.listener.active:
            return
        mine = self._of_this_greenlet()
        frames = _with_callers(sys._getframe()) if mine else set[FrameType]()
        for running in list(self.under_way):
            # The frames of other threads are not read, because these threads may run meanwhile.
            if (running.frame not in frames) if running in mine else running.is_abandoned():
                self._end(running, error)

    def matching(self, kwargs: dict[str, Any], frame: FrameType) -> Running | None:
        """The call whose post hook runs now, or None. The caller must remove it. Later calls of
        this thread ended without a post hook, and are handed over."""
        frames = (frame, frame.f_back)
        above: list[Running] = []
        for running in self._of_this_greenlet()[::-1]:
            # The pre-hook runs in the inner function of _call_impl, the post hook in either one.
            pre_hook_frame = running.frame
            if (
                running.kwargs is kwargs
                or pre_hook_frame in frames
                or pre_hook_frame.f_back is frame
            ):
                for other in above:
                    self._end(other, None)
                return running
            above.append(running)
        return None

    def drop_ended(self, frame: FrameType) -> None:
        """Hands over calls of this thread that ended before the one that begins in ``frame``."""
        mine = self._of_this_greenlet()
        if not mine:
            return
        frames = _with_callers(frame)
        for running in mine:
            if running.frame not in frames:
                self._end(running, sys.exc_info()[1])

    def _of_this_greenlet(self) -> list[Running]:
        """The calls that are under way in this thread and this greenlet."""
        thread, greenlet = get_ident(), _greenlet()
        return [r for r in list(self.under_way) if r.thread == thread and r.greenlet is greenlet]

    def remove(self, running: Running) -> bool:
        """Removes a call from the calls under way. False if another thread did it before."""
        try:
            self.under_way.remove(running)  # the interpreter lock makes this one step
        except ValueError:
            return False
        return True

    def _end(self, running: Running, error: BaseException | None) -> None:
        if self.remove(running):
            mine = error is not None and _passes_through(error, running.frame)
            self.listener.fail(running.call, error if mine else None)


def _passes_through(error: BaseException, frame: FrameType) -> bool:
    """Whether an exception left a call through this frame. An exception that the application
    handles while it calls the model did not."""
    around = (frame, frame.f_back)
    trace: TracebackType | None = traceback_of(error)
    while trace is not None:
        if trace.tb_frame in around and trace.tb_frame.f_code.co_name in _CALL_FRAMES:
            return True
        trace = trace.tb_next
    return False


# Functions of torch.nn.Module: "inner" is within "_call_impl", and runs the hooks.
_CALL_FRAMES = frozenset({"_call_impl", "inner"})


def _with_callers(top: FrameType) -> set[FrameType]:
    """This frame, and the frames of all its callers."""
    running: set[FrameType] = set()
    frame: FrameType | None = top
    while frame is not None:
        running.add(frame)
        frame = frame.f_back
    return running


def _keywords_in(frame: FrameType) -> dict[str, Any]:
    """The keywords of a call whose hooks run in this frame of torch. What moves hooks to another
    module, as ``fuse_modules`` and ``convert`` of torch.ao do, registers them without keywords."""
    kwargs: dict[str, Any] = frame.f_locals["kwargs"]
    return kwargs


@breaks_graph
def _run_before(pair: HookPair, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
    callback = set_frame_callback(None)
    try:
        if kwargs is None:
            kwargs = _keywords_in(sys._getframe(2))
        if pair.under_way:
            pair.drop_ended(sys._getframe(2))
        call = pair.listener.begin(args, kwargs)
        if call is not None:
            pair.under_way.append(Running(call, kwargs, sys._getframe(2)))
    except BaseException as error:
        try:
            if is_interrupt(error):
                raise
            pair.listener.fault(error)
        except RecursionError:  # the application is so deep that there is no frame to say so
            pass
    finally:
        set_frame_callback(callback)


@breaks_graph
def _run_after(pair: HookPair, kwargs: dict[str, Any] | None, result: Any) -> None:
    callback = set_frame_callback(None)
    try:
        if kwargs is None:
            kwargs = _keywords_in(sys._getframe(2))
        for running in pair.under_way[-1:]:
            # This is nearly always the call: torch makes one dict of keywords per call. But a hook
            # of the application may return another dict, even the same one in every thread.
            if (
                running.kwargs is kwargs
                and running.thread == get_ident()
                and (running.greenlet is None or running.greenlet is _greenlet())
            ):
                break
        else:
            match = pair.matching(kwargs, sys._getframe(2))
            if match is None:
                return
            running = match
        if not pair.remove(running):
            return
        call = running.call
        error = sys.exc_info()[1]
        if error is not None and _passes_through(error, sys._getframe(2)):
            pair.listener.fail(call, error)
            return
        # A coroutine or generator is not replaced: later hooks would get another object, and the
        # application may hold the original.
        if id(type(result)) in DEFERRED_TYPES:
            note_unfinished(call, result)
        pair.listener.finish(call, result)
    except BaseException as error:
        try:
            if is_interrupt(error):
                raise
            pair.listener.fault(error)
        except RecursionError:  # the application is so deep that there is no frame to say so
            pass
    finally:
        set_frame_callback(callback)


class _Inert:
    """A copy or pickle of it is a function of the standard library that takes any arguments and
    returns None."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _INERT


_INERT = getattr, (contextlib.nullcontext(), "__exit__")


class _Before(_Inert):
    __slots__ = ("_pair", "_vanishes")

    def __init__(self, pair: HookPair, vanishes: Callable[[], bool]) -> None:
        self._pair = pair
        self._vanishes = vanishes

    def __reduce_ex__(self, protocol: Any) -> Any:
        next(self._pair.copies)
        return _INERT

    @skip_frame
    def __call__(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        # Every call pays for this check, so it is about Dynamo only. The body detects all other
        # tracing.
        if is_dynamo_compiling() and self._vanishes():
            return
        _run_before(self._pair, args, kwargs)


class _After(_Inert):
    __slots__ = ("_pair", "_vanishes")

    def __init__(self, pair: HookPair, vanishes: Callable[[], bool]) -> None:
        self._pair = pair
        self._vanishes = vanishes

    @skip_frame
    def __call__(self, module: Any, args: tuple[Any, ...], *rest: Any) -> None:
        kwargs = rest[0] if len(rest) == 2 else None
        # Torch would warn of an exception of this hook, beside the one of the application that
        # passes.
        try:
            is_compiling = is_dynamo_compiling()
        except RecursionError:
            return
        if is_compiling:
            if not self._vanishes():
                _run_after(self._pair, kwargs, rest[-1])
        elif self._pair.under_way:  # false for most calls, if few are kept
            try:  # noqa: SIM105 - contextlib.suppress() would need a frame of its own
                _run_after(self._pair, kwargs, rest[-1])
            except RecursionError:
                pass
