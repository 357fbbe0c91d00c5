"""Real hosts: data loaders, DataParallel, modes, scripted and exported modules, threads."""

from __future__ import annotations

import contextvars
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from calltape_recorder import First, record
from tests.recorder.calls import Via, both
from tests.recorder.models import Add, Identity, Two
from tests.recorder.reading import read

# --- data loaders ------------------------------------------------------------------------------


class Embedded(Dataset[torch.Tensor]):
    """A data set whose items are made by a model, as with precomputed embeddings."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = self.model(torch.full((1, 4), float(index)))
        return result


class Collate:
    """A collate function that runs a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __call__(self, items: list[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = self.model(torch.cat(items))
        return result


def loaded(model: torch.nn.Module, start: str) -> list[torch.Tensor]:
    """Two batches, made by a worker: three calls for items and one to collate, each."""
    torch.set_num_threads(1)  # what runs in OpenMP threads before a fork hangs after it
    loader = DataLoader(
        Embedded(model), batch_size=3, num_workers=1, collate_fn=Collate(model),
        multiprocessing_context=start, timeout=250,
    )  # fmt: skip
    return list(loader)


@both
@pytest.mark.integration
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_forked_workers_of_a_data_loader_record_into_their_own_file(
    tmp_path: Path, via: Via, start: str
) -> None:
    torch.manual_seed(0)
    model, path = Two().eval(), tmp_path / "t.tape"
    threads = torch.get_num_threads()
    try:
        expected = loaded(model, start)
        with record(model, path, via=via) as recorder:
            model(torch.ones(1, 4))
            batches = loaded(model, start)
            model(torch.ones(2, 4))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(batches, expected, strict=True))
    stats = recorder.stats()
    assert stats.seen == stats.kept == 2  # of this process
    assert [call.input(0).shape[0] for call in read(path).calls] == [1, 2]
    # A fork goes on in a file of its own; what is spawned gets a copy, and copies are not recorded.
    others = [file for file in tmp_path.iterdir() if file != path]
    assert len(others) == (start == "fork")
    for file in others:
        calls = read(file).calls
        assert len(calls) == 8
        assert all(torch.equal(model(call.input(0)), call.output(0)) for call in calls)


# --- wrappers and modes of torch ---------------------------------------------------------------


@both
@pytest.mark.parametrize("inner", [False, True])
def test_data_parallel_without_devices_is_recorded_once(
    tmp_path: Path, via: Via, inner: bool
) -> None:
    model, path, x = Two(), tmp_path / "t.tape", torch.ones(3, 4)
    expected = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel = torch.nn.DataParallel(model)
    with record(model if inner else parallel, path, via=via):
        assert torch.equal(parallel(x), expected)
    (call,) = read(path).calls
    assert torch.equal(call.output(0), expected)


@both
def test_values_under_autocast_are_recorded_in_their_dtypes(tmp_path: Path, via: Via) -> None:
    model, path = Two(), tmp_path / "t.tape"
    x = torch.randn(4, 3).t()  # not contiguous: copied by an operator
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
        with record(model, path, via=via), record(model.middle, tmp_path / "m.tape", via=via):
            result = model(x)
    assert result.dtype is torch.bfloat16
    assert torch.equal(result, expected)
    (call,) = read(path).calls
    assert call.input(0).dtype is torch.float32
    assert torch.equal(call.input(0), x)
    assert torch.equal(call.output(0), result)
    assert read(tmp_path / "m.tape").calls[0].input(0).dtype is torch.bfloat16


@both
@pytest.mark.parametrize("how", ["script", "trace", "freeze", "loaded"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_scripted_modules_and_their_hosts_are_recorded(tmp_path: Path, via: Via, how: str) -> None:
    """A scripted module by itself, and as a part of a module that is not."""
    x = torch.ones(2, 4)
    scripted: Any
    if how == "trace":
        scripted = torch.jit.trace(Add(), (x, x))
    else:
        scripted = torch.jit.script(Add().eval())
    if how == "freeze":
        scripted = torch.jit.freeze(scripted)
    if how == "loaded":
        torch.jit.save(scripted, str(tmp_path / "add.pt"))
        scripted = torch.jit.load(str(tmp_path / "add.pt"))
    host = Two()
    host.middle = scripted
    expected = host(x)
    with (
        record(host, tmp_path / "host.tape", via=via),
        record(scripted, tmp_path / "part.tape", via=via) as part,
    ):
        assert torch.equal(host(x), expected)
        assert torch.equal(scripted(x, x), x + x)
    assert torch.equal(read(tmp_path / "host.tape").calls[0].output(0), expected)
    assert part.stats().kept == 2
    for call in read(tmp_path / "part.tape").calls:
        assert torch.equal(call.output(0), call.input(0) * 2)


@both
@pytest.mark.integration
@pytest.mark.parametrize("strict", [False, True])
def test_modules_that_export_made_are_recorded(tmp_path: Path, via: Via, strict: bool) -> None:
    path, rows = tmp_path / "t.tape", torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(
        Two(), (torch.ones(3, 4),), dynamic_shapes=({0: rows},), strict=strict
    )
    model = program.module()
    with record(model, path, via=via) as recorder:
        results = [model(torch.ones(n, 4)) for n in (2, 5)]
        with pytest.raises(Exception):  # noqa: B017,PT011 - of the exported module's own guards
            model(torch.ones(5, 3))
    assert recorder.stats().kept == 3
    calls = read(path).calls
    assert [call.input(0).shape[0] for call in calls] == [2, 5, 5]
    assert all(torch.equal(c.output(0), r) for c, r in zip(calls, results, strict=False))
    assert calls[2].record.error is not None


# --- several at once ---------------------------------------------------------------------------


class Three(torch.nn.Module):
    """Recorded parts within a recorded part within a recorded module."""

    def __init__(self) -> None:
        super().__init__()
        self.two = Two()
        self.add = Add()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.add(self.two(x), x)
        return result


@both
def test_nested_modules_in_many_threads_have_their_own_calls(tmp_path: Path, via: Via) -> None:
    model = Three()
    parts = {"model": model, "two": model.two, "middle": model.two.middle, "add": model.add}
    recorders = {
        name: record(part, tmp_path / f"{name}.tape", via=via) for name, part in parts.items()
    }
    expected = {n: model(torch.full((n, 4), float(n))) for n in range(1, 9)}
    wrong: list[int] = []

    def client(n: int) -> None:
        results = [model(torch.full((n, 4), float(n))) for _ in range(25)]
        wrong.extend(n for result in results if not torch.equal(result, expected[n]))

    threads = [threading.Thread(target=client, args=(n,)) for n in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for recorder in recorders.values():
        recorder.close()
        assert recorder.stats().kept == recorder.stats().seen == 8 + 8 * 25
    assert not wrong
    for name, part in parts.items():
        tape = read(tmp_path / f"{name}.tape")
        assert sorted(tape.numbers) == list(range(8 + 8 * 25))
        for call in tape.calls:
            inputs = [call.input(node.leaf) for node in call.args]
            assert torch.equal(part(*inputs), call.output(0))


def test_one_module_may_be_recorded_twice_by_hook_and_by_method(tmp_path: Path) -> None:
    model, x = Two(), torch.ones(2, 4)
    with (
        record(model, tmp_path / "a.tape"),
        record(model, tmp_path / "b.tape"),
        record(model, tmp_path / "c.tape", via="method"),
        record(model, tmp_path / "d.tape", via="method"),
    ):
        result = model(x)
        model.forward(x)
    for name, count in (("a", 1), ("b", 1), ("c", 2), ("d", 2)):
        calls = read(tmp_path / f"{name}.tape").calls
        assert len(calls) == count
        assert all(torch.equal(call.output(0), result) for call in calls)
    assert "forward" not in vars(model)


def unusual(kind: str) -> torch.Tensor:
    plain = torch.ones(2, 3)
    if kind == "nested":
        return torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])
    if kind == "zero":
        return torch._efficientzerotensor((2, 3))  # type: ignore[attr-defined, no-any-return]  # pyright: ignore
    if kind == "functional":
        return torch._to_functional_tensor(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(plain, f"to_{kind}")()  # type: ignore[no-any-return]


@pytest.mark.parametrize("values", ["all", "none"])
@pytest.mark.parametrize("kind", ["nested", "zero", "functional", "sparse_csr", "sparse", "mkldnn"])
def test_tensors_without_strides_or_memory_do_no_harm(
    tmp_path: Path, kind: str, values: Any
) -> None:
    """torch's guards end the process when they meet some of them; others have no bytes to copy."""
    tensor = unusual(kind)
    for repeated in (0, 5):
        model = Identity()
        with record(model, tmp_path / f"{repeated}.tape", values=values) as recorder:
            for _ in range(repeated):
                model(torch.ones(2, 3))
            for _ in range(5):
                assert model(tensor) is tensor
            recorder.flush()
            assert recorder.stats().kept == repeated + 5
        tape = read(tmp_path / f"{repeated}.tape")
        assert not tape.damage
        assert len(tape.calls) == repeated + 5


def test_a_hook_that_gives_all_calls_the_same_keywords(tmp_path: Path) -> None:
    """Two threads, the calls of which overlap."""
    first, second, over = (threading.Event() for _ in range(3))

    class Waits(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
            if x == 1:
                first.set()
                assert second.wait(60)
            else:
                second.set()
                assert over.wait(60)
            return x * scale

    shared = {"scale": 10.0}
    model = Waits()
    model.register_forward_pre_hook(lambda _, args, kwargs: (args, shared), with_kwargs=True)
    with record(model, tmp_path / "t.tape"):
        other = threading.Thread(target=lambda: (model(torch.tensor(1.0)), over.set()))
        other.start()
        assert first.wait(60)
        model(torch.tensor(2.0))
        other.join()
    for call in read(tmp_path / "t.tape").calls:
        assert call.output(0) == 10 * call.input(0)


def test_a_call_that_is_not_recorded_ends_no_other(tmp_path: Path) -> None:
    """As asyncio.to_thread runs it: in another thread, in a copy of this one's context."""
    keywords: dict[str, Any] = {}

    class Asks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) == 3:
                context = contextvars.copy_context()
                thread = threading.Thread(target=context.run, args=(self, torch.ones(5)))
                thread.start()
                thread.join()
            return x + 1

    model = Asks()
    model.register_forward_pre_hook(lambda _, args, kwargs: (args, keywords), with_kwargs=True)
    with record(model, tmp_path / "t.tape", keep=First(1)):
        model(torch.zeros(3))
    (call,) = read(tmp_path / "t.tape").calls
    assert call.output(0).tolist() == [1, 1, 1]
