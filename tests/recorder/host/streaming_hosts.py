"""What hosts do with servers whose methods go on after they returned.

A scenario gives the same outcome with and without a recorder on the server.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import torch

from tests.recorder.host.streaming_servers import RefusedError, Server


def told(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except BaseException as error:
        context = error.__context__
        return type(error).__name__, str(error), type(context).__name__


def exhausts(server: Any) -> Any:
    return list(server.stream(3))


def returns(server: Any) -> Any:
    def outer() -> Iterator[Any]:
        return (yield from server.stream(2, "result"))

    stream, seen = outer(), []
    while True:
        try:
            seen.append(next(stream))
        except StopIteration as stop:
            return seen, stop.value


def sends(server: Any) -> Any:
    stream = server.stream(3)
    early = told(lambda: stream.send(1))
    return early, next(stream), stream.send("a"), stream.send("b"), told(lambda: stream.send("c"))


def throws(server: Any) -> Any:
    stream = server.stream(3)
    first = next(stream), stream.throw(RefusedError("x")), next(stream)
    return first, told(lambda: stream.throw(KeyError("k"))), told(lambda: next(stream))


def throws_at_once(server: Any) -> Any:
    stream = server.stream(3)
    return told(lambda: stream.throw(KeyError("k"))), told(lambda: next(stream))


def throws_a_stop(server: Any) -> Any:
    stream = server.stream(3)
    return next(stream), told(lambda: stream.throw(StopIteration("s")))


def fails(server: Any) -> Any:
    stream = server.stream(1, RefusedError("at the end"))
    return next(stream), told(lambda: next(stream)), told(lambda: next(stream))


def fails_after_a_caught_one(server: Any) -> Any:
    stream = server.stream(2, RefusedError("at the end"))
    return next(stream), stream.throw(RefusedError("x")), next(stream), told(lambda: next(stream))


def closes(server: Any) -> Any:
    stream = server.stream(3)
    return next(stream), stream.close(), told(lambda: next(stream)), stream.close()


def closes_unstarted(server: Any) -> Any:
    stream = server.stream(3)
    return stream.close(), told(lambda: next(stream))


def closes_a_stubborn_one(server: Any) -> Any:
    stream = server.stubborn()
    return next(stream), told(stream.close), told(lambda: next(stream))


def exits_a_stubborn_one(server: Any) -> Any:
    stream = server.stubborn()
    return next(stream), stream.throw(GeneratorExit()), told(lambda: next(stream))


def drops(server: Any) -> Any:
    stream = server.stream(3)
    next(stream)
    del stream
    gc.collect()
    return list(server.log)


def never_iterates(server: Any) -> Any:
    server.stream(3)
    gc.collect()
    return list(server.log)


def within_itself(server: Any) -> Any:
    class Log(list[Any]):
        def append(self, value: Any) -> None:
            super().append((value, stream.gi_running, told(lambda: next(stream))))

    server.log = Log()
    stream = server.stream(3)
    return told(lambda: (next(stream), stream.gi_running, list(stream)))


def misfits(server: Any) -> Any:
    return told(lambda: server.stream()), told(lambda: server.stream(1, 2, 3))


def describes(server: Any) -> Any:
    stream = server.stream(1)
    method = server.stream
    said = (
        inspect.isgenerator(stream), isinstance(stream, Iterator), stream.__name__,
        stream.__qualname__, inspect.getgeneratorstate(stream), inspect.isgeneratorfunction(method),
        inspect.iscoroutinefunction(method), str(inspect.signature(method)), method.__doc__,
    )  # fmt: skip
    stream.close()
    return (*said, inspect.getgeneratorstate(stream))


def while_handling(server: Any) -> Any:
    """The host consumes a stream in an ``except`` block: contexts stay its own."""
    stream = server.stream(1, RefusedError("at the end"))
    try:
        raise LookupError
    except LookupError:
        return next(stream), told(lambda: next(stream))


GENERATORS = [
    exhausts, returns, sends, throws, throws_at_once, throws_a_stop, fails,
    fails_after_a_caught_one, closes, closes_unstarted, closes_a_stubborn_one,
    exits_a_stubborn_one, drops, never_iterates, within_itself, misfits, describes, while_handling,
]  # fmt: skip


async def a_told(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except BaseException as error:
        return type(error).__name__, str(error), type(error.__context__).__name__


async def awaits(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def a_exhausts(server: Any) -> Any:
    return [chunk async for chunk in server.astream(3)]


async def a_sends(server: Any) -> Any:
    stream = server.astream(3)
    early = await a_told(stream.asend(1))
    return early, await anext(stream), await stream.asend("a"), await stream.asend("b"), (
        await a_told(stream.asend("c"))
    )  # fmt: skip


async def a_throws(server: Any) -> Any:
    stream = server.astream(3)
    first = await anext(stream), await stream.athrow(RefusedError("x")), await anext(stream)
    return first, await a_told(stream.athrow(KeyError("k"))), await a_told(anext(stream))


async def a_throws_a_stop(server: Any) -> Any:
    stream = server.astream(3)
    return await anext(stream), await a_told(stream.athrow(StopAsyncIteration("s")))


async def a_fails(server: Any) -> Any:
    stream = server.astream(1, RefusedError("at the end"))
    return await anext(stream), await a_told(anext(stream)), await a_told(anext(stream))


async def a_closes(server: Any) -> Any:
    stream = server.astream(3)
    return await anext(stream), await stream.aclose(), await a_told(anext(stream))


async def a_closes_unstarted(server: Any) -> Any:
    stream = server.astream(3)
    return await stream.aclose(), await a_told(anext(stream))


async def a_closes_a_stubborn_one(server: Any) -> Any:
    stream = server.astubborn()
    return await anext(stream), await a_told(stream.aclose()), await a_told(anext(stream))


async def a_breaks(server: Any) -> Any:
    async for _ in server.astream(5):
        break
    gc.collect()
    for _ in range(5):
        await asyncio.sleep(0)  # the loop closes it
    return list(server.log)


async def a_cancels(server: Any) -> Any:
    async def consume() -> None:
        async for chunk in server.astream(100):
            server.log.append(chunk)

    task = asyncio.ensure_future(consume())
    for _ in range(4):
        await asyncio.sleep(0)
    task.cancel()
    return await a_told(task)


async def a_leaves_open(server: Any) -> Any:
    """The loop closes it when it shuts down."""
    server.kept = server.astream(5)
    return await anext(server.kept)


async def a_describes(server: Any) -> Any:
    stream, method = server.astream(1), server.astream
    said = inspect.isasyncgen(stream), isinstance(stream, AsyncIterator), stream.__qualname__
    await stream.aclose()
    return *said, inspect.isasyncgenfunction(method), str(inspect.signature(method))


async def a_misfits(server: Any) -> Any:
    return told(lambda: server.astream()), told(lambda: server.astream(1, 2, 3))


ASYNC_GENERATORS = [
    a_exhausts, a_sends, a_throws, a_throws_a_stop, a_fails, a_closes, a_closes_unstarted,
    a_closes_a_stubborn_one, a_breaks, a_cancels, a_leaves_open, a_describes, a_misfits,
]  # fmt: skip


async def c_returns(server: Any) -> Any:
    return (await server.generate(torch.ones(1))).item()


async def c_fails(server: Any) -> Any:
    return await a_told(server.generate(torch.ones(1), fails=True))


async def c_in_tasks(server: Any) -> Any:
    tasks = [asyncio.create_task(server.generate(torch.tensor([n]))) for n in range(5)]
    return [(await task).item() for task in tasks]


async def c_cancelled(server: Any) -> Any:
    task = asyncio.create_task(server.generate(torch.ones(1)))
    await asyncio.sleep(0)
    task.cancel()
    return await a_told(task)


async def c_cancelled_at_once(server: Any) -> Any:
    task = asyncio.create_task(server.generate(torch.ones(1)))
    task.cancel()
    return await a_told(task)


async def c_times_out(server: Any) -> Any:
    async def slowly() -> Any:
        await server.generate(torch.ones(1))
        await asyncio.sleep(100)

    return (await a_told(asyncio.wait_for(slowly(), 0.01)))[0]


async def c_misfits(server: Any) -> Any:
    return told(lambda: server.generate()), told(lambda: server.generate(1, y=2))


async def c_describes(server: Any) -> Any:
    coroutine, method = server.generate(torch.ones(1)), server.generate
    said = (
        inspect.iscoroutine(coroutine), asyncio.iscoroutine(coroutine), coroutine.__qualname__,
        inspect.getcoroutinestate(coroutine), inspect.iscoroutinefunction(method),
        str(inspect.signature(method)),
    )  # fmt: skip
    await coroutine
    return (*said, inspect.getcoroutinestate(coroutine), await a_told(coroutine))


async def c_closes(server: Any) -> Any:
    coroutine = server.generate(torch.ones(1))
    coroutine.send(None)
    return coroutine.close(), told(lambda: coroutine.send(None))


COROUTINES = [
    c_returns, c_fails, c_in_tasks, c_cancelled, c_cancelled_at_once, c_times_out, c_misfits,
    c_describes, c_closes,
]  # fmt: skip


METHODS = [
    *[(scenario, "stream") for scenario in GENERATORS if "stubborn" not in scenario.__name__],
    *[(scenario, "stubborn") for scenario in (closes_a_stubborn_one, exits_a_stubborn_one)],
    *[(scenario, "astream") for scenario in ASYNC_GENERATORS if "stub" not in scenario.__name__],
    (a_closes_a_stubborn_one, "astubborn"),
    *[(scenario, "generate") for scenario in COROUTINES],
]


def outcome(scenario: Any, server: Server) -> Any:
    """What a scenario returned, what really ran, and what the loop and the garbage collector
    complained of."""
    unraisable: list[Any] = []
    before, sys.unraisablehook = (
        sys.unraisablehook,
        lambda what: unraisable.append(str(what.exc_value)),
    )
    try:
        if inspect.iscoroutinefunction(scenario):
            complaints: list[str] = []

            async def main() -> Any:
                loop = asyncio.get_running_loop()
                loop.set_exception_handler(lambda _, what: complaints.append(what["message"]))
                return await scenario(server)

            result = asyncio.run(main())
            server.log.append(complaints)
        else:
            result = scenario(server)
        gc.collect()
    finally:
        sys.unraisablehook = before
    return result, server.log, unraisable
