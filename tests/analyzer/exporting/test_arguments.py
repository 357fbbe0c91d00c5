"""Every kind of argument goes into a program, and every kind of result comes out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import NoVariant, export
from calltape_analyzer.errors import ExportError
from calltape_analyzer.programs.reasons import OtherCall
from calltape_analyzer.pytree.placeholder import Placeholder
from tests.analyzer.exported import Call, call, made, taped
from tests.analyzer.exporting.models import (
    ARGUMENTS,
    CLASSES,
    Args,
    Constants,
    List,
    Model,
    Returns,
    ToyCache,
    t,
)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_argument_goes_into_a_program(name: str, tmp_path: Path) -> None:
    cls, calls, unseen = ARGUMENTS[name]
    made(tmp_path, cls(), calls, unseen, classes=CLASSES)


def test_same_tensor_twice_is_a_call_like_any_other(tmp_path: Path) -> None:
    class Twice(Model):
        def forward(self, x, y):
            return self.linear(x) + 2 * y

    one, other = t(4, 3), t(6, 3)
    both = t(5, 3)
    calls = [call(one, one), call(other, other)]
    made(tmp_path, Twice(), calls, [call(both, both), call(t(5, 3), t(5, 3))])


def test_same_tensor_twice_is_a_call_of_its_own_if_the_model_asks(tmp_path: Path) -> None:
    class Asks(Model):
        def forward(self, x, y):
            return self.linear(x) + (2 if x is y else 1) * y

    one, other = t(4, 3), t(6, 3)
    both = t(5, 3)
    calls = [call(one, one), call(other, other)]
    programs = made(tmp_path, Asks(), calls, [call(both, both)])
    with pytest.raises(NoVariant, match="y is not x"):
        programs(t(5, 3), t(5, 3))


def test_more_arguments_than_any_recorded_call_has_are_refused(tmp_path: Path) -> None:
    model = Args()
    programs = export(taped(tmp_path, model, [call(t(2, 3), t(3)), call(t(5, 3), t(3))]), model)
    with pytest.raises(NoVariant) as refused:
        programs(t(2, 3), t(3), t(3))
    assert refused.value.reasons == {"main": OtherCall("*more has 2 arguments, not 1")}
    assert "record calls like this one" in str(refused.value.advice)


def test_list_longer_than_any_recorded_is_refused(tmp_path: Path) -> None:
    programs = made(tmp_path, List(), [call([t(4, 3), t(2, 3)]), call([t(5, 3), t(7, 3)])])
    with pytest.raises(NoVariant):
        programs([t(4, 3), t(2, 3), t(2, 3)])


@pytest.mark.integration
@pytest.mark.parametrize(
    "given", [call(t(5, 3), True), call(t(5, 3), mode="max"), call(t(5, 3), scale=2.0)]
)
def test_constant_of_another_value_is_refused(given: Call, tmp_path: Path) -> None:
    programs = made(tmp_path, Constants(), [call(t(4, 3)), call(t(6, 3))])
    with pytest.raises(NoVariant):
        programs(*given[0], **given[1])


RESULTS = ("dict", "keys", "dataclass", "dataclass of None", "tuple", "sizes", "size", "named tuple",  # noqa: E501
           "list", "input", "input and more", "constant", "enum", "view", "int")  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("kind", RESULTS)
def test_result_comes_out_of_a_program(kind: str, tmp_path: Path) -> None:
    calls = [call(t(n, 3)) for n in (4, 6)]
    made(tmp_path, Returns(kind), calls, [call(t(5, 3)), call(t(9, 3))], classes=CLASSES)


def test_no_program_is_chosen_on_nothing(tmp_path: Path) -> None:
    tape = taped(tmp_path, Returns("none"), [call(t(n, 3)) for n in (4, 6)])
    with pytest.raises(ExportError, match="nothing was compared: the outputs hold no tensor"):
        export(tape, Returns("none"))


def test_cache_that_is_written_to_comes_out(tmp_path: Path) -> None:
    calls = [call(t(n, 3), ToyCache([t(n + 2, 3)])) for n in (4, 6)]
    unseen = [call(t(5, 3), ToyCache([t(9, 3)]))]
    made(tmp_path, Returns("cache"), calls, unseen, classes=CLASSES)


def test_result_of_an_unknown_class_is_a_placeholder_with_its_values(tmp_path: Path) -> None:
    programs = made(tmp_path, Returns("named tuple"), [call(t(n, 3)) for n in (4, 6)])
    directory = tmp_path / "saved"
    programs.save(directory)
    from calltape_analyzer import load_programs

    got = load_programs(directory, trusted=True)(t(5, 3))
    assert isinstance(got, Placeholder)
    assert load_programs(directory, classes=CLASSES, trusted=True)(t(5, 3)).y.shape == (5, 3)


def test_parameters_and_buffers_keep_the_names_of_the_state_dict(tmp_path: Path) -> None:
    class Deep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
            self.scale = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("shift", torch.ones(3))

        def forward(self, x):
            return self.body(x) * self.scale + self.shift

    module = Deep().eval()
    programs = made(tmp_path, module, [call(t(n, 3)) for n in (4, 6)], [call(t(5, 3))])
    (program,) = programs.values()
    assert program.exported.state_dict.keys() == module.state_dict().keys()
    signature = program.exported.graph_signature
    assert set(signature.parameters) == {name for name, _ in module.named_parameters()}
    assert set(signature.buffers) <= {name for name, _ in module.named_buffers()}
