"""Programs for arguments that are one object, share memory, or are the model's own tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportError, NoVariant, export, load_programs, open_tape, replay
from calltape_analyzer.programs.notes import OwnTensor
from calltape_recorder import record
from tests.analyzer.exported import call, taped, taped_as_is

Given = tuple[Any, ...]


class Asks(torch.nn.Module):
    def forward(self, key: Any, value: Any) -> Any:
        return key * 3 if value is key else key + value


class Puts(torch.nn.Module):
    def forward(self, new: Any, store: Any, window: Any) -> Any:
        store[:, :2] = new
        return window.sum(1)


class Adds(torch.nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        a += 1
        return a.sum(0) + b.sum(0)


class Asks2(torch.nn.Module):
    def forward(self, d: Any) -> Any:
        first, second = d["first"], d["second"][0]
        return first * 3 if first is second else first + second


def one(n: int) -> Given:
    x = torch.randn(n, 4)
    return x, x


def two(n: int) -> Given:
    return torch.randn(n, 4), torch.randn(n, 4)


def nested_one(n: int) -> Given:
    x = torch.randn(n, 4)
    return ({"first": x, "second": [x]},)


def nested_two(n: int) -> Given:
    return ({"first": torch.randn(n, 4), "second": [torch.randn(n, 4)]},)


def put(n: int) -> Given:
    store = torch.randn(n, n + 5)
    return torch.randn(n, 2), store, store[:, :4]


def put_apart(n: int) -> Given:
    return torch.randn(n, 2), torch.randn(n, n + 5), torch.randn(n, 4)


def partly(n: int) -> Given:
    both = torch.randn(3 * n, 4)
    return both[: 2 * n], both[n:]


def view(n: int) -> Given:
    x = torch.randn(n, 4)
    return x, x.view(n, 4)


KINDS: dict[str, tuple[torch.nn.Module, Callable[[int], Given], Callable[[int], Given], str]] = {
    "one object": (Asks(), one, two, "value is key"),
    "one object, nested": (Asks2(), nested_one, nested_two, "d.second.0 is d.first"),
    "a window": (Puts(), put, put_apart, "window shares memory with store"),
    "in part": (Adds(), partly, two, "b shares memory with a"),
    "a view": (Adds(), view, two, "b shares memory with a"),
}


def own(given: Given) -> Given:
    import copy

    return copy.deepcopy(given)


def assert_as_model(programs: Any, model: torch.nn.Module, given: Given) -> None:
    mine, expected = own(given), own(given)
    torch.testing.assert_close(programs(*mine), model(*expected))
    for one_of, other in zip(mine, expected, strict=True):
        if isinstance(one_of, torch.Tensor):
            assert torch.equal(one_of, other)


_OPPOSITE = {
    "value is key": "value is not key",
    "d.second.0 is d.first": "d.second.0 is not d.first",
    "window shares memory with store": "window shares no memory with store",
    "b shares memory with a": "b shares no memory with a",
}


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_share_and_calls_that_do_not_have_programs_of_their_own(
    kind: str, tmp_path: Path
) -> None:
    model, sharing, apart, text = KINDS[kind]
    calls = [call(*make(n)) for make in (sharing, apart) for n in (2, 3, 5)]
    tape = taped(tmp_path, model, calls)
    names = [variant.name for variant in tape.variants()]
    assert names == [text, _OPPOSITE[text]]
    assert replay(tape, model).ok
    made = export(tape, model)
    made.save(tmp_path / "programs")
    for programs in (made, load_programs(tmp_path / "programs", trusted=True)):
        assert programs.verify(tape).ok
        for make in (sharing, apart):
            for n in (4, 7):
                assert_as_model(programs, model, make(n))


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_of_another_kind_is_refused_with_this_reason(kind: str, tmp_path: Path) -> None:
    model, sharing, apart, text = KINDS[kind]
    for recorded, other in ((sharing, apart), (apart, sharing)):
        folder = tmp_path / recorded.__name__
        folder.mkdir()
        programs = export(taped(folder, model, [call(*recorded(n)) for n in (2, 3, 5)]), model)
        assert_as_model(programs, model, recorded(6))
        said = text if recorded is apart else _OPPOSITE[text]
        with pytest.raises(NoVariant, match=said):
            programs(*other(6))


def test_slices_that_do_not_overlap_share_nothing(tmp_path: Path) -> None:
    calls = [call(*torch.randn(n, 12).chunk(2, 1)) for n in (2, 3)]
    tape = taped(tmp_path, Adds(), [*calls, call(torch.randn(4, 6), torch.randn(4, 6))])
    assert len(tape.variants()) == 1


def test_resized_arguments_share_as_recorded_ones_do(tmp_path: Path) -> None:
    tape = taped(tmp_path, Puts(), [call(*put(2)), call(*put(2))])
    (variant,) = tape.variants()
    for i in (None, 0):
        new, store, window = variant.infer_arguments(i, layout="recorded").args
        store.zero_()
        assert not window.any()
        assert new.any()


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
def test_a_recorded_tensor_of_the_model_is_an_error(model: Any, made: Any, tmp_path: Path) -> None:
    tape = taped_as_is(tmp_path, model, made(model))
    with pytest.raises(ExportError, match=r"x of call \d is the model's own store, or a part of"):
        export(tape, model)


@pytest.mark.integration
@pytest.mark.parametrize("model", [Compares(), Fills()], ids=["compares", "fills"])
def test_a_call_with_a_tensor_of_the_model_is_refused(model: Any, tmp_path: Path) -> None:
    tape = taped_as_is(tmp_path, model, [torch.randn(3, 4), torch.randn(2, 4)])
    programs = export(tape, model)
    assert OwnTensor("x", "store") in programs.notes
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
    tape = taped_as_is(tmp_path, model, [model.store[:2], model.store[:3]])
    programs = export(tape, model)
    assert programs.verify().ok
    assert torch.equal(programs(model.store), model(model.store))
