"""Models that draw random numbers: program and model are run from one state of the generators."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from calltape_analyzer import ExportError, Programs, export, load_programs, replay
from calltape_analyzer.arguments.plan import ArgumentPlan
from calltape_analyzer.arguments.sizings import Sizing, values_at
from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.exporting.session.session import Session
from tests.analyzer.exported import assert_same, call, export_with, taped
from tests.analyzer.exporting.models import Model, t


class Sampler(Model):
    """A part of what it returns is random."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.mean, self.spread = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    def forward(self, x):
        mean = self.mean(x)
        return mean + self.spread(x).exp() * torch.randn_like(mean), mean


class Uniform(Model):
    def forward(self, x):
        return x + torch.rand(x.shape[0], 1)


class Coin(Model):
    def forward(self, x):
        return torch.bernoulli(torch.sigmoid(x))


class Chosen(Model):
    def forward(self, x):
        return torch.multinomial(torch.softmax(x, -1), 2)


class Filled(Model):
    def forward(self, x):
        return x + torch.empty_like(x).normal_()


class Normal(Model):
    def forward(self, x):
        return torch.distributions.Normal(x, torch.ones_like(x)).rsample()


class Shuffled(Model):
    def forward(self, x):
        return x[torch.randperm(x.shape[0])]


class Attention(Model):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


class Dropped(Model):
    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x) + 1


class Unused(Model):
    """What it draws does not reach what it returns."""

    def forward(self, x):
        torch.randn(3)
        return x * 2


class OfPython(Model):
    def forward(self, x):
        return x * random.random()


class OfNumpy(Model):
    def forward(self, x):
        return x * float(numpy.random.rand())


_GENERATOR = numpy.random.default_rng(0)


class Rarely(Model):
    def forward(self, x):
        if random.random() < 0.001:
            return x * 2
        return x


class RarelyNot(Model):
    def forward(self, x):
        return x if numpy.random.uniform() < 0.999 else x * 2


class OfItsOwn(Model):
    def __init__(self) -> None:
        super().__init__()
        self.own = random.Random(3)

    def forward(self, x):
        return x if self.own.random() > 0.001 else x * 2


class OfAGenerator(Model):
    def forward(self, x):
        if _GENERATOR.random() < 0.001:
            return x * 2
        return x


class RarelyForMany(Model):
    def forward(self, x):
        if x.shape[0] < 3:
            return x
        if random.random() < 0.001:
            return x * 2
        return x


class InTraining(Model):
    """Draws at once, and asks for its mode later."""

    def forward(self, x):
        number = random.uniform(0, 1)
        return x * 2 if self.training and number < 0.5 else x


class OfOneSeed(Model):
    def forward(self, x):
        numpy.random.seed(3)
        return x * float(numpy.random.rand())


class Flipped(Model):
    """What it adds has two values only, as three more: two draws are often the same."""

    def forward(self, x):
        return x + torch.randint(0, 2, (1,))


class OneOfTwo(Model):
    def forward(self, x):
        return x[:, torch.randint(0, 2, ()).item()]


class Picked(Model):
    def forward(self, x):
        return x + torch.randint(0, 2, (2,)).tolist()[0]


class Nearly(Model):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.001)


def exported(folder: Path, model: Any, **options: Any) -> Programs:
    shape = (2, 4) if isinstance(model, Attention) else (4,)
    tape = taped(folder, model, [call(t(n, *shape)) for n in (2, 5)])
    return export_with(tape, model, **options)


def states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())


@pytest.mark.integration
@pytest.mark.parametrize(
    "model",
    [Sampler, Uniform, Coin, Chosen, Filled, Normal, Shuffled, Attention, Dropped],
)
def test_a_program_draws_what_the_model_draws(tmp_path: Path, model: Any) -> None:
    module = model().train(model is Dropped)
    programs = exported(tmp_path, module)
    report = programs.verify()
    assert report.ok, report.table()
    assert {row.against for row in report} == {"module"}
    assert any(
        "random: the model draws random numbers with torch, so" in n for n in map(str, report.notes)
    )
    x = t(7, 2, 4) if model is Attention else t(7, 4)
    torch.manual_seed(5)
    expected = module(x)
    torch.manual_seed(5)
    assert_same(expected, programs(x))


def test_the_generators_of_the_caller_do_not_move(tmp_path: Path) -> None:
    model = Sampler()
    tape = taped(tmp_path, model, [call(t(n, 4)) for n in (2, 5)])
    before = states()
    programs = export(tape, model)
    programs.verify()
    replay(tape, model)
    replay(tape, programs)
    assert states() == before


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.integration)])
def test_what_does_not_reach_the_results_is_no_matter(tmp_path: Path, to: str) -> None:
    programs = exported(tmp_path, Unused(), to=to)
    report = programs.verify()
    assert report.ok
    assert {row.against for row in report} == {"tape"}
    assert not any("random" in note for note in map(str, report.notes))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "owner"),
    [
        (OfPython, "Python's random"), (OfNumpy, "numpy.random"), (Rarely, "Python's random"),
        (RarelyNot, "numpy.random"), (OfItsOwn, "Python's random"),
        (OfAGenerator, "numpy.random.Generator"),
    ],
)  # fmt: skip
def test_a_number_that_python_draws_is_in_no_program(
    tmp_path: Path, model: Any, owner: str
) -> None:
    with pytest.raises(ExportError) as caught:
        exported(tmp_path, model())
    text = str(caught.value)
    assert f"random: the model draws random numbers with {owner}, and what it returns" in text


def test_a_draw_at_one_recorded_size_is_seen(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="random: the model draws random numbers with Python's"):
        exported(tmp_path, RarelyForMany())


def test_a_seed_of_its_own_makes_numbers_steady(tmp_path: Path) -> None:
    tape = taped(tmp_path, OfOneSeed(), [call(t(n, 4)) for n in (2, 5)])
    numpy.random.seed(7)
    assert export(tape, OfOneSeed()).verify().ok


def test_numbers_of_python_that_reach_nothing_are_named(tmp_path: Path) -> None:
    programs = exported(tmp_path, InTraining().eval())
    report = programs.verify()
    assert report.ok
    assert {row.against for row in report} == {"tape"}
    (note,) = [note for note in map(str, report.notes) if "random" in note]
    assert "with Python's random" in note
    assert "its programs draw none of them" in note


@pytest.mark.parametrize("model", [Flipped, OneOfTwo, Picked, Nearly])
def test_draws_that_are_often_the_same_are_no_error(tmp_path: Path, model: Any) -> None:
    torch.manual_seed(3)
    programs = exported(tmp_path, model())
    report = programs.verify()
    assert report.ok, report.table()


@pytest.mark.parametrize("model", [Flipped, OneOfTwo, Picked, Unused])
def test_a_coin_is_thrown_until_it_differs(tmp_path: Path, model: Any) -> None:
    module = model()
    tape = taped(tmp_path, module, [call(t(5, 4))])
    runner = Session.of(tape, module, Tolerances())
    (variant,) = tape.variants()
    facts = variant.facts
    sample = runner.sample(facts, Sizing(0, values_at(facts, 0), False))
    plan = ArgumentPlan.of(facts, sample, runner.sorter.signature)
    for seed in range(6):
        torch.manual_seed(seed)
        found = runner.random_results(plan, sample)
        if model is Unused:
            assert found is None
        else:
            assert found is not None
            assert found.generators == ("torch",)


def test_loaded_programs_say_that_the_difference_is_random(tmp_path: Path) -> None:
    model = Sampler()
    tape = taped(tmp_path, model, [call(t(n, 4)) for n in (2, 5, 7)])
    export(tape, model).save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    report = loaded.verify(tape)
    assert not report.ok
    (program,) = loaded.values()
    assert program.random_generators == ("torch",)
    assert all(str(row.error).startswith("random: outputs.0: ") for row in report)


def test_replay_names_the_generators_that_are_drawn_from(tmp_path: Path) -> None:
    model = Uniform()
    report = replay(taped(tmp_path, model, [call(t(n, 4)) for n in (2, 5)]), model)
    assert not report.ok
    assert report.is_unsteady
    assert all("the call draws random numbers" in str(row.error) for row in report)
    assert any(
        "the model draws random numbers with torch" in note for note in map(str, report.notes)
    )


@pytest.mark.integration
def test_onnx_runtime_is_wrong_also_if_it_draws_the_same(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"random: .*ONNX Runtime draws others"):
        exported(tmp_path, Nearly(), to="onnx")


@pytest.mark.integration
def test_onnx_runtime_draws_others(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"random: .*ONNX Runtime draws others") as caught:
        exported(tmp_path, Sampler(), to="onnx")
    assert "pass them as an argument" in str(caught.value)
