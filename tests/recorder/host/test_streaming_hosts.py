"""What a host sees of calls that go on after they returned: the same with and without a
recorder."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from calltape_recorder import record
from tests.recorder.calls import Via, both
from tests.recorder.host.streaming_hosts import METHODS, awaits, outcome
from tests.recorder.host.streaming_servers import RefusedError, Returning, Server
from tests.recorder.models import Identity
from tests.recorder.reading import read


@pytest.fixture(autouse=True, scope="module")
def _garbage_of_others() -> Iterator[None]:
    """Looking for garbage often is quick if what is there already is not looked at."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("kind", [Server, Returning])
@pytest.mark.parametrize(
    ("scenario", "method"), METHODS, ids=lambda value: getattr(value, "__name__", value)
)
def test_the_host_sees_what_it_would_see_without(
    tmp_path: Path, scenario: Any, method: str, kind: type[Server]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = outcome(scenario, kind())
        server = kind()
        with record(server, tmp_path / "t.tape", method=method) as recorder:
            assert outcome(scenario, server) == expected
            gc.collect()
    stats = recorder.stats()
    assert stats.seen == stats.kept + sum(stats.dropped.values())
    assert not stats.dropped
    assert method not in vars(server)


@pytest.mark.parametrize("kind", [Server, Returning])
def test_a_coroutine_that_is_never_awaited_warns_once(tmp_path: Path, kind: type[Server]) -> None:
    def warned(server: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            server.generate(torch.ones(1))
            gc.collect()
        return [str(entry.message).splitlines()[0] for entry in caught]

    server = kind()
    expected = warned(kind())
    with record(server, tmp_path / "t.tape", method="generate") as recorder:
        assert warned(server) == expected == ["coroutine 'Server.generate' was never awaited"]
    # The body of the plain function ran, so that is a call; the other never began.
    assert recorder.stats().kept == (kind is Returning)
    if kind is Returning:
        (call,) = read(tmp_path / "t.tape").calls
        assert call.record.outputs_missing == "it returned a coroutine, which had not run"


def test_a_stream_that_outlives_the_recorder_is_unfinished(tmp_path: Path) -> None:
    server = Server()
    with record(server, tmp_path / "t.tape", method="stream") as recorder:
        started, fresh = server.stream(3), server.stream(3)
        next(started)
    assert list(started) == [1, 2]
    assert list(fresh) == [0, 1, 2]
    assert recorder.stats().dropped == {"unfinished": 1}


def test_a_stream_holds_nothing_of_the_host_s(tmp_path: Path) -> None:
    class Makes:
        def run(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
            del x
            for _ in range(2):
                yield torch.ones(2)

    makes = Makes()
    with record(makes, tmp_path / "t.tape", method="run"):
        x = torch.ones(2)
        inputs, stream = weakref.ref(x), cast(Any, makes.run(x))
        del x
        chunk = next(stream)
        assert inputs() is None
        yielded = weakref.ref(chunk)
        del chunk
        assert yielded() is None
        error = RefusedError()
        gc.disable()
        try:
            thrown = weakref.ref(error)
            with contextlib.suppress(RefusedError):
                stream.throw(error)
            del error
            assert thrown() is None  # not in a cycle with a frame of ours
        finally:
            gc.enable()


@pytest.mark.parametrize("method", ["generate", "stream", "astream"])
def test_copies_and_pickles_of_a_server_are_not_recorded(tmp_path: Path, method: str) -> None:
    server, path = Server(), tmp_path / "t.tape"
    with record(server, path, method=method) as recorder:
        for clone in (copy.deepcopy(server), pickle.loads(pickle.dumps(server))):
            made = getattr(clone, method)(3 if method != "generate" else torch.ones(1))
            if method == "stream":
                assert list(made) == [0, 1, 2]
            elif method == "generate":
                assert asyncio.run(awaits(made)).item() == 2
    assert recorder.stats().seen == 0


def test_context_decorators_of_torch_hold_in_recorded_generators(tmp_path: Path) -> None:
    class Guarded:
        @torch.no_grad()
        def run(self, n: int) -> Iterator[bool]:
            for _ in range(n):
                yield torch.is_grad_enabled()

    guarded, path = Guarded(), tmp_path / "t.tape"
    with record(guarded, path, method="run"):
        assert list(guarded.run(2)) == [False, False]
        assert torch.is_grad_enabled()
    assert [node.value for node in read(path).calls[0].outputs.children] == [False, False]


def test_generators_that_can_be_awaited_stay_what_they_are(tmp_path: Path) -> None:
    import types

    class Old:
        @types.coroutine
        def run(self) -> Iterator[Any]:
            yield from asyncio.sleep(0).__await__()
            return 5

    old, path = Old(), tmp_path / "t.tape"
    with record(old, path, method="run"):
        assert asyncio.run(awaits(old.run())) == 5  # type: ignore[arg-type]
    (call,) = read(path).calls
    assert call.record.outputs_missing == "it returned a generator, which had not run"


def made(kind: str) -> Any:
    return {
        "generator": lambda: Server().stream(3),
        "coroutine": lambda: Server().generate(torch.ones(1)),
        "async generator": lambda: Server().astream(3),
    }[kind]()


@both
@pytest.mark.parametrize("kind", ["generator", "coroutine", "async generator"])
def test_what_others_have_is_left_alone(tmp_path: Path, kind: str, via: Via) -> None:
    """The caller can tell whether it is another object."""
    model, path, value = Identity(), tmp_path / "t.tape", made(kind)
    with record(model, path, via=via):
        assert model(value) is value
    (call,) = read(path).calls
    article = "an" if kind == "async generator" else "a"
    assert call.record.outputs is None
    assert call.record.outputs_missing == f"it returned {article} {kind}, which had not run"
    if kind == "coroutine":
        value.close()
