"""The model is run at recorded sizes, and at others only within bounds."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor

from calltape_analyzer import ExportOptions, Programs, export, open_tape
from calltape_analyzer.errors import UsageError
from calltape_analyzer.exporting.session import budget
from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.notes import Probed, WhyNotOthers, WhyOnly
from calltape_analyzer.programs.reasons import End, Ended, TooMuchMemory, TooSlow
from calltape_analyzer.programs.strategies import Strategy
from calltape_recorder import record
from tests.analyzer.exported import Call, call, export_with, taped
from tests.analyzer.exporting.models import CACHED, Cached, Spy, of

pytestmark = pytest.mark.usefixtures("runs_here")


class Plain(Spy):
    def forward(self, x: Any) -> Any:
        self.note(x)
        return x * 2


class Related(Spy):
    """Takes a batch and a length that happened to be three times the batch."""

    def forward(self, x: Any, y: Any) -> Any:
        self.note(x, y)
        return x.sum(1)[:, None] * y.sum(0)


class Steps(Spy):
    def forward(self, x: Any, steps: int) -> Any:
        self.note(x, ints=(steps,))
        return x.repeat(steps, 1)


PLAIN = [call(of(n, 5)) for n in (2, 3, 7)]
RELATED = [call(of(n, 3 * n), of(3 * n, n)) for n in (2, 3)]
STEPS = [call(of(n, 3), k) for n, k in ((2, 3), (4, 5), (5, 9))]


def probed(folder: Path, module: Spy, calls: list[Call], **options: Any) -> tuple[int, Programs]:
    """The elements of the largest recorded call, and the programs."""
    tape = taped(folder, module, calls)
    recorded = module.largest
    module.seen.clear()
    programs = export_with(tape, module, **options)
    assert programs.verify().ok
    return recorded, programs


@pytest.mark.parametrize(
    ("module", "calls"),
    [(Plain(), PLAIN), (Related(), RELATED), (Steps(), STEPS), (Cached(), CACHED)],
    ids=lambda given: type(given).__name__,
)
def test_no_run_is_larger_than_four_times_the_largest_call(
    tmp_path: Path, module: Spy, calls: list[Call]
) -> None:
    recorded, programs = probed(tmp_path, module, calls)
    assert recorded < module.largest <= 4 * recorded
    assert sum(attempt.probed for attempt in programs.attempts) > 0
    (note,) = {
        str(note) for p in programs.values() for note in p.all_notes if isinstance(note, Probed)
    }
    assert "none more than 4 times as large (probe='near')" in note


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"agreed": 9}, ": the same as the model"),
        ({"agreed": 6}, ": the same as the model at 6, rejected or failed at 3"),
        ({"agreed": 6, "wrong": 3}, ": the same as the model at 6, other values at 3"),
        ({"wrong": 1}, ": the same as the model at 0, rejected or failed at 8, other values at 1"),
    ],
)
def test_what_came_of_unseen_sizes_is_told(counts: dict[str, int], words: str) -> None:
    attempt = Attempt(variant="main", strategy=Strategy.PLAIN, probed=9, **counts)
    program = SimpleNamespace(variant=SimpleNamespace(symbols=[None]), all_notes=[])
    budget.Probing().note(program, attempt)  # type: ignore[arg-type]
    (note,) = program.all_notes
    assert note.is_remark is (attempt.agreed == 9)
    assert str(note).endswith(f"(probe='near'){words}")


def test_no_int_is_larger_than_four_times_the_largest_recorded_one(tmp_path: Path) -> None:
    module = Steps()
    probed(tmp_path, module, STEPS)
    steps = [ints[0] for _, ints in module.seen]
    assert 9 < max(steps) <= 36


def test_relation_that_two_calls_suggest_is_tried_without_it(tmp_path: Path) -> None:
    sizes: set[tuple[int, ...]] = set()

    class Lengths(Plain):
        def forward(self, x: Any) -> Any:
            if not isinstance(x, FakeTensor) and not torch.compiler.is_exporting():
                sizes.add(tuple(x.shape))
            return x * 2

    module = Lengths()
    export(taped(tmp_path, module, [call(of(n, 3 * n)) for n in (2, 3)]), module)
    assert any(length != 3 * batch and min(batch, length) > 1 for batch, length in sizes)


def test_relation_by_chance_is_tried_without_it_beside_one_that_the_model_needs(
    tmp_path: Path,
) -> None:
    sizes: set[tuple[int, ...]] = set()

    class Needing(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            tripled = x.view(x.shape[0], 3, x.shape[0])
            if not isinstance(x, FakeTensor) and not torch.compiler.is_exporting():
                sizes.add((*x.shape, *y.shape))
            return tripled.sum(1), y * 2

    module = Needing()
    export(taped(tmp_path, module, [call(of(n, 3 * n), of(5 * n)) for n in (2, 4)]), module)
    assert all(length == 3 * batch for batch, length, _ in sizes)
    assert any(other != 5 * batch for batch, _, other in sizes)


@pytest.mark.parametrize("options", [{"probe": "none"}, {"max_memory": 0}, {"max_memory": 1}])
def test_nothing_but_recorded_sizes_is_run_and_that_is_said(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    module = Plain()
    recorded = {5 * n for n in (2, 3, 7)}
    # A run without elements takes no memory.
    allowed = recorded if "probe" in options else {0, *recorded}
    _, programs = probed(tmp_path, module, PLAIN, **options)
    assert {elements for elements, _ in module.seen} <= allowed
    assert sum(attempt.probed for attempt in programs.attempts) == 0
    notes = [*map(str, programs.verify().notes)]
    assert any("tried at 0 unrecorded sizes" in note for note in notes)
    if "max_memory" in options:
        assert any("not tried" in note and "max_memory is 0.0 MiB" in note for note in notes)
        assert all(attempt.untried for attempt in programs.attempts)


def test_sizes_that_are_only_traced_are_not_run_where_nothing_is_probed(tmp_path: Path) -> None:
    module = Cached()
    calls = [call(of(1, n), torch.ones(1, n)) for n in (1, 2)]
    _, programs = probed(tmp_path, module, calls, probe="none")
    assert {elements for elements, _ in module.seen} <= {2, 4}  # recorded ones
    # The trace was made of other sizes all the same, so that the program takes them.
    assert len(programs) == 1
    programs(of(1, 9), torch.ones(1, 9))


def test_far_sizes_are_run_when_asked_for(tmp_path: Path) -> None:
    module = Plain()
    recorded, _ = probed(tmp_path, module, PLAIN, probe="far")
    assert module.largest == 500 * recorded


def test_far_sizes_stay_within_the_memory(tmp_path: Path) -> None:
    class Pairs(Spy):
        def forward(self, x: Any) -> Any:
            self.note(x)
            return (x[:, None] * x).sum(1)

    module = Pairs()
    limit = 2**20
    _, programs = probed(tmp_path, module, [call(of(n)) for n in (4, 6, 10)], probe="far",
                         max_memory=limit)  # fmt: skip
    # 4 bytes a number, and the square of them.
    assert module.largest > 40
    assert 4 * module.largest**2 < limit
    whys = [untried.why for attempt in programs.attempts for untried in attempt.untried]
    assert any(isinstance(why, TooMuchMemory) for why in whys)


def test_a_model_that_changes_far_beyond_is_found_out_by_far_probes_only(tmp_path: Path) -> None:
    class Long(Spy):
        def forward(self, x: Any) -> Any:
            size: Any = x.shape[0]
            size = size.node.hint if isinstance(size, torch.SymInt) else size
            return x * (1 if size < 1000 else -1)

    module = Long()
    tape = taped(tmp_path, module, PLAIN)
    near, far = (
        export(tape, module, options=ExportOptions(probe=probe)) for probe in ("near", "far")
    )
    assert near["main"].only_rows is None
    assert far["main"].only_rows is not None
    assert isinstance(why := far["main"].why_only, WhyOnly)
    assert why.kind is WhyNotOthers.WRONG_UNSEEN


def test_a_run_that_takes_too_long_is_the_last(tmp_path: Path) -> None:
    class Slow(Plain):
        def forward(self, x: Any) -> Any:
            self.note(x)
            if x.shape[0] > 13:
                raise TimeoutError("not done after 60 s")  # as the alarm would
            return x * 2

    module = Slow()
    tape = taped(tmp_path, module, PLAIN)
    module.seen.clear()
    (attempt,) = export(tape, module, options=ExportOptions(probe="far")).attempts
    assert module.largest == 5 * 14
    assert sum(elements == 5 * 14 for elements, _ in module.seen) == 1
    assert [untried.why for untried in attempt.untried] == [
        Ended(End.LATE, seconds=60),
        *[TooSlow(60, was_run=True)] * (len(attempt.untried) - 1),
    ]


@pytest.mark.parametrize("options", [{"probe": "further"}, {"max_memory": -1}])
def test_what_cannot_be_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        export_with(taped(tmp_path, Plain(), PLAIN), Plain(), **options)


@pytest.mark.integration
def test_a_generating_model_is_run_within_bounds(tmp_path: Path) -> None:
    """GPT-2 as it is called, and smaller; its real size: ``python -m benchmarks export_memory``."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=1024,
        bos_token_id=0, eos_token_id=99, pad_token_id=99,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    seen: list[int] = []

    def note(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids, cache = kwargs.get("input_ids"), kwargs.get("past_key_values")
        if ids is None or isinstance(ids, FakeTensor) or torch.compiler.is_exporting():
            return
        layers = getattr(cache, "layers", ())
        held = [t for layer in layers for t in (layer.keys, layer.values) if t is not None]
        given = [value for value in kwargs.values() if isinstance(value, torch.Tensor)]
        seen.append(sum(tensor.numel() for tensor in (*given, *held)))

    with record(model, tmp_path / "calls.tape"):
        handle = model.register_forward_pre_hook(note, with_kwargs=True)
        for batch, length in ((1, 24), (2, 80), (1, 160)):
            ids = torch.randint(1, 99, (batch, length))
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3)
    recorded = max(seen)
    assert len(seen) == 9
    seen.clear()
    programs = export(open_tape(tmp_path / "calls.tape"), model)
    handle.remove()
    assert recorded < max(seen) <= 4 * recorded
    assert programs.verify().ok
    (attempt,) = programs.attempts
    assert attempt.agreed == attempt.probed > 3
    assert attempt.untried == []


class ForTwo(torch.nn.Module):
    """Takes pairs of rows only."""

    def forward(self, x: Any, y: Any) -> Any:
        if x.shape[0] != 2:
            raise ValueError("a pair, please")
        if y.shape[0] not in (4, 7):
            raise ValueError("four or seven")
        return x.sum(0) + y.sum(0)


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([call(torch.rand(2, 3), torch.rand(4, 3))], r"\(probe='near'\): none varied"),
        (
            [call(torch.rand(2, 3), torch.rand(n, 3)) for n in (4, 7)],
            r"\(probe='near'\): the model itself raised an error at \d+ sizes",
        ),
    ],
)
def test_why_nothing_beside_the_recorded_calls_was_tried(
    tmp_path: Path, calls: list[Any], why: str
) -> None:
    programs = export(taped(tmp_path, ForTwo(), calls), ForTwo())
    notes = [note for program in programs.values() for note in program.notes]
    assert any(re.search(f"tried at 0 unrecorded sizes {why}", str(n)) for n in notes)
