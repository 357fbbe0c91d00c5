"""What is exported is right or refuses; what cannot be exported is named."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportError, NoVariant, export
from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.exporting.exporter import Exporter
from calltape_analyzer.exporting.torch_fixes.constant_tensors import known_constants
from calltape_analyzer.exporting.torch_fixes.recurrence import open_lengths
from calltape_analyzer.programs.reasons import ByTrace, OfCall, OutOfRange
from tests.analyzer.exported import (
    assert_as_module,
    call,
    export_with,
    made,
    taped,
)
from tests.analyzer.exporting.models import Branching, Grid, Model, Untraced, never_wrong, t

# --- models that take different ways -------------------------------------------------------------


def test_model_that_branches_on_a_size_becomes_several_programs(tmp_path: Path) -> None:
    module = Branching()
    programs = made(
        tmp_path, module, [call(t(n, 3)) for n in (2, 3, 7, 9)], [call(t(4, 3)), call(t(20, 3))]
    )
    assert len(programs) == 2
    names = [programs.inputs_for(t(n, 3))[0] for n in (3, 4, 5, 30)]
    assert names[0] == names[1] != names[2] == names[3]


def test_what_a_program_refuses_is_no_error(tmp_path: Path) -> None:
    programs = made(tmp_path, Branching(), [call(t(n, 3)) for n in (2, 3, 7, 9)])
    assert [attempt.error for attempt in programs.attempts] == [None] * len(programs.attempts)
    remarks = [attempt.remark for attempt in programs.attempts]
    assert OfCall(2, ByTrace(OutOfRange("x[0]", 7, most=4))) in remarks


class Stepped(Model):
    """Does something of its own at a size of 5, which a program for more sizes refuses."""

    def forward(self, x):
        if x.shape[0] == 5:
            return self.linear(x) * 2
        if x.shape[0] > self.most:
            raise ValueError("too long")
        return self.linear(x) * (1 if x.shape[0] < 5 else 3)


@pytest.mark.integration
def test_a_single_size_is_covered_on_the_way_to_larger_ones(tmp_path: Path) -> None:
    module = Stepped()
    module.most = 100
    calls = [call(t(n, 3)) for n in (2, 3)]
    programs = made(tmp_path, module, calls, [call(t(n, 3)) for n in (4, 5, 6, 40)])
    assert len(programs) == 3


@pytest.mark.integration
def test_a_single_size_that_nobody_asked_for_gets_no_program(tmp_path: Path) -> None:
    module = Stepped()
    module.most = 5
    programs = made(tmp_path, module, [call(t(n, 3)) for n in (2, 3)])
    assert len(programs) == 1
    with pytest.raises(NoVariant):
        programs(t(5, 3))


class Cached(Model):
    """What the first call had stays."""

    def __init__(self) -> None:
        super().__init__()
        self.first: int | None = None

    def forward(self, x):
        if self.first is None:
            self.first = int(x.shape[0])
        return self.linear(x) * self.first


class Remembers(Model):
    """A table of positions that grows by Python, and is scaled by how long it became: an exported
    program has the length of its trace in it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(4.0)

    def forward(self, x):
        if x.shape[0] > len(self.table):
            self.table = torch.arange(float(2 * x.shape[0].__int__()))
        return self.linear(x) + self.table[: x.shape[0], None] + len(self.table)


class Rounded(Model):
    """The trace makes a constant of what float() gives, and no condition."""

    def forward(self, x):
        return self.linear(x) * float(torch.full((), float(x.shape[0])).sqrt())


class Listed(Model):
    """A Python number that the trace computes once, without a guard."""

    def forward(self, x):
        return self.linear(x) * len(str(x.stride(0) * 0 + x.numel()))


class Periodic(Model):
    """Right at all sizes that anybody tries, and wrong far beyond."""

    def forward(self, x):
        size = x.shape[0]
        size = size.node.hint if isinstance(size, torch.SymInt) else size
        return self.linear(x) * (1 if size < 20_000 else -1)


SIZES = (1, 2, 3, 4, 5, 6, 8, 11, 13)


@pytest.mark.integration
@pytest.mark.parametrize("cls", [Remembers, Rounded, Listed, Untraced, Cached])
def test_value_that_a_trace_made_constant_is_never_returned_for_another_size(
    cls: type[Model], tmp_path: Path
) -> None:
    module = cls()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (2, 3, 7)])
    try:
        programs = export(tape, module)
    except ExportError:
        return
    report = programs.verify()
    served = {row.call for row in report if row.ok}
    for name, why in programs.missing.items():
        assert name
        assert why
    assert len(served) == 3 or programs.missing or any(p.notes for p in programs.values())
    calls = [call(t(n, 3)) for n in SIZES]
    if cls is not Remembers:  # which itself gives other values, after other calls
        never_wrong(programs, module, calls)


@pytest.mark.integration
def test_program_that_is_wrong_at_unseen_sizes_serves_the_recorded_ones_only(
    tmp_path: Path,
) -> None:
    module = Untraced()
    programs = export(taped(tmp_path, module, [call(t(n, 3)) for n in (2, 5)]), module)
    assert programs.verify().ok
    assert any("wrong values" in note for note in map(str, programs.verify().notes))
    assert never_wrong(programs, module, [call(t(n, 3)) for n in SIZES]) == 2


def test_program_that_is_wrong_beyond_every_probe_is_found_by_verify(tmp_path: Path) -> None:
    module = Periodic()
    programs = export(taped(tmp_path, module, [call(t(n, 3)) for n in (2, 5)]), module)
    later = taped(tmp_path, module, [call(t(n, 3)) for n in (6, 30_000)], name="later.tape")
    report = programs.verify(later)
    assert [row.ok for row in report] == [True, False]
    assert "elements differ" in str(report.rows[1].error)


# --- what cannot be exported ---------------------------------------------------------------------


class Raising(Model):
    def forward(self, x, mask=None):
        if torch.compiler.is_exporting() and mask is None:
            raise RuntimeError("not while you look")
        y = self.linear(x)
        return y if mask is None else y * mask


def test_model_that_raises_in_the_export_gives_an_error_that_says_what_it_said(
    tmp_path: Path,
) -> None:
    module = Raising()
    with pytest.raises(ExportError, match="not while you look") as caught:
        export(taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)]), module)
    assert "main" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.integration
def test_variant_that_cannot_be_exported_is_named_and_leaves_the_others(tmp_path: Path) -> None:
    module = Raising()
    tape = taped(
        tmp_path, module, [call(t(n, 3), *more) for n in (4, 6) for more in ((), (t(n, 3),))]
    )
    programs = export(tape, module)
    assert list(programs) == ["mask present"]
    assert list(programs.missing) == ["no mask"]
    assert "not while you look" in str(programs.missing["no mask"])
    assert_as_module(programs, module, [call(t(5, 3), t(5, 3))])
    with pytest.raises(NoVariant, match="not while you look"):
        programs(t(5, 3))
    report = programs.verify()
    assert [row.ok for row in report] == [False, True, False, True]
    assert "not while you look" in str(report.rows[0].error)
    assert {attempt.variant for attempt in programs.attempts} == {"no mask", "mask present"}


def test_empty_tape_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match="no calls"):
        export(taped(tmp_path, Model(), []), Model())


@pytest.mark.parametrize("options", [{"to": "coreml"}, {"merge": "always"}])
def test_options_that_do_not_exist_are_refused(options: Any, tmp_path: Path) -> None:
    module = Branching()
    with pytest.raises(UsageError):
        export_with(taped(tmp_path, module, [call(t(3, 3))]), module, **options)


def test_calls_that_raised_are_left_out_and_counted(tmp_path: Path) -> None:
    class Picky(Model):
        def forward(self, x):
            if x.shape[0] == 13:
                raise ValueError("unlucky")
            return self.linear(x)

    module = Picky()
    programs = export(taped(tmp_path, module, [call(t(n, 3)) for n in (4, 13, 6)]), module)
    report = programs.verify()
    assert [row.call for row in report] == [0, 2]
    assert report.ok
    assert any(note.startswith("1 call raised") for note in map(str, report.notes))


# --- values as constants -------------------------------------------------------------------------


@pytest.fixture
def only_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a model that no other way gives a program of."""
    monkeypatch.setattr(Exporter, "value_trials", lambda *_: iter(()))


@pytest.mark.usefixtures("only_constants")
def test_values_that_the_model_reads_become_constants_which_refuse_others(tmp_path: Path) -> None:
    module = Grid()
    grids = ([2, 3], [1, 4], [2, 2])
    programs = made(tmp_path, module, [call(t(sum(g), 3), torch.tensor(g)) for g in grids])
    assert len(programs) == 3
    assert all(any("constant" in str(note) for note in p.notes) for p in programs.values())
    with pytest.raises(NoVariant, match=r"grid is \[3, 2\]"):
        programs(t(5, 3), torch.tensor([3, 2]))
    # The same in number, of another order.
    with pytest.raises(NoVariant):
        programs(t(4, 3), torch.tensor([3, 1]))


def test_values_that_only_say_where_to_split_stay_inputs(tmp_path: Path) -> None:
    class Splitting(Model):
        def forward(self, x, grid):
            parts = x.split(grid.tolist())
            return torch.stack([self.linear(part).sum(0) for part in parts])

    module = Splitting()
    calls = [call(t(sum(g), 3), torch.tensor(g)) for g in ([2, 3], [1, 4], [2, 2])]
    assert len(made(tmp_path, module, calls, [call(t(5, 3), torch.tensor([4, 1]))])) == 1


def test_limits_of_torch_are_put_back() -> None:
    from torch._subclasses import fake_tensor

    before = fake_tensor.CONSTANT_NUMEL_LIMIT
    with pytest.raises(KeyError), known_constants(True):
        raise KeyError
    assert before == fake_tensor.CONSTANT_NUMEL_LIMIT


@pytest.mark.integration
def test_calls_of_one_size_and_other_values_get_programs_of_their_own(tmp_path: Path) -> None:
    module = Grid()
    grids = ([2, 3], [1, 4], [2, 2], [4, 1])
    programs = made(tmp_path, module, [call(t(sum(g), 3), torch.tensor(g)) for g in grids])
    assert len(programs) >= 2
    assert not programs.missing


@pytest.mark.usefixtures("only_constants")
def test_constants_are_kept_by_saved_programs(tmp_path: Path) -> None:
    from calltape_analyzer import load_programs

    module = Grid()
    calls = [call(t(sum(g), 3), torch.tensor(g)) for g in ([2, 3], [1, 4])]
    made(tmp_path, module, calls).save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert_as_module(loaded, module, calls)
    with pytest.raises(NoVariant, match="grid"):
        loaded(t(5, 3), torch.tensor([3, 2]))


# --- recurrence ----------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("cls", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_layer_takes_any_length(cls: Any, layers: int, tmp_path: Path) -> None:
    module = cls(3, 4, num_layers=layers, batch_first=True, bidirectional=layers == 2)
    programs = made(
        tmp_path,
        module,
        [call(t(2, 5, 3)), call(t(3, 7, 3))],
        [call(t(4, 11, 3)), call(t(6, 2, 3))],
    )
    assert len(programs) == 1


def functions() -> list[Any]:
    module = importlib.import_module("torch._decomp.decompositions")
    return [module.one_layer_rnn, module.one_layer_lstm]


def test_functions_of_torch_are_put_back_also_after_an_error(tmp_path: Path) -> None:
    class Failing(Model):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = torch.nn.GRU(3, 3)

        def forward(self, x):
            if torch.compiler.is_exporting():
                raise RuntimeError("no")
            return self.rnn(x)[0]

    before = functions()
    module = Failing()
    with pytest.raises(ExportError):
        export(taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)]), module)
    assert functions() == before
    with pytest.raises(KeyError), open_lengths(True):
        raise KeyError
    assert functions() == before


# --- other ways to record ------------------------------------------------------------------------


@pytest.mark.integration
def test_shapes_only_tape_is_verified_against_the_module(tmp_path: Path) -> None:
    module = Branching()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (2, 3, 7)], values="none")
    programs = export(tape, module)
    report = programs.verify()
    assert report.ok, report.table()
    assert {row.against for row in report} == {"module"}
    assert_as_module(programs, module, [call(t(4, 3)), call(t(9, 3))])


def test_removed_inputs_are_left_out_everywhere(tmp_path: Path) -> None:
    class Noted(Model):
        def forward(self, x, note=None):
            return self.linear(x)

    module = Noted()
    tape = taped(tmp_path, module, [call(t(n, 3), note="abc"[:k]) for k, n in ((1, 4), (2, 6))])
    tape.remove_inputs(["note"])
    programs = export(tape, module)
    assert len(programs) == 1
    assert programs.verify().ok
    assert_as_module(programs, module, [call(t(5, 3))])


@pytest.mark.integration
def test_tape_of_several_files_is_one(tmp_path: Path) -> None:
    from calltape_analyzer import open_tape

    module = Branching()
    taped(tmp_path, module, [call(t(2, 3)), call(t(3, 3))], name="one.tape")
    taped(tmp_path, module, [call(t(7, 3)), call(t(9, 3))], name="other.tape")
    tape = open_tape([str(tmp_path / "one.tape"), str(tmp_path / "other.tape")])
    programs = export(tape, module)
    report = programs.verify()
    assert report.ok
    assert len(report) == 4
    assert len(programs) == 2
