"""Models whose code asks of an argument what no program gets: flags, and where it is in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportError, export, replay
from calltape_analyzer.programs.notes import AskedFacts
from tests.analyzer.exported import call, taped, taped_as_is

NOTE = "the model's code asks for "
UNTRIED = "calltape did not test whether results depend on it"


class Conjugated(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x.is_conj() else x * 3


class Written(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x._version else x * 3


class Inference(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x.is_inference() else x * 3


class Parameters(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if isinstance(x, torch.nn.Parameter) else x * 3


class Begins(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + x.storage_offset()


class Room(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x.untyped_storage().nbytes() > x.nbytes else x * 3


def in_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(3, 4)


ASKING: dict[str, tuple[Any, Callable[[], torch.Tensor]]] = {
    "is_conj()": (Conjugated(), lambda: torch.randn(3, 4, dtype=torch.complex64).conj()),
    "_version": (Written(), lambda: torch.zeros(3, 4).add_(1)),
    "is_inference()": (Inference(), in_inference),
    "Parameter": (Parameters(), lambda: torch.nn.Parameter(torch.randn(3, 4))),
    "storage_offset()": (Begins(), lambda: torch.randn(5, 4)[2:]),
    "untyped_storage()": (Room(), lambda: torch.randn(5, 4)[:3]),
}


def without_it(made: Callable[[], torch.Tensor]) -> torch.Tensor:
    return made().detach().resolve_conj().clone()


@pytest.mark.integration
@pytest.mark.parametrize("name", ASKING)
def test_a_program_for_the_recorded_answer_has_a_note(name: str, tmp_path: Path) -> None:
    model, made = ASKING[name]
    plain = without_it(made)
    programs = export(taped_as_is(tmp_path, model, [plain]), model)
    assert programs.verify().ok
    assert torch.equal(programs(plain), model(plain))
    (note,) = [one for one in programs.notes if isinstance(one, AskedFacts)]
    assert note.asked[0].startswith(f"{name} (test_asked_facts.py:")
    assert str(note).startswith(NOTE)
    assert str(note).endswith(UNTRIED)


@pytest.mark.parametrize("name", ASKING)
def test_recorded_calls_of_which_programs_would_be_wrong(name: str, tmp_path: Path) -> None:
    model, made = ASKING[name]
    tape = taped_as_is(tmp_path, model, [made(), made()])
    with pytest.raises(ExportError, match=r"does not return what was recorded.*asks for") as caught:
        export(tape, model)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["is_conj()", "Parameter"])
def test_what_is_on_the_tape_is_rebuilt_in_a_replay(name: str, tmp_path: Path) -> None:
    model, made = ASKING[name]
    assert replay(taped_as_is(tmp_path, model, [made()]), model).ok


@pytest.mark.integration
def test_a_recorded_call_with_another_answer_is_found_by_verify(tmp_path: Path) -> None:
    model, x = Begins(), torch.randn(5, 4)
    tape = taped_as_is(tmp_path, model, [x[:3].clone(), x[2:]])
    report = export(tape, model).verify()
    assert [row.ok for row in report.rows] == [True, False]


class OwnElements(torch.nn.Module):
    """Its code names these facts, and its results do not depend on them."""

    def forward(self, x: Any) -> Any:
        y = x.resolve_conj() if x.is_conj() else x
        y = y.detach() if y.requires_grad or isinstance(y, torch.nn.Parameter) else y
        rows = y.as_strided(y.shape, y.stride(), y.storage_offset())
        return rows * 2 if x.untyped_storage().nbytes() else rows + rows


@pytest.mark.integration
def test_a_model_that_asks_and_returns_the_same_has_a_program(tmp_path: Path) -> None:
    model = OwnElements()
    tape = taped(tmp_path, model, [call(torch.randn(3, 4)), call(torch.randn(5, 4))])
    programs = export(tape, model)
    assert programs.verify().ok
    for x in (torch.randn(7, 4), torch.randn(4, 7).t()):
        assert torch.equal(programs(x), x * 2)
    (note,) = [one for one in programs.notes if isinstance(one, AskedFacts)]
    assert "storage_offset()" in str(note)
    assert "Parameter" in str(note)
