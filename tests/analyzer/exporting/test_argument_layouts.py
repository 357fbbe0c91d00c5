"""Models that read strides, gaps, or the order of the keys of dicts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calltape_analyzer import (
    ExportError,
    NoVariant,
    Programs,
    export,
    load_programs,
    open_tape,
    replay,
)
from calltape_analyzer.programs.notes import KeyOrders, NotAsked, Question, StridesRead
from calltape_recorder import record
from tests.analyzer.exported import call, taped

Made = Callable[[int, int], torch.Tensor]

LAYOUTS: dict[str, Made] = {
    "contiguous": torch.randn,
    "transposed": lambda n, m: torch.randn(m, n).t(),
    "a step": lambda n, m: torch.randn(n, 2 * m)[:, ::2],
    "a slice": lambda n, m: torch.randn(n + 3, m + 4)[2:-1, 1:-3],
    "expanded": lambda n, m: torch.randn(1, m).expand(n, m),
    "overlapping": lambda n, m: torch.randn(n + m).unfold(0, m, 1)[:n],
}


class OwnWindows(torch.nn.Module):
    """Reads strides, and returns the same for any of them."""

    def forward(self, x: Any) -> Any:
        rows, length = x.shape
        at = x.storage_offset()
        windows = x.as_strided((rows, length - 2, 3), (x.stride(0), x.stride(1), x.stride(1)), at)
        return windows.sum(-1)


class Flat(torch.nn.Module):
    """Contiguous memory is what it asks for; a trace of contiguous inputs does not say so."""

    def forward(self, x: Any) -> Any:
        y = x.contiguous()
        return y.as_strided((y.numel() - 1,), (1,)).cumsum(0)


class Written(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        x.mul_(2)
        return x.sum(0)


class Asks(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x.is_contiguous() else x + 1


class Strides(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * x.stride(0) + x.stride(1)


def own(value: torch.Tensor) -> torch.Tensor:
    """The same elements in the same layout, in memory of their own."""
    import copy

    return copy.deepcopy(value)


def assert_as_model(programs: Programs, model: torch.nn.Module, x: torch.Tensor) -> None:
    expected, mine = own(x), own(x)
    torch.testing.assert_close(programs(mine), model(expected), rtol=1e-4, atol=1e-4)
    assert torch.equal(mine, expected)  # what the model writes the program writes as well


@pytest.mark.integration
@pytest.mark.parametrize("to", ["torch", "onnx"])
@pytest.mark.parametrize("model", [OwnWindows(), Flat()], ids=lambda one: type(one).__name__)
def test_a_model_that_reads_no_strides_has_one_program_for_all_layouts(
    model: Any, to: Any, tmp_path: Path
) -> None:
    sizes = ((3, 5), (4, 7), (6, 4))
    calls = [call(LAYOUTS["contiguous"](*size)) for size in sizes]
    tape = taped(tmp_path, model, [*calls, call(LAYOUTS["transposed"](5, 8))])
    programs = export(tape, model, to=to)
    assert programs.verify().ok
    assert len(programs) == 1
    for layout in LAYOUTS.values():
        assert_as_model(programs, model, layout(7, 9))


@pytest.mark.integration
def test_what_a_program_writes_to_a_copy_is_written_back(tmp_path: Path) -> None:
    model = Written()
    tape = taped(tmp_path, model, [call(torch.randn(3, 5)), call(torch.randn(6, 4).t())])
    programs = export(tape, model)
    assert programs.verify().ok
    for kind in ("contiguous", "transposed", "a step", "a slice"):
        assert_as_model(programs, model, LAYOUTS[kind](7, 9))
    assert replay(tape, programs).ok


class Returned(torch.nn.Module):
    """A slice, what may be a copy, and what is computed."""

    def forward(self, x: Any) -> Any:
        return x[1:], x.contiguous(), x * 2


@pytest.mark.integration
def test_outputs_that_are_views_of_arguments_are_noted(tmp_path: Path) -> None:
    model = Returned()
    tape = taped(tmp_path, model, [call(torch.randn(3, 5)), call(torch.randn(6, 4).t())])
    programs = export(tape, model)
    report = programs.verify()
    assert report.ok
    order = "transposed (stride order 1,0)"
    note = f"returns outputs.2 contiguous in memory where it was recorded {order}"
    assert any(note in one for one in map(str, report.notes))
    note = "the model's outputs.0 shares memory with x; the program may return a copy"
    assert any(note in one for one in map(str, report.notes))
    for layout in LAYOUTS.values():
        x = layout(7, 9)
        assert all(map(torch.equal, programs(x), model(x)))
    x = LAYOUTS["transposed"](7, 9)
    assert programs(x)[0].untyped_storage()._cdata != x.untyped_storage()._cdata


class Fills(torch.nn.Module):
    """Fills a cache, and returns it."""

    def forward(self, x: Any, cache: Any, at: Any) -> Any:
        cache["keys"].index_copy_(1, at, x)
        return x.sum(), cache


def cache_of(kind: str, rows: int, room: int) -> torch.Tensor:
    made = torch.zeros(room, rows, 4).transpose(0, 1)
    return made.contiguous() if kind == "contiguous" else made


@pytest.mark.integration
@pytest.mark.parametrize("recorded", ["contiguous", "transposed"])
def test_a_cache_is_filled_in_the_hands_of_its_caller(recorded: str, tmp_path: Path) -> None:
    model, at = Fills(), torch.tensor([3, 1])
    calls = [call(torch.randn(n, 2, 4), {"keys": cache_of(recorded, n, n + 5)}, at) for n in (2, 3)]
    programs = export(taped(tmp_path, model, calls), model)
    assert not any("shares memory" in note for note in map(str, programs.verify().notes))
    for kind in ("contiguous", "transposed"):
        keys, x = cache_of(kind, 5, 9), torch.randn(5, 2, 4)
        cache = {"keys": keys}
        _, returned = programs(x, cache, at)
        assert returned is cache
        assert cache["keys"] is keys
        assert torch.equal(keys[:, at], x)


@pytest.mark.integration
@pytest.mark.parametrize("model", [Asks(), Strides()], ids=lambda one: type(one).__name__)
def test_a_model_that_reads_layouts_has_a_program_for_each(model: Any, tmp_path: Path) -> None:
    kinds = ("contiguous", "transposed", "a step")
    calls = [call(LAYOUTS[kind](*size)) for kind in kinds for size in ((3, 5), (6, 4))]
    tape = taped(tmp_path, model, calls)
    made = export(tape, model)
    assert {"x contiguous", "x with gaps"} <= {name.removesuffix(" (2)") for name in made}
    made.save(tmp_path / "programs")
    loaded = load_programs(tmp_path / "programs", trusted=True)
    assert loaded.verify(tape).ok
    for programs in (made, loaded):
        assert programs.verify(tape).ok
        for kind in kinds:
            assert_as_model(programs, model, LAYOUTS[kind](7, 9))
        with pytest.raises(NoVariant, match=r"laid out in memory as expanded \(axis 0\), not cont"):
            programs(LAYOUTS["expanded"](7, 9))


@pytest.mark.integration
def test_a_layout_that_was_not_recorded_is_refused_if_the_model_reads_it(tmp_path: Path) -> None:
    model = Asks()
    tape = taped(tmp_path, model, [call(torch.randn(3, 5)), call(torch.randn(6, 4))])
    programs = export(tape, model)
    assert any(isinstance(n, StridesRead) and "x" in n.names for n in programs.notes)
    assert_as_model(programs, model, torch.randn(40)[3:23].view(4, 5))
    for kind in ("transposed", "a step", "a slice", "expanded", "overlapping"):
        with pytest.raises(NoVariant, match="laid out in memory as"):
            programs(LAYOUTS[kind](7, 9))


def test_arguments_are_inferred_as_recorded_or_contiguous(tmp_path: Path) -> None:
    given = [LAYOUTS[kind](3, 5) for kind in LAYOUTS]
    tape = taped(tmp_path, torch.nn.Identity(), [call(one) for one in given])
    (variant,) = tape.variants()
    for i, one in enumerate(given):
        for source in (variant, tape):
            as_recorded = source.infer_arguments(i, layout="recorded").args[0]
            assert as_recorded.stride() == one.stride()
            assert torch.equal(as_recorded, one)
            plain = source.infer_arguments(i, layout="contiguous").args[0]
            assert plain.stride() == (5, 1)
            assert torch.equal(plain, one)
    assert variant.infer_arguments().args[0].is_contiguous()
    with pytest.raises(ValueError, match="layout='dense'"):
        variant.infer_arguments(layout="dense")  # type: ignore[call-overload]


def test_a_replay_of_the_model_gets_the_recorded_layout(tmp_path: Path) -> None:
    kinds = ("contiguous", "transposed", "a step", "expanded")
    tape = taped(tmp_path, Strides(), [call(LAYOUTS[kind](3, 5)) for kind in kinds])
    assert replay(tape, Strides()).ok
    assert open_tape(tape.segments[0].path).calls[2].inputs.args[0].stride() == (10, 2)


class Compares(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x * 5 if x.stride() != y.stride() else x + y


class AsksLater(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x[:, ::2] if x.shape[0] > 4 and not x.is_contiguous() else x[:, 1::2]


def test_two_layouts_that_are_compared_are_read(tmp_path: Path) -> None:
    sizes = ((2, 4), (3, 5), (5, 7))
    tape = taped(tmp_path, Compares(), [call(torch.randn(s), torch.randn(s)) for s in sizes])
    programs = export(tape, Compares())
    assert programs.verify().ok
    with pytest.raises(NoVariant, match="laid out in memory as transposed"):
        programs(torch.randn(2, 4), torch.randn(4, 2).t())


@pytest.mark.integration
def test_a_layout_that_is_read_from_some_size_on_is_a_guard(tmp_path: Path) -> None:
    tape = taped(tmp_path, AsksLater(), [call(torch.randn(n, 4)) for n in (2, 3, 5, 7)])
    programs = export(tape, AsksLater())
    assert programs.verify().ok
    with pytest.raises(NoVariant, match="laid out in memory as transposed"):
        programs(torch.randn(4, 6).t())


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
    (found,) = [note for note in programs.notes if isinstance(note, NotAsked)]
    assert (found.variant, found.question) == ("main", Question.STRIDES)
    assert "SIGSEGV" in str(found.why)


class Beyond(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.as_strided((x.numel() + 1,), (1,)) * 2


class Between(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.as_strided((x.shape[0], 5), (x.stride(0), 1)) * 2


@pytest.mark.parametrize(
    ("model", "x"),
    [(Beyond(), torch.randn(9)[:5]), (Between(), torch.randn(3, 8)[:, ::2])],
    ids=["beyond", "between"],
)
def test_memory_between_and_beyond_elements_is_on_no_tape(
    model: Any, x: torch.Tensor, tmp_path: Path
) -> None:
    with record(model, tmp_path / "calls.tape"):
        model(x)
    tape = open_tape(tmp_path / "calls.tape")
    with pytest.raises(ExportError):
        export(tape, model)
    if isinstance(model, Beyond):
        (row,) = replay(tape, model).rows
        assert "the memory between and beyond its elements is on no tape" in str(row.error)


class Concatenates(torch.nn.Module):
    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(features.values()), -1)


class Adds(torch.nn.Module):
    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum(features.values(), torch.zeros(1))


class Keywords(torch.nn.Module):
    def forward(self, **features: torch.Tensor) -> torch.Tensor:
        return torch.cat(list(features.values()), -1)


def features(n: int, names: str = "ba") -> dict[str, torch.Tensor]:
    made = {name: torch.randn(n, 3) for name in sorted(names)}
    return {name: made[name] for name in names}


def same(programs: Any, model: Any, given: dict[str, torch.Tensor]) -> bool:
    return torch.equal(programs(dict(given)), model(dict(given)))


def test_another_order_is_rejected_where_the_model_reads_it(tmp_path: Path) -> None:
    model = Concatenates()
    programs = export(taped(tmp_path, model, [call(features(n)) for n in (2, 4)]), model)
    assert same(programs, model, features(5))
    with pytest.raises(NoVariant, match="features has its keys in another order"):
        programs(features(5, "ab"))
    assert KeyOrders(("features",)) in programs.notes


def test_each_recorded_order_has_a_program(tmp_path: Path) -> None:
    model = Concatenates()
    calls = [call(features(n, names)) for names in ("ab", "ba") for n in (2, 4)]
    programs = export(taped(tmp_path, model, calls), model)
    assert len(programs) == 2
    assert same(programs, model, features(5, "ab"))
    assert same(programs, model, features(5, "ba"))
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert same(loaded, model, features(6, "ba"))
    assert same(loaded, model, features(6, "ab"))


def test_any_order_will_do_where_the_model_does_not_read_it(tmp_path: Path) -> None:
    model = Adds()
    programs = export(taped(tmp_path, model, [call(features(n)) for n in (2, 4)]), model)
    assert same(programs, model, features(5, "ab"))
    assert same(programs, model, features(5, "ba"))


def test_keyword_arguments_have_an_order_too(tmp_path: Path) -> None:
    model = Keywords()
    programs = export(taped(tmp_path, model, [call(**features(n)) for n in (2, 4)]), model)
    given = features(5)
    assert torch.equal(programs(**given), model(**given))
    with pytest.raises(NoVariant, match="keyword arguments come in another order"):
        programs(**features(5, "ab"))


class NumpyOnly(torch.nn.Module):
    def forward(self, x: Any, t: float) -> Any:
        return x * t if hasattr(t, "dtype") else x + 100


class PlainInts(torch.nn.Module):
    def forward(self, x: Any, t: Any) -> Any:
        return x[:t] if isinstance(t, int) else x + 100


@pytest.mark.parametrize(
    ("model", "plain", "other"),
    [(NumpyOnly(), float, np.float64), (PlainInts(), int, np.int64)],
    ids=["float", "int"],
)
def test_a_number_of_numpy_is_another_one_to_a_model_that_asks(
    model: Any, plain: Any, other: Any, tmp_path: Path
) -> None:
    for number, classes in enumerate([[plain], [other], [plain, other]]):
        calls = [call(torch.ones(n, 2), one(n - 1)) for one in classes for n in (3, 4)]
        tape = taped(tmp_path, model, calls, name=f"{number}.tape")
        assert replay(tape, model).ok
        programs = export(tape, model)
        assert programs.verify().ok
        programs.save(tmp_path / f"{number}")
        for each in (programs, load_programs(tmp_path / f"{number}", trusted=True)):
            for one in (plain, other):
                if one in classes:
                    x = torch.ones(5, 2)
                    assert torch.equal(each(x, one(2)), model(x, one(2)))
                else:
                    with pytest.raises(NoVariant, match=f"t is of class {one.__name__}, not "):
                        each(torch.ones(5, 2), one(2))


def test_a_number_of_numpy_is_like_any_other_to_most_models(tmp_path: Path) -> None:
    model = Scaled()
    sent = [call(torch.ones(n, 2), one(n)) for n in (3, 4) for one in (float, np.float64)]
    programs = export(taped(tmp_path, model, sent), model)
    assert torch.equal(programs(torch.ones(5, 2), np.float32(2.5)), torch.full((5, 2), 2.5))


def test_without_numbers_of_numpy_on_the_tape_nobody_asks_about_them(tmp_path: Path) -> None:
    model = Scaled()
    tape = taped(tmp_path, model, [call(torch.ones(n, 2), float(n)) for n in (3, 4)])
    programs = export(tape, model)
    assert torch.equal(programs(torch.ones(5, 2), 2.5), torch.full((5, 2), 2.5))
    with pytest.raises(NoVariant, match="t is of class float32, not float"):
        programs(torch.ones(5, 2), np.float32(2.5))


class Scaled(torch.nn.Module):
    def forward(self, x: Any, t: float) -> Any:
        return x * t
