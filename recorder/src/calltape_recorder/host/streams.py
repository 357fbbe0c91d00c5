"""Follows calls that continue after they returned: coroutines, generators, async generators.

The application gets an object of the same kind, which does the same as its own object, step by
step. The call is recorded from the first step to the last. An object that is never started is not a
call. The chunks that a generator yields are copied when they are yielded, and become one list.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from calltape_recorder.host.listener import (
    Listener,
    breaks_graph,
    notify,
    set_frame_callback,
    skip_frame,
)
from calltape_recorder.snapshot.call import Call, Chunks

DeferredKind = Literal["coroutine", "generator", "async generator"]

_FLAGS: tuple[tuple[int, DeferredKind], ...] = (
    (inspect.CO_COROUTINE, "coroutine"),
    (inspect.CO_GENERATOR, "generator"),
    (inspect.CO_ASYNC_GENERATOR, "async generator"),
)
DEFERRED_TYPES: dict[int, DeferredKind] = {
    id(types.CoroutineType): "coroutine",
    id(types.GeneratorType): "generator",
    id(types.AsyncGeneratorType): "async generator",
}
"""The ids of the types of objects that a call may return and that only run later. The hash of a
type may run the application's code."""


def deferred_kind_of(function: Any) -> DeferredKind | None:
    """The kind of object that a call of this function returns before its body ran. None if the call
    itself runs the body."""
    plain = function.__func__ if type(function) is types.MethodType else function
    if type(plain) is not types.FunctionType:
        return None
    flags = plain.__code__.co_flags
    # Such a generator (of @types.coroutine) can be awaited, but the recorder's own cannot.
    if flags & inspect.CO_ITERABLE_COROUTINE:
        return None
    return next((kind for flag, kind in _FLAGS if flags & flag), None)


def note_unfinished(call: Call, value: Any) -> None:
    """Notes in the record that the call returned something that had not run."""
    kind = DEFERRED_TYPES[id(type(value))]
    article = "an" if kind[0] in "aeiou" else "a"
    call.outputs_missing = f"it returned {article} {kind}, which had not run"


def _one_reference() -> int:
    result = object()
    return sys.getrefcount(result)


ONE_REFERENCE = _one_reference()
"""The result of ``sys.getrefcount(local)`` for an object that only a local variable holds."""


@dataclass(eq=False, slots=True)
class _Opening:
    """What is needed to start a call. After the start, it holds nothing of it."""

    listener: Listener
    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call: Call | None = None
    inner: Any = None

    @skip_frame
    def open(self) -> tuple[Call | None, Any]:
        """The record of the call, and the application's own coroutine or generator, which has not
        started."""
        function, args, kwargs = self.function, self.args, self.kwargs
        call, inner = self.call, self.inner
        self.function = self.call = self.inner = None
        self.args, self.kwargs = (), {}
        if function is not None:
            call = notify(self.listener.begin, self.listener, args, kwargs)
            inner = function(*args, **kwargs)
        if call is None:
            return None, inner
        if type(inner) is not types.CoroutineType:
            call.chunks = Chunks()
        return call, inner

    @skip_frame
    def abandon(self, watch: Any) -> None:
        """The application has dropped the object that it was given. If the object was never
        started, the call ends here."""
        _watches.discard(watch)
        call, inner = self.call, self.inner
        self.call = self.inner = None
        if inner is not None and type(inner) is types.CoroutineType:
            inner.close()  # Python warned of the outer coroutine already, and must not warn twice
        if call is not None:
            note_unfinished(call, inner)
            notify(self.listener.finish, self.listener, call, None)


@breaks_graph
def deferred(
    listener: Listener, function: Callable[..., Any], kind: DeferredKind, args: Any, kwargs: Any
) -> Any:
    """Returns an object like the result of ``function(*args, **kwargs)``. The call is recorded when
    the application starts that object."""
    try:
        # This runs no body. If the arguments do not fit, Python raises its own error now.
        trial = function(*args, **kwargs)
    except BaseException as error:
        call = notify(listener.begin, listener, args, kwargs)
        if call is not None:
            notify(listener.fail, listener, call, error)
        raise
    if type(trial) is not types.AsyncGeneratorType:  # which has no close()
        trial.close()
    return _named(_FOLLOWERS[kind](_Opening(listener, function, args, kwargs)), trial)


@skip_frame
def followed_result(listener: Listener, call: Call, value: Any, *, alone: bool) -> Any:
    """The coroutine or generator that a call returned, or an object that replaces and records it,
    which is possible if there is no other reference to it (``alone``)."""
    callback = set_frame_callback(None)
    try:
        kind = DEFERRED_TYPES[id(type(value))]
        if not alone or not _is_new(value, kind):
            note_unfinished(call, value)
            notify(listener.finish, listener, call, value)
            return value
        opening = _Opening(listener, None, (), {}, call, value)
        outer = _named(_FOLLOWERS[kind](opening), value)
        _watches.add(weakref.ref(outer, opening.abandon))
        return outer
    finally:
        set_frame_callback(callback)


_watches: set[Any] = set()


@skip_frame
def _is_new(value: Any, kind: DeferredKind) -> bool:
    if kind == "coroutine":
        return inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    if kind == "generator":
        awaitable = value.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE
        return not awaitable and inspect.getgeneratorstate(value) == inspect.GEN_CREATED
    # Python gives the state since 3.12. Before, it is taken for new: a function that is not a
    # coroutine is unlikely to have started it.
    state = getattr(inspect, "getasyncgenstate", None)
    return state is None or state(value) == "AGEN_CREATED"


@skip_frame
def _named(outer: Any, inner: Any) -> Any:
    outer.__name__ = inner.__name__
    outer.__qualname__ = inner.__qualname__
    return outer


@skip_frame
async def _awaited(opening: _Opening) -> Any:
    call, inner = opening.open()
    listener = opening.listener
    if call is None:
        return await inner
    try:
        result = await inner
    except BaseException as error:
        notify(listener.fail, listener, call, error)
        raise
    if id(type(result)) in DEFERRED_TYPES:
        alone = sys.getrefcount(result) <= ONE_REFERENCE
        return followed_result(listener, call, result, alone=alone)
    notify(listener.finish, listener, call, result)
    return result


class _Steps:
    """Notifies the listener of the steps of one generator."""

    __slots__ = ("_call", "_closing", "_listener")

    def __init__(self, listener: Listener, call: Call | None) -> None:
        self._listener = listener
        self._call = call
        self._closing = False

    @skip_frame
    def yields(self, chunk: Any) -> None:
        call, listener = self._call, self._listener
        self._closing = False
        if call is None:
            return
        try:
            notify(listener.chunk, listener, call, chunk)
        except BaseException as error:  # an interrupt, which must reach the application
            self._call = None
            notify(listener.fail, listener, call, error)
            raise

    @skip_frame
    def catches(self, error: BaseException) -> None:
        """The consumer threw this error into the generator."""
        self._closing = issubclass(type(error), GeneratorExit)

    @skip_frame
    def ends(self, error: BaseException | None) -> None:
        call, listener = self._call, self._listener
        self._call = None
        if call is None:
            return
        if call.chunks is not None:
            call.chunks.closed = self._closing
        if error is None or (self._closing and issubclass(type(error), GeneratorExit)):
            notify(listener.finish, listener, call, None)
        else:
            notify(listener.fail, listener, call, error)


# The functions below keep no reference to what passes through them: to no chunk while the consumer
# has it, and to no exception, which would be in a cycle with this frame. The application's code
# never runs within one of their "except" blocks, because its exceptions would get a new context.


@skip_frame
def _generated(opening: _Opening) -> Any:
    call, inner = opening.open()
    steps = _Steps(opening.listener, call)
    step: Any = functools.partial(inner.send, None)
    chunk: list[Any] = []
    try:
        while True:
            try:
                chunk.append(step())
            except StopIteration as stop:
                steps.ends(None)
                return stop.value
            finally:
                step = None
            steps.yields(chunk[0])
            try:
                step = functools.partial(inner.send, (yield chunk.pop()))
            except BaseException as error:
                steps.catches(error)
                step = functools.partial(inner.throw, error)
    except BaseException as error:
        steps.ends(error)
        raise


@skip_frame
async def _streamed(opening: _Opening) -> Any:
    call, inner = opening.open()
    steps = _Steps(opening.listener, call)
    step: Any = _first(inner)
    chunk: list[Any] = []
    try:
        while True:
            try:
                chunk.append(await step)
            except StopAsyncIteration:
                steps.ends(None)
                return
            finally:
                step = None
            steps.yields(chunk[0])
            try:
                step = inner.asend((yield chunk.pop()))
            except BaseException as error:
                steps.catches(error)
                step = inner.athrow(error)
    except BaseException as error:
        steps.ends(error)
        raise


@skip_frame
def _first(inner: Any) -> Any:
    """The first step of the application's async generator, hidden from the event loop. The loop
    knows the outer one; if it knew both, it would close both at once."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return inner.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)


_FOLLOWERS: dict[DeferredKind, Callable[[_Opening], Any]] = {
    "coroutine": _awaited,
    "generator": _generated,
    "async generator": _streamed,
}
