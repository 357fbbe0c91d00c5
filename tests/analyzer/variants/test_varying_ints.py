"""Whether an int that varies is passed, or left to its default, is no difference between calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import diff, export, load_programs, open_tape, replay, survey
from calltape_analyzer.editing.choice import Choice, select_calls
from calltape_analyzer.tape import Tape
from tests.analyzer.tapes import Recorded, write_tape

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Best(torch.nn.Module):
    """The largest elements of each row."""

    def forward(self, x: Any, w: Any = None, top_k: int = 5, *, flag: bool = False) -> Any:
        scores = x if w is None else x * w
        values = scores.topk(top_k).values
        return -values if flag else values


def call(columns: int, *, w: bool = False, **named: Any) -> Call:
    torch.manual_seed(columns)
    weights = {"w": torch.rand(2, columns)} if w else {}
    return (torch.randn(2, columns),), {**weights, **named}


def taped(folder: Path, calls: list[Call], name: str = "a.tape") -> Tape:
    model = Best()
    every = [Recorded(args, kwargs, model(*args, **kwargs)) for args, kwargs in calls]
    return open_tape(write_tape(folder / name, every, target=model))


VARIED = {
    "passed in each call": [call(n, top_k=k) for k in (1, 5, 10) for n in (20, 33)],
    "left to its default": [
        call(n, **({} if k == 5 else {"top_k": k})) for k in (1, 5, 10) for n in (20, 33)
    ],
    "left once": [call(20, top_k=3), call(33), call(25, top_k=7)],
    "passed once": [call(20), call(33), call(25, top_k=7)],
    "by position": [((call(n)[0][0], None, k), {}) for k in (5, 6) for n in (20, 33)],
    "both ways": [((call(20)[0][0], None, 4), {}), call(33, top_k=5), call(40, top_k=8), call(25)],
}


@pytest.mark.parametrize("calls", VARIED.values(), ids=VARIED)
def test_an_int_that_varies_is_one_column(tmp_path: Path, calls: list[Call]) -> None:
    tape = taped(tmp_path, calls)
    (variant,) = tape.variants()
    assert variant.name == "main"
    assert len(variant) == len(variant.calls) == len(calls)
    shapes = variant.infer_dynamic_shapes(dim="names")
    x, top_k = shapes.values() if isinstance(shapes, dict) else shapes
    assert set(x) == {1}
    assert top_k is not None
    given = variant.infer_arguments()
    assert variant.accepts(*given)
    assert variant.accepts(given.args[:1], {})
    assert variant.accepts(given.args[:1], {"top_k": 9})
    values = {5} | {named["top_k"] for _, named in calls if "top_k" in named}
    text = str(tape.explain("top_k"))
    assert "the int is dynamic" in text
    assert all(f"{value} (" in text for value in values)


def test_an_optional_tensor_makes_two_variants_of_it(tmp_path: Path) -> None:
    calls = [call(20, w=w, top_k=k) for k in (1, 5, 10) for w in (False, True)]
    assert [v.name for v in taped(tmp_path, calls).variants()] == ["no w", "w present"]


@pytest.mark.parametrize(
    "calls",
    [
        [call(20), call(33)],
        [call(20, top_k=5), call(33, top_k=5)],
        [call(20, top_k=5), call(33)],
    ],
)
def test_an_int_that_always_equals_its_default_is_left_out(
    tmp_path: Path, calls: list[Call]
) -> None:
    (variant,) = taped(tmp_path, calls).variants()
    assert variant.facts.group.layout.arguments == ("x",)


def test_one_other_value_in_each_call_is_a_constant(tmp_path: Path) -> None:
    (variant,) = taped(tmp_path, [call(20, top_k=3), call(33, top_k=3)]).variants()
    assert variant.accepts(*call(40, top_k=3))
    assert (
        variant.accepts(*call(40)).reason
        == "top_k is 5; it was 3 in every recorded call of this variant"
    )


def test_a_default_that_is_passed_is_none_of_bools_either(tmp_path: Path) -> None:
    calls = [call(20, flag=False), call(33), call(21, flag=True)]
    assert [v.name for v in taped(tmp_path, calls).variants()] == ["flag=False", "flag=True"]


def test_an_int_that_was_removed_is_no_column(tmp_path: Path) -> None:
    tape = taped(tmp_path, VARIED["left to its default"])
    tape.remove_inputs(["top_k"])
    (variant,) = tape.variants()
    assert variant.facts.group.layout.arguments == ("x",)


def test_a_survey_a_table_and_a_difference_say_the_same(tmp_path: Path) -> None:
    tape = taped(tmp_path, VARIED["left to its default"])
    other = taped(tmp_path, VARIED["passed in each call"], "b.tape")
    assert str(diff(tape, other)) == "the traffic on both is the same"
    survey([tape.paths[0]]).write(tmp_path / "both.survey")
    with open_tape(tmp_path / "both.survey") as found:
        assert [v.name for v in found.variants()] == ["main"]
    values = [1, 1, 5, 5, 10, 10]
    assert [row["top_k"] for row in tape.to_arrow().read_all().to_pylist()] == values
    assert [*select_calls(tape, Choice(where="top_k == 5"))] == [2, 3]


def test_a_default_beside_other_values_is_a_change_of_the_int(tmp_path: Path) -> None:
    before = taped(tmp_path, [call(20), call(33)])
    after = taped(tmp_path, [call(20), call(33), call(25, top_k=7)], "b.tape")
    (change,) = diff(before, after).appeared
    assert change.where == "top_k"
    assert "7" in change.text


def test_programs_take_the_default_whether_it_is_passed_or_not(tmp_path: Path) -> None:
    tape = taped(tmp_path, [call(20, top_k=3), call(33, top_k=7), call(25, top_k=9)])
    model = Best()
    programs = export(tape, model)
    assert len(programs) == 1
    assert programs.verify().ok
    programs.save(tmp_path / "saved")
    for held in (programs, load_programs(tmp_path / "saved", trusted=True)):
        for args, kwargs in (call(41), call(41, top_k=5), call(41, top_k=8)):
            assert torch.equal(held(*args, **kwargs), model(*args, **kwargs))
    more = taped(tmp_path, [call(22), call(24, top_k=5), call(25, top_k=9)], "b.tape")
    assert replay(more, load_programs(tmp_path / "saved", trusted=True)).ok
    assert programs.verify(more).ok
