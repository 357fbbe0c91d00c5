"""A model that changes with each call is called and left as it was, and that it does is said."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from calltape_analyzer import ExportError, export, load_programs, open_tape, replay
from calltape_analyzer.model.state import copied_from_state, unchanged
from calltape_analyzer.programs.notes import ServesOnly, StateKept, StateLost
from calltape_recorder import record
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import t

CALLS = [call(t(n, 3)) for n in (4, 6, 5)]


class Counting(torch.nn.Module):
    """Has buffers that each call updates, in place and by replacing them, and attributes."""

    def __init__(self, returned: bool, norm: bool = True) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(2), persistent=False)
        self.register_buffer("lazy", None)
        self.norm = torch.nn.BatchNorm1d(3) if norm else torch.nn.Identity()
        self.calls = 0
        self.kept = torch.zeros(1)
        self.returned = returned

    def forward(self, x):
        self.n += 1
        self.replaced = self.replaced + 1
        self.lazy = x.detach().sum() * 0
        self.calls += 1
        y = self.norm(x)
        return (y + self.n, self.n) if self.returned else y


def state(model: Counting) -> dict[str, Any]:
    found = {name: value.clone() for name, value in model.named_buffers()}
    return found | {"calls": model.calls, "kept": model.kept.clone(), "lazy": model.lazy}


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


@pytest.mark.integration
@pytest.mark.parametrize("returned", [False, True])
def test_the_model_is_left_as_it_was(returned: bool, tmp_path: Path) -> None:
    model = Counting(returned).train()
    tape = taped(tmp_path, model, CALLS)
    before = state(model)
    buffers = dict(model.named_buffers())
    programs = export(tape, model)
    assert_same_state(before, state(model))
    programs.verify()
    assert_same_state(before, state(model))
    assert all(value is buffers[name] for name, value in model.named_buffers())


def test_a_state_is_said(tmp_path: Path) -> None:
    model = Counting(False).train()
    programs = export(taped(tmp_path, model, CALLS), model)
    report = programs.verify()
    assert report.ok, report.table()  # what is returned does not depend on it
    for program in programs.values():
        assert {"n", "replaced", "norm.running_mean", "norm.num_batches_tracked"} <= {
            *program.state
        }
        assert program.has(StateKept) or program.has(StateLost)
    assert "has state that its calls change" in report.table()
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert [p.state for p in loaded.values()] == [p.state for p in programs.values()]
    assert [p.notes for p in loaded.values()] == [p.notes for p in programs.values()]


@pytest.mark.integration
def test_what_depends_on_state_is_not_reproduced_for_that_reason(tmp_path: Path) -> None:
    model = Counting(True).train()
    tape = taped(tmp_path, model, CALLS)
    programs = export(tape, model)
    report = programs.verify()
    assert not report.ok
    for row in report:
        assert "its calls change its state" in str(row.error), row
    for program in programs.values():
        assert program.only_rows is None
        assert not program.has(ServesOnly)
    # Each call begins where the one before ended, as with the model.
    x = t(4, 3)
    for _ in range(3):
        now = int(model.n)
        assert int(programs(x)[1]) == now + 1


class Streaming(torch.nn.Module):
    """Adds what it was called with so far; returns something else each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(3))

    def forward(self, x):
        self.past += x.sum(0)
        return x + self.past


def test_calls_of_a_stream_are_reproduced_in_order(tmp_path: Path) -> None:
    tape = taped(tmp_path, Streaming(), CALLS)
    model = Streaming()
    programs = export(tape, model)
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    for one in (programs, loaded):
        for _ in range(2):
            report = one.verify(tape)
            assert report.ok, report.table()
            assert "2 calls reproduced in order" in report.table()
    assert not model.past.any()


def test_a_stream_that_is_exported_in_another_state_is_told_apart(tmp_path: Path) -> None:
    model = Streaming()
    tape = taped(tmp_path, model, CALLS)  # exported as the recording left it
    report = export(tape, model).verify()
    assert not report.ok
    assert all("its calls change its state" in str(row.error) for row in report)
    assert "in the state in which the recording began" in report.table()


def test_each_recording_of_a_stream_begins_anew(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / "tapes" / folder).mkdir(parents=True)
        taped(tmp_path / "tapes" / folder, Streaming(), CALLS)
    tape = open_tape(sorted((tmp_path / "tapes").glob("*/*.tape")))
    report = export(tape, Streaming()).verify()
    assert report.ok, report.table()


@pytest.mark.integration
def test_a_program_that_is_wrong_beside_its_state_is_called_wrong(tmp_path: Path) -> None:
    model = Counting(False).train()
    tape = taped(tmp_path, model, CALLS)
    programs = export(tape, model)
    other = Counting(False).train()
    torch.nn.init.constant_(other.norm.weight, 3.0)  # type: ignore[arg-type]
    (tmp_path / "other").mkdir()
    report = programs.verify(taped(tmp_path / "other", other, CALLS))
    assert not report.ok
    model.norm.weight.data.fill_(1.0)  # type: ignore[union-attr]


def test_verifying_loaded_programs_leaves_their_state(tmp_path: Path) -> None:
    model = Counting(True, norm=False)
    tape = taped(tmp_path, model, CALLS)
    export(tape, model).save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    first = loaded.verify(tape).rows
    assert loaded.verify(tape).rows == first
    assert all("maybe because the model has state" in str(row.error) for row in first)
    assert int(loaded(t(4, 3))[1]) == len(CALLS) + 1


def test_a_replay_goes_in_order_and_leaves_the_model(tmp_path: Path) -> None:
    tape = taped(tmp_path, Counting(True), CALLS)
    fresh = Counting(True)
    before = state(fresh)
    for _ in range(2):
        report = replay(tape, fresh)
        assert report.ok, report.table()
        assert_same_state(before, state(fresh))


@pytest.mark.integration
def test_an_onnx_program_has_no_state_and_the_second_call_would_be_wrong(tmp_path: Path) -> None:
    tape = taped(tmp_path, Counting(True, norm=False), CALLS[:1])
    with pytest.raises(ExportError, match=r"what the call before left in it \(.*\bn\b") as caught:
        export(tape, Counting(True, norm=False), to="onnx")
    assert "let the model take it as an argument" in str(caught.value)


@pytest.mark.integration
def test_an_onnx_program_of_a_model_that_the_server_puts_back_says_so(tmp_path: Path) -> None:
    model = Counting(True, norm=False)
    with record(model, tmp_path / "a.tape"):
        for args, kwargs in CALLS:
            model(*args, **kwargs)
            model.n.zero_()
            model.replaced, model.lazy, model.calls = torch.zeros(2), None, 0
    with open_tape(tmp_path / "a.tape") as tape:
        programs = export(tape, Counting(True, norm=False), to="onnx")
    for program in programs.values():
        assert "n" in program.state
        assert any("the program has none" in str(note) for note in program.notes)
        assert any("only calls that begin in that state are right" in str(n) for n in program.notes)


def test_a_model_without_state_has_no_note(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval()
    programs = export(taped(tmp_path, model, CALLS), model)
    for program in programs.values():
        assert not program.state
        assert program.notes == []
        assert program.remarks


class Changing(torch.nn.Module):
    """A layer beside everything that a call may change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.n = 0
        self.held = torch.zeros(1)
        self.listed: list[Any] = []
        self.nested: dict[str, Any] = {"seen": {1}, "last": deque([torch.zeros(2)], maxlen=2)}
        self.notes = Notes()

    def forward(self, x):
        self.change(x)
        return self.layer(x)

    def change(self, x):
        """What a call changes: of this class nothing."""


class Notes:
    def __init__(self) -> None:
        self.total = 0


class AParameter(Changing):
    def change(self, x):
        with torch.no_grad():
            self.layer.bias.add_(1)


class DataOfAParameter(Changing):
    def change(self, x):
        self.layer.bias.data += 1


class AnotherParameter(Changing):
    def change(self, x):
        self.layer.bias.data = self.layer.bias.data + 1


class AList(Changing):
    def change(self, x):
        self.listed.append(1)


class AListOfTensors(Changing):
    def forward(self, x):
        self.listed.append(x.sum())
        return self.layer(x) + torch.stack(self.listed).sum()


class WithinContainers(Changing):
    def change(self, x):
        self.nested["seen"].add(len(self.nested["seen"]) + 1)
        self.nested["last"][0].add_(1)
        self.nested["last"].append(x.sum())


class AnObject(Changing):
    def change(self, x):
        self.notes.total += 1


class ANewAttribute(Changing):
    def change(self, x):
        self.newly = getattr(self, "newly", 0) + 1


def everything(model: Changing) -> dict[str, Any]:
    seen, last = model.nested["seen"], model.nested["last"]
    found = {name: value.clone() for name, value in model.named_parameters()}
    found |= {"n": model.n, "held": model.held.clone(), "listed": len(model.listed)}
    found |= {"seen": set(seen), "last": len(last), "first": last[0].clone()}
    return found | {"total": model.notes.total, "newly": getattr(model, "newly", None)}


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (AParameter, "layer.bias"),
        (DataOfAParameter, "layer.bias"),
        (AnotherParameter, "layer.bias"),
        (AList, "listed"),
        (AListOfTensors, "listed"),
        (WithinContainers, "nested"),
        (AnObject, "notes"),
        (ANewAttribute, "newly"),
    ],
)
def test_whatever_a_call_changes_is_put_back_and_said(
    cls: type[Changing], name: str, tmp_path: Path
) -> None:
    model = cls()
    parameters = dict(model.named_parameters())
    tape = taped(tmp_path, cls(), CALLS)
    before = everything(model)
    try:
        programs = export(tape, model)
    except ExportError:  # torch exports no model that replaces a parameter
        programs = None
    assert_same_state(before, everything(model))
    assert all(value is parameters[path] for path, value in model.named_parameters())
    if programs is not None:
        programs.verify()
        assert_same_state(before, everything(model))
        for program in programs.values():
            assert name in program.state
            assert any(f"its calls change ({name}" in str(note) for note in program.notes)
    replay(tape, model)
    assert_same_state(before, everything(model))


def test_no_parameter_is_copied_that_a_call_does_not_change() -> None:
    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(8))

        def forward(self, x):
            self.layers[0].bias.data.add_(1)
            for layer in self.layers:
                x = layer(x)
            return x

    model, copied = Large(), []
    clone = torch.Tensor.clone
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            torch.Tensor, "clone", lambda t, **how: copied.append(t.numel()) or clone(t, **how)
        )
        with unchanged(model) as changed, torch.no_grad():
            model(torch.zeros(1, 256))
    assert list(changed) == ["layers.0.bias"]
    assert copied == [256]


def test_a_compiled_model_stays_compiled_while_it_is_watched() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    model = AParameter()
    before = everything(model)
    with unchanged(model), torch.no_grad():
        torch.compile(model, backend=backend)(t(4, 3))
    assert graphs
    assert_same_state(before, everything(model))


class ANumber(Changing):
    def forward(self, x):
        self.n += 1
        return self.layer(x) * self.n


class ATensor(Changing):
    def forward(self, x):
        self.held = self.held + 1
        return self.layer(x) * self.held


class WithoutEffectSoFar(Changing):
    def forward(self, x):
        self.n += 1
        return self.layer(x) if self.n < 50 else x


class WithoutEffect(Changing):
    def forward(self, x):
        self.n += 1
        return self.layer(x)


@pytest.mark.parametrize(
    ("cls", "name"), [(ANumber, "n"), (ATensor, "held"), (WithoutEffectSoFar, "n")]
)
def test_what_a_program_loses_and_calls_need_is_refused(
    cls: type[Changing], name: str, tmp_path: Path
) -> None:
    model = cls()
    with pytest.raises(ExportError, match=rf"left in it \({name}\)"):
        export(taped(tmp_path, model, CALLS), model)


def test_what_the_program_does_not_change_is_called_a_constant(tmp_path: Path) -> None:
    model = WithoutEffect()
    (program,) = (programs := export(taped(tmp_path, model, CALLS), model)).values()
    assert StateLost(("n",), ("3",), has_state=True, depends=False) in program.notes
    assert not program.has(StateKept)
    x = t(4, 3)
    assert torch.equal(programs(x), programs(x))
    assert torch.equal(programs(x), model(x))


def test_what_the_program_changes_is_not_called_a_constant(tmp_path: Path) -> None:
    model = Counting(True, norm=False)
    (program,) = export(taped(tmp_path, model, CALLS), model).values()
    assert {"n", "replaced"} <= program.changed_state
    (changed,) = (note for note in program.notes if isinstance(note, StateKept))
    (constant,) = (note for note in program.notes if isinstance(note, StateLost))
    assert {"n", "replaced"} <= set(changed.names)
    assert "calls=3" in str(constant)
    assert "replaced" not in constant.names


def _unseen(*_: Any) -> None:
    """A hook."""


class Remembering(torch.nn.Module):
    """Keeps its state in attributes that are None at first, as some models of transformers do."""

    def __init__(self, installs: bool) -> None:
        super().__init__()
        self.before: Any = None
        self.installed = False
        self.installs = installs
        self.part = torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        if self.installs and not self.installed:
            self.installed = True
            self.part.register_forward_hook(_unseen)
        last = torch.zeros_like(x[:1]) if self.before is None else self.before
        self.before = last + x.sum(0, keepdim=True)
        return x + last


@pytest.mark.parametrize("installs", [False, True])
def test_state_of_a_model_of_transformers_is_put_back(
    installs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Remembering, "__module__", "transformers.models.remembering")
    model = Remembering(installs)
    with unchanged(model) as changed:
        model(t(2, 3))
    if installs:  # one may be of no use without the other
        assert model.installed
        assert model.before is not None
        assert not changed
    else:
        assert model.before is None
        assert set(changed) == {"before"}


def test_a_mark_beside_a_tensor_of_transformers_is_put_back_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Remembering, "__module__", "transformers.models.remembering")
    model = Remembering(False)

    def forward(x: Any) -> Any:
        model.installed, model.before = True, x
        return x

    model.forward = forward  # type: ignore[method-assign]
    with unchanged(model) as changed:
        model(t(2, 3))
    assert (model.installed, model.before) == (False, None)
    assert set(changed) == {"installed", "before"}


class Lazy(torch.nn.Module):
    """Fills a table when it is first called, and notes that."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        self.table: list[float] = []

    def forward(self, x: Any) -> Any:
        if not self.ready:
            self.ready = True
            self.table.append(1.0)
        return x + sum(self.table)


def test_a_mark_beside_a_container_of_transformers_stays_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lazy, "__module__", "transformers.models.lazy")
    model = Lazy()
    for _ in range(3):
        with unchanged(model):
            model(t(2, 3))
    assert (model.ready, model.table) in ((True, [1.0]), (False, []))


def test_a_tensor_that_a_model_of_transformers_makes_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Remembering, "__module__", "transformers.models.remembering")
    model = Remembering(False)
    del model.before, model.installed

    def forward(x: Any) -> Any:
        model.made = x + getattr(model, "made", 0)
        return model.made

    model.forward = forward  # type: ignore[method-assign]
    with unchanged(model) as changed:
        model(t(2, 3))
    assert "made" not in vars(model)
    assert set(changed) == {"made"}


def test_a_model_of_transformers_whose_state_no_program_keeps_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Remembering, "__module__", "transformers.models.remembering")
    model = Remembering(False)
    tape = taped(tmp_path, model, CALLS)
    model.before = None
    with pytest.raises(ExportError, match=r"left in it \(before\)"):
        export(tape, model)


class Shrinking(torch.nn.Module):
    """Makes its windows smaller for a small picture, and leaves them so, as Swin does."""

    window = 4

    def forward(self, x: Any) -> Any:
        self.window = min(self.window, x.shape[0])
        return x.unflatten(0, (-1, self.window)).sum(1)


def test_a_number_of_a_model_of_transformers_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shrinking, "__module__", "transformers.models.shrinking")
    model = Shrinking()
    model.window = 4
    with unchanged(model) as changed:
        model(t(2, 3))
    assert model.window == 4
    assert changed == {"window": 4}


LATE = """
import sys
import torch
from calltape_analyzer.model.state import unchanged


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.compiles = False

    def forward(self, x):
        with torch.no_grad():
            self.linear.weight.add_(1)
        f = torch.sin if not self.compiles else torch.compile(torch.sin, backend="eager")
        return f(self.linear(x))


model = Model()
before = model.linear.weight.detach().clone()
for model.compiles in (False, True, True):
    with unchanged(model) as changed:
        model(torch.ones(2, 3))
    assert list(changed) == ["linear.weight"], changed
    assert torch.equal(before, model.linear.weight)
    print("torch._dynamo" in sys.modules)
"""


@pytest.mark.integration
def test_the_compiler_is_imported_only_by_models_that_compile() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.stdout.split() == ["False", "True", "True"], ran.stderr


def test_a_result_that_shares_memory_with_a_buffer_through_numpy_is_set_apart() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.array = numpy.zeros(3, numpy.float32)
            self.register_buffer("count", torch.from_numpy(self.array))

        def forward(self) -> torch.Tensor:
            self.count.add_(1)
            return torch.from_numpy(self.array)

    model = Counting()
    with unchanged(model):
        leaves = copied_from_state(model, {"out": model()})
    assert leaves["out"].tolist() == [1, 1, 1]
    assert model.count.tolist() == [0, 0, 0]
