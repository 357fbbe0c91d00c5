"""Which recorded call runs within which."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.call import Call, Node
from calltape_recorder.host.calltree import leave, node_of, set_innermost
from calltape_recorder.host.streams import carried_on, deferred
from tests.recorder.reading import read

A, B = b"a" * 16, b"b" * 16


def enter(tape: bytes, call: int) -> Node:
    node = node_of(tape, call)
    set_innermost(node)
    return node


def innermost() -> Node | None:
    """The call that one beginning now would run within."""
    return node_of(B, 999).parent


def test_nested_calls_are_one_tree() -> None:
    outer = enter(A, 0)
    assert (outer.parent, outer.is_shared) == (None, False)
    inner = enter(B, 7)
    assert inner.parent is outer
    assert outer.is_shared
    assert inner.tree == outer.tree
    leave(inner)
    second = enter(B, 8)
    assert second.parent is outer
    assert not second.is_shared
    leave(second)
    leave(outer)
    alone = enter(A, 1)
    assert alone.parent is None
    assert alone.tree != outer.tree
    leave(alone)
    assert 0 <= outer.tree < 2**64
    assert Node(b"\xff" * 16, 5, None).tree == 4


def test_calls_whose_end_nobody_noticed() -> None:
    """An interrupt passes hooks by: the writer finds out later, in its own thread."""
    lost = enter(A, 0)
    within = enter(B, 0)
    for node in (within, lost):
        thread = threading.Thread(target=leave, args=(node,))
        thread.start()
        thread.join()
    assert innermost() is None
    leave(lost)
    assert innermost() is None


def test_an_outer_call_may_end_first() -> None:
    outer = enter(A, 0)
    inner = enter(B, 0)
    leave(outer)
    assert innermost() is inner
    leave(inner)
    assert innermost() is None


def test_threads_begin_their_own_trees_and_to_thread_goes_on() -> None:
    seen: list[Node | None] = []
    outer = enter(A, 0)
    thread = threading.Thread(target=lambda: seen.append(innermost()))
    thread.start()
    thread.join()
    contextvars.copy_context().run(lambda: seen.append(innermost()))

    async def main() -> None:
        seen.append(await asyncio.to_thread(innermost))

    asyncio.run(main())
    leave(outer)
    assert seen == [None, outer, outer]


def test_tasks_do_not_see_each_other_s_calls() -> None:
    async def request(number: int) -> bool:
        node = enter(A, number)
        await asyncio.sleep(0)
        inner = enter(B, number)
        await asyncio.sleep(0)
        right = inner.parent is node and node.parent is None
        leave(inner)
        leave(node)
        return right

    async def main() -> list[bool]:
        return await asyncio.gather(*(request(number) for number in range(20)))

    assert all(asyncio.run(main()))


class Tree:
    """A listener that only keeps the tree."""

    active = True

    def __init__(self) -> None:
        self.ended: list[Node] = []

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        call = Call(args[0], 0, 0)
        call.node = enter(A, args[0])
        return call

    def chunk(self, call: Call, value: Any) -> None:
        pass

    def finish(self, call: Call, result: Any) -> None:
        leave(call.node)
        self.ended.append(call.node)

    def fail(self, call: Call, error: BaseException | None) -> None:
        self.finish(call, None)

    def fault(self, error: BaseException) -> None:
        raise error


@pytest.mark.parametrize("ends", ["returns", "closes", "raises"])
def test_generators_leave_nothing_to_their_callers(ends: str) -> None:
    seen: list[Node | None] = []

    def stream(number: int) -> Iterator[int]:
        for index in range(2):
            seen.append(innermost())
            yield index
            seen.append(innermost())

    listener, outer = Tree(), enter(B, 0)
    # Two at once, step by step, as a server merges them.
    streams = [deferred(listener, stream, "generator", (number,), {}) for number in (1, 2)]
    for one in streams:
        next(one)
        assert innermost() is outer
    for one in streams:
        if ends == "returns":
            assert list(one) == [1]
        elif ends == "closes":
            one.close()
        else:
            with pytest.raises(KeyError):
                one.throw(KeyError)
        assert innermost() is outer
    leave(outer)
    assert innermost() is None
    assert [node.call for node in listener.ended] == [1, 2]
    assert [node.parent for node in listener.ended] == [outer, outer]
    numbers = [node.call for node in seen if node is not None]
    assert numbers == ([1, 2, 1, 1, 1, 2, 2, 2] if ends == "returns" else [1, 2])


def test_async_generators_and_coroutines_in_tasks() -> None:
    listener = Tree()
    within: list[tuple[int, int]] = []

    async def step(number: int) -> None:
        await asyncio.sleep(0)
        node = innermost()
        assert node is not None
        assert node.parent is not None
        within.append((node.call, node.parent.call))

    async def stream(number: int) -> AsyncIterator[int]:
        for index in range(3):
            await deferred(listener, step, "coroutine", (number + 100,), {})
            yield index

    async def request(number: int) -> None:
        chunks = deferred(listener, stream, "async generator", (number,), {})
        if number % 2:  # begun by a plain function that returned it
            chunks = carried_on(listener, listener.begin((number,), {}), stream(number), alone=True)
        async for _ in chunks:
            assert innermost() is None
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(request(number) for number in range(10)))

    asyncio.run(main())
    assert sorted(within) == sorted((n + 100, n) for n in range(10) for _ in range(3))


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.other = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.inner(x) + self.inner(x))


def test_nested_modules_share_a_tree_on_their_tapes(tmp_path: Path) -> None:
    model, x = Outer(), torch.ones(1, 2)
    with (
        record(model, tmp_path / "outer.tape"),
        record(model.inner, tmp_path / "inner.tape"),
        record(model.other, tmp_path / "other.tape"),
    ):
        model(x)
        model.inner(x)
        model(x)
    outer, inner, other = (read(tmp_path / f"{n}.tape") for n in ("outer", "inner", "other"))
    first, second = (call.record for call in outer.calls)
    assert first.tree is not None
    assert second.tree not in (None, first.tree)
    assert first.parent is second.parent is None
    parents = [(call.record.tree, call.record.parent) for call in inner.calls]
    assert parents[2] == (None, None)  # alone
    nested = zip(parents[:2] + parents[3:], (first, first, second, second), strict=True)
    for (tree, parent), of in nested:
        assert tree == of.tree
        assert parent is not None
        assert (parent.tape, parent.call) == (outer.manifest.tape, of.call)
    assert [call.record.tree for call in other.calls] == [first.tree, second.tree]


def test_a_call_that_raises_leaves_no_parent_behind(tmp_path: Path) -> None:
    model = Outer()
    with record(model, tmp_path / "outer.tape"), record(model.inner, tmp_path / "inner.tape"):
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3))
        model.inner(torch.ones(1, 2))
    calls = read(tmp_path / "inner.tape").calls
    assert calls[0].record.parent is not None
    assert calls[1].record.parent is None
