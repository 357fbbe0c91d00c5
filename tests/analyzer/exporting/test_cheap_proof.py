"""A proof costs what it is worth: few runs, at sizes that users may have."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calltape_analyzer import Tolerances, export
from calltape_analyzer.exporting import exporter
from calltape_analyzer.exporting.session import budget, verification
from calltape_analyzer.foreign_errors import Raised
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import Because, OfCall, OfModel, Sampled, Why
from calltape_analyzer.programs.strategies import Strategy
from tests.analyzer.exported import call, made, taped
from tests.analyzer.exporting.models import CACHED, Cached, Model, t


class Patches(Model):
    """Takes images that are whole patches, as most models do."""

    def forward(self, x):
        batch, height, width = x.shape
        return x.reshape(batch, height // 16, 16, width // 16, 16).mean((2, 4))


def image(batch: int, height: int, width: int) -> Any:
    return call(t(batch, height, width))


def test_sizes_stay_multiples_of_what_all_were_multiples_of(tmp_path: Path) -> None:
    calls = [image(1, 32, 32), image(2, 64, 48), image(3, 48, 80)]
    programs = made(tmp_path, Patches(), calls, [image(5, 96, 32), image(1, 128, 112)])
    assert len(programs) == 1
    (attempt,) = programs.attempts
    assert attempt.agreed == attempt.probed > 0


@pytest.mark.integration
@pytest.mark.parametrize(("unit", "count"), [(4, 1), (8, 2)])
def test_a_program_between_multiples_is_sought_half_way_only(
    unit: int, count: int, tmp_path: Path
) -> None:
    class Resized(Model):
        """Does something else with what is no multiple."""

        def forward(self, x):
            return x * 2 if x.shape[1] % unit == 0 else x * 3

    calls = [call(t(n, 8 * k)) for n, k in ((2, 3), (3, 4), (4, 5), (3, 8))]
    programs = made(tmp_path, Resized(), calls, [call(t(2, 56)), call(t(2, 60))])
    assert len(programs) == count


@pytest.mark.usefixtures("runs_here")
def test_probes_end_when_they_took_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Slow(Model):
        def forward(self, x):
            if not torch.compiler.is_exporting():
                now[0] += 0.5
            return x * 2

    clock = SimpleNamespace(
        perf_counter=lambda: now[0], monotonic=lambda: now[0], thread_time=lambda: 0.0
    )
    monkeypatch.setattr(verification, "time", clock)
    monkeypatch.setattr(budget, "time", clock)
    # A probe takes 0.5 s, and is expected to take twice that.
    monkeypatch.setattr(budget.Probing, "patience", lambda self, seconds: 1.4)
    module = Slow()
    programs = export(taped(tmp_path, module, [call(t(n, 3)) for n in (2, 3, 5)]), module)
    (attempt,) = programs.attempts
    assert attempt.probed == 1
    assert attempt.ok
    assert Because(Why.LATE) in [untried.why for untried in attempt.untried]
    report = programs.verify()
    assert any("not tried: " in remark for remark in map(str, report.remarks))
    assert not any("not tried: " in note for note in map(str, report.notes))


def test_far_probes_have_all_the_time() -> None:
    assert budget.Probing("far").patience(0.1) == float("inf")
    assert budget.Probing("near").patience(6000.0) == 2000.0


@pytest.mark.usefixtures("runs_here")
def test_a_size_that_would_take_too_long_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    class Slow(Model):
        def forward(self, x):
            if not torch.compiler.is_exporting():
                now[0] += 0.1 * x.shape[0]
            return x * 2

    clock = SimpleNamespace(
        perf_counter=lambda: now[0], monotonic=lambda: now[0], thread_time=lambda: 0.0
    )
    monkeypatch.setattr(verification, "time", clock)
    monkeypatch.setattr(budget, "time", clock)
    # Sizes 3, 1, 10, 4 and 6, in this order. A program counts as much again as the model.
    monkeypatch.setattr(budget.Probing, "patience", lambda self, seconds: 2.2)
    module = Slow()
    (attempt,) = export(taped(tmp_path, module, [call(t(n, 3)) for n in (2, 5)]), module).attempts
    assert [untried.sizes for untried in attempt.untried] == ["x_dim_0=10"]
    assert attempt.agreed == attempt.probed == 4


class Refilled(torch.nn.Module):
    """Takes an empty cache for a full one, as an encoder-decoder does."""

    def forward(self, x: Any, past: Any = None) -> Any:
        if past is None:
            past = x[..., None].expand(-1, -1, 16) * 2
        return past.sum() + x, past * 1


@pytest.mark.integration
def test_no_merge_is_traced_that_the_model_itself_refutes(tmp_path: Path) -> None:
    calls = [call(t(2, n)) for n in (4, 6)] + [call(t(2, n), t(2, n + 2, 16)) for n in (4, 6)]
    programs = made(tmp_path, Refilled(), calls, [])
    assert len(programs) == 2
    (refuted,) = [a for a in programs.attempts if a.strategy is Strategy.MERGED]
    assert refuted.error == OfCall(0, Because(Why.OTHER_WITHOUT_CACHE))
    assert not refuted.tried


@pytest.mark.integration
def test_a_merge_that_the_model_takes_is_made(tmp_path: Path) -> None:
    assert len(made(tmp_path, Cached(), CACHED, [])) == 1


class Triples(Model):
    """All triples of rows: memory grows with the third power of the length."""

    def forward(self, x):
        triples = x[:, :, None, None] * x[:, None, :, None] * x[:, None, None, :]
        return triples.amax((1, 2))


@pytest.mark.integration
def test_far_sizes_that_need_too_much_memory_are_said_and_not_run(tmp_path: Path) -> None:
    """The far size needs more than 100 GB, by the power that the recorded calls show."""
    programs = made(
        tmp_path,
        Triples(),
        [call(t(b, n)) for b, n in ((1, 20), (2, 40), (1, 60))],
        probe="far",
        max_memory=2**28,
    )
    (attempt,) = programs.attempts
    found = [
        re.fullmatch(
            r".*x_dim_0=(\d+), x_dim_1=(\d+): may take ([\d.]+) GiB of memory; .*", str(untried)
        )
        for untried in attempt.untried
    ]
    needed = {(int(one[1]), int(one[2])): float(one[3]) for one in found if one}
    assert max(needed.values()) > 100
    for (batch, length), gib in needed.items():
        if length > 60:  # what a larger batch may take is a bound, as for attention over it
            assert 1 / 10 < gib / (2 * 4 * batch * length**3 / 2**30) < 10


UNFIT = [call(torch.rand(1, 4)), call(torch.rand(6, 1))]
"""No call has two sizes that a trace keeps open, so that the first trace has sizes of its own."""


class RecordedOnly(torch.nn.Module):
    """Takes no other sizes than these, which no trace shows."""

    def forward(self, x):
        if not torch.compiler.is_exporting() and tuple(x.shape) not in ((1, 4), (6, 1)):
            raise ValueError("another size")
        return x * 2


def test_a_model_is_not_asked_for_sizes_that_a_good_program_was_traced_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(exporter, "why_not", lambda *given: asked.append(given))
    programs = export(taped(tmp_path, torch.nn.Tanh(), UNFIT), torch.nn.Tanh())
    (attempt,) = programs.attempts
    assert "resized" in attempt.what
    assert attempt.agreed == attempt.probed > 0
    assert not asked


def test_a_trace_with_sizes_that_the_model_does_not_take_tells_nothing(tmp_path: Path) -> None:
    programs = export(taped(tmp_path, RecordedOnly(), UNFIT), RecordedOnly())
    first, second, *_ = programs.attempts
    assert "resized" in first.what
    assert first.error == OfModel(Raised("ValueError", "another size"))
    assert first.tried == 0
    assert (second.strategy, second.sample) == (Strategy.PLAIN, Sampled(0))


class Scaled(Model):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return x * self.factor


def test_what_the_export_compared_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    real = Program.outputs

    def outputs(program: Program, *given: Any) -> Any:
        runs.append(program.name)
        return real(program, *given)

    monkeypatch.setattr(Program, "outputs", outputs)
    module = Scaled()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (2, 3, 5, 5)])
    programs = export(tape, module)
    runs.clear()
    assert programs.verify().ok
    assert len(runs) == 1  # the second call of size 5 is new
    assert programs.verify(tolerances=Tolerances(rtol=1e-3, atol=1e-3)).ok
    assert len(runs) == 5
    with torch.no_grad():
        module.factor += 1
    report = programs.verify()
    assert len(runs) == 9
    assert not report.ok
    assert report.reproduced == 0
