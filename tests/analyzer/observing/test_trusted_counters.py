"""Counters of trailers against the calls on the tape: what contradicts them is not believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import open_tape
from calltape_analyzer.targets.tensorrt import optimization_profile
from calltape_recorder import First
from tests.analyzer.cli.commands import run
from tests.analyzer.observing.forging import CONTRADICTS, axis, forge, more_seen, reasons, recorded

CONTRADICTS_ITSELF = "the counters contradict themselves, and are not used"


def narrow(document: dict[str, Any]) -> None:
    more_seen(document, 5)
    document["traffic"]["groups"][0]["calls"] += 5
    axis(document).update(min=2, max=5, sizes=((2, 8),), other_calls=0)


def wider_than_all(document: dict[str, Any]) -> None:
    axis(document).update(max=4096)


def few_calls(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["calls"] = 1


def more_than_all(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["calls"] += 1
    axis(document).update(max=4096, other_calls=1)


def size_less_often(document: dict[str, Any]) -> None:
    more_seen(document, 5)
    document["traffic"]["groups"][0]["calls"] += 5
    axis(document).update(sizes=((2, 1), (5, 1), (9, 6)))


def other_ints(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["scalars"] = ({"min": 100, "max": 200},)


def no_groups(document: dict[str, Any]) -> None:
    document["traffic"]["groups"] = ()


def another_dtype(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["dtypes"] = ("int8",)


def others_beyond_all(document: dict[str, Any]) -> None:
    document["traffic"]["other_calls"] = 1


@pytest.mark.parametrize(
    "change",
    [
        narrow, wider_than_all, few_calls, more_than_all, size_less_often, other_ints, no_groups,
        another_dtype, others_beyond_all,
    ],
)  # fmt: skip
def test_counters_that_contradict_the_calls_are_not_used(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9, 2])
    with open_tape(path) as tape:
        assert tape.counters.complete
        assert not tape.damage
        true = tape.variants()[0].infer_dynamic_shapes()
        profile = optimization_profile(tape.variants()[0]).inputs
    forge(path, change)
    with open_tape(path) as tape:
        assert tape.counters.missing == {str(path)}
        assert tape.counters.calls == 0
        (reason,) = reasons(tape)
        assert reason.startswith((CONTRADICTS, CONTRADICTS_ITSELF))
        assert tape.variants()[0].infer_dynamic_shapes() == true
        found = optimization_profile(tape.variants()[0]).inputs
        assert {n: (p.min, p.max) for n, p in found.items()} == {
            n: (p.min, p.max) for n, p in profile.items()
        }
    shown = run("info", path)
    assert shown.code == 3
    assert reason in shown.err


def max_alone(document: dict[str, Any]) -> None:
    axis(document).update(max=100_000)


def min_alone(document: dict[str, Any]) -> None:
    axis(document).update(min=0)


def both_bounds_of_one_other_call(document: dict[str, Any]) -> None:
    first, *rest = axis(document)["sizes"]
    axis(document).update(min=0, max=100_000, sizes=tuple(rest), other_calls=first[1])


def a_size_that_no_call_had(document: dict[str, Any]) -> None:
    axis(document).update(max=100_000, sizes=(*axis(document)["sizes"], (100_000, 0)))


def more_calls_than_the_group(document: dict[str, Any]) -> None:
    *rest, last = axis(document)["sizes"]
    axis(document).update(sizes=(*rest, (last[0], 2**62)))


def fewer_calls_than_the_group(document: dict[str, Any]) -> None:
    axis(document).update(sizes=axis(document)["sizes"][:-1], max=axis(document)["sizes"][-2][0])


def sizes_in_another_order(document: dict[str, Any]) -> None:
    axis(document).update(sizes=axis(document)["sizes"][::-1])


def other_calls_of_a_short_list(document: dict[str, Any]) -> None:
    *rest, last = axis(document)["sizes"]
    axis(document).update(sizes=tuple(rest), other_calls=last[1])


def a_list_on_one_axis_only(document: dict[str, Any]) -> None:
    calls = document["traffic"]["groups"][0]["calls"]
    axis(document, 1).update(sizes=(), other_calls=calls)


def int_of_no_call(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["scalars"] = ({"min": 2, "max": 200},)


def int_of_more_calls(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["scalars"][0].update(other_calls=2**40)


def a_kind_twice(document: dict[str, Any]) -> None:
    (group,) = document["traffic"]["groups"]
    more_seen(document, group["calls"])
    document["traffic"]["groups"] = (group, group)


def a_group_without_calls(document: dict[str, Any]) -> None:
    (group,) = document["traffic"]["groups"]
    empty = {**group, "calls": 0, "dtypes": ("int8",)}
    document["traffic"]["groups"] = (group, empty)


SELF_CONTRADICTIONS = [
    max_alone, min_alone, both_bounds_of_one_other_call, a_size_that_no_call_had,
    more_calls_than_the_group, fewer_calls_than_the_group, sizes_in_another_order,
    other_calls_of_a_short_list, a_list_on_one_axis_only, int_of_no_call, int_of_more_calls,
    a_kind_twice, a_group_without_calls,
]  # fmt: skip


@pytest.mark.parametrize("change", SELF_CONTRADICTIONS)
@pytest.mark.parametrize("is_alone", [False, True])
def test_counters_that_do_not_add_up_are_not_used(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], is_alone: bool
) -> None:
    """Whatever calls were not kept, and also of one file alone of a recording of many."""
    path = recorded(tmp_path / "a.tape", [2, 5, 30, 9, 9, 7, 4], keep=First(3))
    if is_alone:
        forge(path, lambda document: document.update(continues=True), number=5)
    with open_tape(path) as tape:
        assert tape.counters.complete
        assert not tape.damage
        profile = optimization_profile(tape.variants()[0]).inputs
        assert {n: (p.min, p.max) for n, p in profile.items()} == {"x": ((2, 3), (30, 3))}
    with open_tape(forge(path, change)) as tape:
        assert tape.counters.missing == {str(path)}
        (reason,) = reasons(tape)
        assert reason.startswith(CONTRADICTS_ITSELF)
        assert optimization_profile(tape.variants()[0]).inputs["x"].max == (30, 3)
    assert run("info", path).code == 3
