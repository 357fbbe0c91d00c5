"""A compiled model: no graph more, no graph break more, every call recorded."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from calltape_recorder import record
from tests.recorder.host import compile_matrix
from tests.recorder.models import Two
from tests.recorder.reading import read

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _compiles_alone() -> Iterator[None]:
    yield
    torch._dynamo.reset()


SIZES = (2, 3, 5, 8, 2)


class Counts:
    """What Dynamo did since it was reset."""

    def __init__(self) -> None:
        import torch._dynamo.utils as dynamo

        torch._dynamo.reset()
        dynamo.counters.clear()
        self._counters = dynamo.counters
        self.graphs = 0

    def backend(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward

    def __call__(self) -> tuple[int, int, Any]:
        breaks = sum(self._counters["graph_break"].values())
        return self.graphs, breaks, self._counters["frames"].get("total")


def described(case: compile_matrix.Case) -> str:
    name = f"{case.model}-{case.compile.__name__}-{case.when}-{case.via}"
    return name + "-part" * case.part + "-fullgraph" * case.fullgraph


def is_quick(case: compile_matrix.Case) -> bool:
    """Some of each kind: with new shapes, and of torch's own modules, which torch compiles by what
    calls them."""
    if case.model == "nn.Sequential":
        return case.compile is compile_matrix.root and case.when == "before"
    return case.is_compiled_anew and case.compile is not compile_matrix.submodule


@pytest.mark.parametrize("case", [*filter(is_quick, compile_matrix.cases())], ids=described)
def test_a_placement_keeps_its_promise(case: compile_matrix.Case) -> None:
    row = compile_matrix.row(case)
    assert row.holds, compile_matrix.line(row)


def test_a_detached_recorder_leaves_the_compiled_model_compiled(tmp_path: Path) -> None:
    counts, model = Counts(), Two()
    compiled = torch.compile(model, backend=counts.backend)
    with record(model, tmp_path / "t.tape"):
        compiled(torch.ones(2, 4))
    before = counts()
    compiled(torch.ones(2, 4))
    assert counts() == before
    assert copy.deepcopy(model)(torch.ones(2, 4)).shape == (2, 4)


def test_graphs_compiled_before_attach_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        start = f"calltape, process {os.getpid()}: "
        lines = [entry.getMessage() for entry in caplog.records if entry.name == "calltape"]
        assert all(line.startswith(start) for line in lines)
        told = [line.removeprefix(start)[:37] for line in lines]
        return [line for line in told if not line.startswith("no call of")]

    counts, model, x = Counts(), Two(), torch.ones(2, 4)
    record(model.middle, tmp_path / "0.tape").close()
    assert not said()  # nothing is compiled yet
    compiled = torch.compile(model, backend=counts.backend)
    compiled(x)
    for whole_one in (model, compiled):
        record(whole_one, tmp_path / "1.tape", overwrite=True).close()
    assert not said()  # it runs its hooks
    with record(model.middle, tmp_path / "2.tape") as recorder:
        recorder.detach()
        recorder.attach(model.middle)
    assert said() == ["graphs were compiled before attach():"]
    with record(model.middle, tmp_path / "3.tape", via="method") as recorder:
        compiled(x)
    assert recorder.stats().kept == 1
    assert len(said()) == 1


@pytest.mark.slow
def test_each_case_of_the_compile_matrix_keeps_its_promise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All promises are kept; the table is printed."""
    rows = [compile_matrix.row(case) for case in compile_matrix.cases()]
    with capsys.disabled():
        print(f"\n{compile_matrix.HEADER}")
        for row in rows:
            print(compile_matrix.line(row))
    assert [compile_matrix.line(row) for row in rows if not row.holds] == []
    assert {row.case.promise for row in rows} == {"free", "breaks", "counted", "said"}


def test_compiled_parts_of_a_stream_stay_compiled(tmp_path: Path) -> None:
    """What records a stream is not compiled, and what the stream calls is."""

    class Streams(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = Two()

        def generate(self, x: torch.Tensor, n: int) -> Iterator[torch.Tensor]:
            for _ in range(n):
                x = self.step(x)
                yield x

    def chunks(recorded: bool) -> tuple[Any, list[torch.Tensor]]:
        torch.manual_seed(0)
        counts, model = Counts(), Streams()
        model.step.compile(backend=counts.backend)
        if not recorded:
            return counts, list(model.generate(torch.ones(2, 4), 3))
        with record(model, tmp_path / "t.tape", method="generate"):
            return counts, list(model.generate(torch.ones(2, 4), 3))

    plain, expected = chunks(False)
    before = plain()
    counts, found = chunks(True)
    assert counts() == before
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    (call,) = read(tmp_path / "t.tape").calls
    assert all(torch.equal(call.output(leaf), chunk) for leaf, chunk in enumerate(expected))


@pytest.mark.parametrize("via", ["hook", "method"])
def test_other_threads_are_served_while_one_compiles(
    tmp_path: Path, via: Literal["hook", "method"]
) -> None:
    """``torch.compiler.is_compiling()`` is true in all of them."""
    compiles, go_on = threading.Event(), threading.Event()

    def backend(graph: Any, inputs: Any) -> Any:
        compiles.set()
        assert go_on.wait(60)
        return graph.forward

    compiled = torch.compile(Two(), backend=backend)
    thread = threading.Thread(target=compiled, args=(torch.ones(2, 4),))
    model = Two()
    with record(model, tmp_path / "t.tape", via=via) as recorder:
        for rows in SIZES:
            model(torch.ones(rows, 4))
        thread.start()
        assert compiles.wait(60)
        for rows in SIZES:  # some look like earlier ones, some do not
            model(torch.ones(rows + 1, 4))
        go_on.set()
        thread.join()
        assert not recorder.stats().dropped
    assert len(read(tmp_path / "t.tape").calls) == 2 * len(SIZES)


@pytest.mark.parametrize("way", ["reset", "method"])
def test_graphs_of_another_module_of_torch_are_shared_unless_one_resets(
    tmp_path: Path, way: str
) -> None:
    """As docs/recording.md says."""
    x = torch.ones(2, 4)
    torch.compile(torch.nn.Linear(4, 4), backend="eager")(x)
    if way == "reset":
        torch.compiler.reset()
    model = torch.nn.Linear(4, 4)
    via: Literal["hook", "method"] = "method" if way == "method" else "hook"
    with record(model, tmp_path / "t.tape", via=via) as recorder:
        torch.compile(model, backend="eager")(x)
        model(x)
    assert recorder.stats().kept == 2
