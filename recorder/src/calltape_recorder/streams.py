"""Calls that go on after they returned: coroutines, generators, async generators.

The host gets an object of the same kind that does what its own would do, step by step; the call is
recorded from the first step to the last. An object that is never started never ran: no call.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, Literal

from calltape_recorder.calltree import resume, suspend
from calltape_recorder.chunks import Chunks
from calltape_recorder.compilers import breaks_graph, off, skip_frame
from calltape_recorder.encoding import Call
from calltape_recorder.telling import Listener, begun, tell

__all__ = [
    "KINDS",
    "ONE_REFERENCE",
    "Kind",
    "carried_on",
    "deferred",
    "kind_of",
    "note_unfinished",
]

Kind = Literal["coroutine", "generator", "async generator"]

_FLAGS: tuple[tuple[int, Kind], ...] = (
    (inspect.CO_COROUTINE, "coroutine"),
    (inspect.CO_GENERATOR, "generator"),
    (inspect.CO_ASYNC_GENERATOR, "async generator"),
)
KINDS: dict[type, Kind] = {
    types.CoroutineType: "coroutine",
    types.GeneratorType: "generator",
    types.AsyncGeneratorType: "async generator",
}
"""The types of what a call may return that will only run later."""


def kind_of(function: Any) -> Kind | None:
    """What a call of this function returns before its body ran; None where calling runs it."""
    plain = function.__func__ if type(function) is types.MethodType else function
    if type(plain) is not types.FunctionType:
        return None
    flags = plain.__code__.co_flags
    if flags & inspect.CO_ITERABLE_COROUTINE:  # of @types.coroutine, which only the host can make
        return None
    return next((kind for flag, kind in _FLAGS if flags & flag), None)


def note_unfinished(call: Call, value: Any) -> None:
    """Says in the record that the call returned something that had not run."""
    kind = KINDS[type(value)]
    article = "an" if kind == "async generator" else "a"
    call.outputs_missing = f"it returned {article} {kind}, which had not run"


def _one_reference() -> int:
    result = object()
    return sys.getrefcount(result)


ONE_REFERENCE = _one_reference()
"""What ``sys.getrefcount(local)`` is for an object that nothing but a local variable has."""


class _Opening:
    """What is needed to start; whatever it holds is let go then."""

    __slots__ = ("_args", "_call", "_function", "_inner", "_kwargs", "tap")

    def __init__(
        self, tap: Listener, function: Callable[..., Any] | None, args: tuple[Any, ...],
        kwargs: dict[str, Any], call: Call | None = None, inner: Any = None,
    ) -> None:  # fmt: skip
        self.tap = tap
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._call = call
        self._inner = inner

    @skip_frame
    def open(self) -> tuple[Call | None, Any]:
        """The call's record, and the host's own coroutine or generator, not started."""
        function, args, kwargs = self._function, self._args, self._kwargs
        call, inner = self._call, self._inner
        self._function = self._call = self._inner = None
        self._args, self._kwargs = (), {}
        before = resume(None)
        if function is not None:
            call = begun(self.tap, args, kwargs)
            inner = function(*args, **kwargs)
        if call is None:
            return None, inner
        if type(inner) is types.CoroutineType:
            resume(call.node)  # until it ends
        else:
            call.chunks = Chunks()
            suspend(before)  # each step resumes it
        return call, inner

    @skip_frame
    def abandon(self, watch: Any) -> None:
        """What the host was given is gone; if it was never started, neither is its own."""
        _watches.discard(watch)
        call, inner = self._call, self._inner
        self._call = self._inner = None
        if inner is not None and type(inner) is types.CoroutineType:
            inner.close()  # Python has warned of ours: once is enough
        if call is not None:
            note_unfinished(call, inner)
            tell(self.tap.finish, self.tap, call, None)


@breaks_graph
def deferred(
    tap: Listener, function: Callable[..., Any], kind: Kind, args: Any, kwargs: Any
) -> Any:
    """What ``function(*args, **kwargs)`` returns, recorded from when the host starts it."""
    try:
        # Runs nothing: whether the arguments fit is told now, in Python's own words.
        trial = function(*args, **kwargs)
    except BaseException as error:
        call = begun(tap, args, kwargs)
        if call is not None:
            tell(tap.fail, tap, call, error)
        raise
    if kind != "async generator":
        trial.close()
    return _named(_WAYS[kind](_Opening(tap, function, args, kwargs)), trial)


@skip_frame
def carried_on(tap: Listener, call: Call, value: Any, *, alone: bool) -> Any:
    """What a plain function returned, or, where it will only run later, what stands for it.

    ``alone``: nobody else has this object, so that nobody can tell whether it is another.
    """
    previous = off(None)
    try:
        return _carried_on(tap, call, value, alone)
    finally:
        off(previous)


def _carried_on(tap: Listener, call: Call, value: Any, alone: bool) -> Any:
    kind = KINDS[type(value)]
    if not alone or not _is_new(value, kind):
        note_unfinished(call, value)
        tell(tap.finish, tap, call, value)
        return value
    opening = _Opening(tap, None, (), {}, call, value)
    outer = _named(_WAYS[kind](opening), value)
    _watches.add(weakref.ref(outer, opening.abandon))
    if call.node is not None:
        suspend(call.node.parent)
    return outer


_watches: set[Any] = set()


@skip_frame
def _is_new(value: Any, kind: Kind) -> bool:
    if kind == "coroutine":
        return inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    if kind == "generator":
        awaitable = value.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE
        return not awaitable and inspect.getgeneratorstate(value) == inspect.GEN_CREATED
    # Python tells since 3.12; what returned it was no coroutine, so it has hardly begun one.
    state = getattr(inspect, "getasyncgenstate", None)
    return state is None or state(value) == "AGEN_CREATED"


@skip_frame
def _named(outer: Any, own: Any) -> Any:
    outer.__name__ = own.__name__
    outer.__qualname__ = own.__qualname__
    return outer


@skip_frame
async def _awaited(opening: _Opening) -> Any:
    call, inner = opening.open()
    tap = opening.tap
    if call is None:
        return await inner
    try:
        result = await inner
    except BaseException as error:
        tell(tap.fail, tap, call, error)
        raise
    if type(result) in KINDS:
        alone = sys.getrefcount(result) <= ONE_REFERENCE
        return carried_on(tap, call, result, alone=alone)
    tell(tap.finish, tap, call, result)
    return result


class _Steps:
    """The accounts of one generator."""

    __slots__ = ("_before", "_call", "_closing", "_tap")

    def __init__(self, tap: Listener, call: Call | None) -> None:
        self._tap = tap
        self._call = call
        self._before: Any = None
        self._closing = False

    @skip_frame
    def goes_on(self) -> None:
        if self._call is not None:
            self._before = resume(self._call.node)

    @skip_frame
    def stops(self) -> None:
        if self._call is not None:
            suspend(self._before)
            self._before = None

    @skip_frame
    def yields(self, chunk: Any) -> None:
        call, tap = self._call, self._tap
        self._closing = False
        if call is None:
            return
        try:
            tell(tap.chunk, tap, call, chunk)
        except BaseException as error:  # an interrupt, on its way to the host
            self._call = None
            tell(tap.fail, tap, call, error)
            raise

    @skip_frame
    def catches(self, error: BaseException) -> None:
        """The consumer threw this in."""
        self._closing = isinstance(error, GeneratorExit)

    @skip_frame
    def ends(self, error: BaseException | None) -> None:
        call, tap = self._call, self._tap
        self._call = None
        if call is None:
            return
        if call.chunks is not None:
            call.chunks.closed = self._closing
        if error is None or (self._closing and isinstance(error, GeneratorExit)):
            tell(tap.finish, tap, call, None)
        else:
            tell(tap.fail, tap, call, error)


# What the host's generator is given and gives passes through without being held: neither a chunk
# while the consumer has it, nor an exception in a cycle with this frame. Nothing runs within a
# handler of ours, so that no exception of the host's gets a context that it would not have.


@skip_frame
def _generated(opening: _Opening) -> Any:
    call, inner = opening.open()
    steps = _Steps(opening.tap, call)
    step: Any = functools.partial(inner.send, None)
    chunk: list[Any] = []
    try:
        while True:
            steps.goes_on()
            try:
                chunk.append(step())
            except StopIteration as stop:
                steps.ends(None)
                return stop.value
            finally:
                step = None
                steps.stops()
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
    steps = _Steps(opening.tap, call)
    step: Any = _first(inner)
    chunk: list[Any] = []
    try:
        while True:
            steps.goes_on()
            try:
                chunk.append(await step)
            except StopAsyncIteration:
                steps.ends(None)
                return
            finally:
                step = None
                steps.stops()
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
    """The first step, without the event loop noting the generator: it has ours, and would close
    both at once."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return inner.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)


_WAYS: dict[Kind, Callable[[_Opening], Any]] = {
    "coroutine": _awaited,
    "generator": _generated,
    "async generator": _streamed,
}
