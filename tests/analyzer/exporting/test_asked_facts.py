"""Models that read of an argument what no program gets: flags, and the memory around it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportError, NoVariant, Tape, export, open_tape, replay
from calltape_recorder import record
from tests.analyzer.exported import call, taped


def as_they_are(folder: Path, model: Any, given: Iterable[Any]) -> Tape:
    """A tape of calls with these tensors, and not with copies of them."""
    with record(model, folder / "calls.tape"), torch.no_grad():
        for x in given:
            model(x)
    return open_tape(folder / "calls.tape")


class Asking(torch.nn.Module):
    """Returns something else for another answer."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        super().__init__()
        self.ask = ask

    def forward(self, x: Any) -> Any:
        return x * 2 if self.ask(x) else x * 3


class Beyond(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.as_strided((x.numel() + 1,), (1,)) * 2


class Between(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.as_strided((x.shape[0], 5), (x.stride(0), 1)) * 2


class OwnElements(torch.nn.Module):
    """Its code names these facts, and its results do not depend on them."""

    def forward(self, x: Any) -> Any:
        y = x.resolve_conj() if x.is_conj() else x
        y = y.detach() if y.requires_grad or isinstance(y, torch.nn.Parameter) else y
        rows = y.as_strided(y.shape, y.stride(), y.storage_offset())
        return rows * 2 if x.untyped_storage().nbytes() else rows + rows


def conjugated() -> torch.Tensor:
    return torch.randn(3, 4, dtype=torch.complex64).conj()


def in_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(3, 4)


ASKED: dict[str, tuple[Callable[[Any], Any], Callable[[], torch.Tensor], str]] = {
    "is_conj": (lambda x: x.is_conj(), conjugated, "is conjugated"),
    "is_neg": (lambda x: x.is_neg(), lambda: conjugated().imag, "is negated"),
    "requires_grad": (
        lambda x: x.requires_grad,
        lambda: torch.randn(3, 4).requires_grad_(),
        "records gradients",
    ),
    "is_leaf": (
        lambda x: x.is_leaf,
        lambda: torch.randn(3, 4).requires_grad_() + 1,
        "was computed with gradients",
    ),
    "_version": (lambda x: x._version > 0, lambda: torch.zeros(3, 4).add_(1), "written to"),
    "is_inference": (lambda x: x.is_inference(), in_inference, "made in inference mode"),
    "Parameter": (
        lambda x: isinstance(x, torch.nn.Parameter),
        lambda: torch.nn.Parameter(torch.randn(3, 4)),
        "is a Parameter",
    ),
    "_base": (lambda x: x._base is None, lambda: torch.randn(5, 4)[1:], r"is a view \(_base\)"),
    "storage_offset": (
        lambda x: x.storage_offset() > 0,
        lambda: torch.randn(5, 4)[1:],
        "begins in its memory",
    ),
    "nbytes": (
        lambda x: x.untyped_storage().nbytes() > x.nbytes,
        lambda: torch.randn(5, 4)[:4],
        r"the size of its memory \(untyped_storage\(\)\)",
    ),
}
ON_THE_TAPE = ("is_conj", "is_neg", "requires_grad", "Parameter")


@pytest.mark.integration
@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("recorded", ["with it", "without"])
def test_what_a_program_does_not_get_is_the_reason(
    name: str, recorded: str, tmp_path: Path
) -> None:
    ask, made, reason = ASKED[name]
    plain = made().detach().resolve_conj().resolve_neg().clone()
    given = [made(), made()] if recorded == "with it" else [plain]
    model = Asking(ask)
    tape = as_they_are(tmp_path, model, given)
    with pytest.raises(ExportError, match=f"of x the model reads .*{reason}"):
        export(tape, model)
    if name in ON_THE_TAPE:
        assert replay(tape, model).ok


@pytest.mark.parametrize(
    ("model", "x"),
    [(Beyond(), torch.randn(9)[:5]), (Between(), torch.randn(3, 8)[:, ::2])],
    ids=["beyond", "between"],
)
def test_memory_between_and_beyond_elements(model: Any, x: torch.Tensor, tmp_path: Path) -> None:
    tape = as_they_are(tmp_path, model, [x])
    with pytest.raises(ExportError, match="of x the model reads the memory between and beyond"):
        export(tape, model)
    if isinstance(model, Beyond):
        (row,) = replay(tape, model).rows
        assert "the memory between and beyond its elements is on no tape" in str(row.error)


class Aliases(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y if torch._C._is_alias_of(x, y) else x - y


@pytest.mark.parametrize("recorded", ["apart", "side by side"])
def test_two_tensors_side_by_side_in_one_memory(recorded: str, tmp_path: Path) -> None:
    model, whole = Aliases(), torch.randn(6)
    pair = (whole[:3], whole[3:]) if recorded == "side by side" else (whole[:3], torch.randn(3))
    with record(model, tmp_path / "calls.tape"):
        model(*pair)
    with pytest.raises(ExportError, match="of x the model reads whether it lies in one memory"):
        export(open_tape(tmp_path / "calls.tape"), model)


class AddsInPlace(torch.nn.Module):
    """Names the memory of its arguments, and only writes to one of them."""

    def forward(self, x: Any, y: Any) -> Any:
        assert x.untyped_storage().nbytes()
        x.add_(1)
        return y * 2


def test_arguments_that_share_memory_share_it_in_each_run(tmp_path: Path) -> None:
    model = AddsInPlace()
    with record(model, tmp_path / "calls.tape"), torch.no_grad():
        for rows in (2, 3):
            x = torch.randn(rows, 4)
            model(x, x)
    programs = export(open_tape(tmp_path / "calls.tape"), model)
    assert programs.verify().ok
    x = torch.randn(5, 4)
    expected = (x + 1) * 2
    assert torch.equal(programs(x, x), expected)


@pytest.mark.integration
def test_a_model_that_asks_and_returns_the_same_has_a_program(tmp_path: Path) -> None:
    model = OwnElements()
    tape = taped(tmp_path, model, [call(torch.randn(3, 4)), call(torch.randn(5, 4))])
    programs = export(tape, model)
    assert programs.verify().ok
    x = torch.randn(7, 4)
    assert torch.equal(programs(x), x * 2)


class Dying(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        if not x.is_contiguous():
            os.kill(os.getpid(), signal.SIGSEGV)
        return x * 2


@pytest.mark.integration
def test_layouts_that_could_not_be_tried_are_told(tmp_path: Path) -> None:
    model = Dying()
    tape = taped(tmp_path, model, [call(torch.randn(3, 4)), call(torch.randn(5, 4))])
    programs = export(tape, model)
    note = "main: whether the model reads how its arguments lie in memory is unknown"
    (found,) = [one for one in programs.notes if one.startswith(note)]
    assert "SIGSEGV" in found
    assert "its programs get contiguous copies" in found


class Owning(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("store", torch.randn(4, 4))


class Compares(Owning):
    def forward(self, x: Any) -> Any:
        return x * 2 if x is self.store else x * 3


class Fills(Owning):
    def forward(self, x: Any) -> Any:
        self.store.add_(1)
        return x * 2


class Multiplies(Owning):
    def forward(self, x: Any) -> Any:
        return x @ self.store


@pytest.mark.parametrize(
    ("model", "made"),
    [
        (Compares(), lambda model: [torch.randn(3, 4), model.store]),
        (Fills(), lambda model: [model.store[:2], model.store[:3]]),
    ],
    ids=["compares", "fills"],
)
def test_a_recorded_call_with_a_tensor_of_the_model(model: Any, made: Any, tmp_path: Path) -> None:
    tape = as_they_are(tmp_path, model, made(model))
    with pytest.raises(ExportError, match=r"x of call \d is the model's own store, or a part of"):
        export(tape, model)


@pytest.mark.integration
@pytest.mark.parametrize("model", [Compares(), Fills()], ids=["compares", "fills"])
def test_a_call_with_a_tensor_of_the_model_is_refused(model: Any, tmp_path: Path) -> None:
    tape = as_they_are(tmp_path, model, [torch.randn(3, 4), torch.randn(2, 4)])
    programs = export(tape, model)
    assert any("something else if x is its own store" in note for note in programs.notes)
    for own in (model.store, model.store[:2], model.store[1:].view(3, 4)):
        with pytest.raises(
            NoVariant, match=r"x has memory of the model, by its store.*Pass a copy"
        ):
            programs(own)
    x = model.store.clone()
    assert torch.equal(programs(x.clone()), x * 3 if isinstance(model, Compares) else x * 2)


@pytest.mark.integration
def test_a_tensor_of_the_model_is_an_argument_like_any_other(tmp_path: Path) -> None:
    model = Multiplies()
    tape = as_they_are(tmp_path, model, [model.store[:2], model.store[:3]])
    programs = export(tape, model)
    assert programs.verify().ok
    assert torch.equal(programs(model.store), model(model.store))
