"""One canonical form of a call's arguments, the same for a recorded call and a live one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer.observing.groups import SortedCall
from tests.analyzer.observed import Anything, Given, Optional, given, tape_of, zeros
from tests.analyzer.observing.classes import OD, PairCache
from tests.analyzer.observing.placed import placed

np = pytest.importorskip("numpy")


def places(found: SortedCall) -> list[str]:
    return [str(place) for place in (*found.layout.tensors, *found.layout.scalars)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (given(zeros(2), zeros(3)), given(x=zeros(2), mask=zeros(3))),
        (given(zeros(2), None), given(zeros(2))),
        (given(zeros(2), None, 1.0, 1, True, "mean"), given(x=zeros(2))),
        (given(zeros(2), scale=1.0, last=None), given(zeros(2))),
        (given(zeros(2), mode="sum", add=False), given(zeros(2), add=False, mode="sum")),
        (given({"a": zeros(2), "b": 1}), given({"b": 1, "a": zeros(2)})),
        (given([{"a": zeros(2), 1: zeros(1)}]), given([{1: zeros(1), "a": zeros(2)}])),
        (given(torch.device("cpu")), given(torch.device("cuda:1"))),
        (given(zeros(2), None, steps=2), given(zeros(2), steps=2)),
    ],
    ids=repr,
)
def test_calls_that_mean_the_same_have_one_key(tmp_path: Path, one: Given, other: Given) -> None:
    found = placed(tmp_path, one, other)
    assert found[0].key == found[1].key
    assert found[0].row == found[1].row
    assert places(found[0]) == places(found[1])


def test_a_dict_in_another_order_has_its_sizes_in_the_same_places(tmp_path: Path) -> None:
    one, other = placed(
        tmp_path, given({"a": zeros(2), "b": zeros(5)}), given({"b": zeros(5), "a": zeros(2)})
    )
    assert one.row == other.row
    assert one.row.shapes == ((2,), (5,))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (given(zeros(2)), given(zeros(2), zeros(2))),
        (given(zeros(2)), given(zeros(2), scale=None)),  # None is not this one's default
        (given(zeros(2)), given(zeros(2), scale=1)),  # 1 is not 1.0
        (given(zeros(2)), given(zeros(2), steps=1.0)),
        (given(zeros(2)), given(zeros(2), steps=True)),
        (given(zeros(2)), given(zeros(2), add=1)),
        (given(zeros(2)), given(zeros(2), steps=2)),
        (given(zeros(2)), given(zeros(2), add=False)),
        (given(zeros(2), mode="sum"), given(zeros(2), mode="max")),
        (given(zeros(2), scale=0.5), given(zeros(2), scale=0.25)),
        (given(zeros(2), scale=0.0), given(zeros(2), scale=-0.0)),
        (given(zeros(2)), given(zeros(2, 1))),
        (given(zeros(2)), given(zeros(2, dtype=torch.float64))),
        (given([zeros(2)]), given((zeros(2),))),
        (given([zeros(2)]), given([zeros(2), zeros(2)])),
        (given([zeros(2), None]), given([None, zeros(2)])),
        (given({"a": zeros(2)}), given({"b": zeros(2)})),
        (given({1: zeros(2)}), given({True: zeros(2)})),
        (given({1: zeros(2)}), given({1.0: zeros(2)})),
        (given({1: zeros(2)}), given({"1": zeros(2)})),
        (given({"a": zeros(2)}), given(OD(a=zeros(2)))),
        # The order of an OrderedDict is part of its value.
        (given(OD(a=zeros(2), b=zeros(2))), given(OD(b=zeros(2), a=zeros(2)))),
        (given(torch.float32), given(torch.float16)),
        (given(torch.sparse_coo), given(torch.strided)),
        (given(None), given(...)),
        (given(slice(0, 2)), given(range(2))),
        (given(slice(0, 2)), given(slice(0, None))),
        (given(zeros(2).to_sparse()), given(zeros(2))),
    ],
    ids=repr,
)
def test_calls_that_need_two_programs_have_two_keys(
    tmp_path: Path, one: Given, other: Given
) -> None:
    found = placed(tmp_path, one, other)
    assert found[0].key != found[1].key


def test_ints_are_not_in_the_key_but_in_the_row(tmp_path: Path) -> None:
    one, other = placed(tmp_path, given(zeros(2), steps=2), given(zeros(2), steps=3))
    assert one.key == other.key
    assert (one.row.ints, other.row.ints) == ((2,), (3,))


def test_private_attributes_of_caches_tell_no_calls_apart(tmp_path: Path) -> None:
    keys = {
        place.key
        for place in placed(
            tmp_path,
            given(PairCache(zeros(2), _seen=True)),
            given(PairCache(zeros(2), _seen=False)),
            given(PairCache(zeros(2), _seen="text")),
            given(PairCache(zeros(2), _seen=None)),
            given(PairCache(zeros(2), _seen=0.5)),
            given(PairCache(zeros(2))),
        )
    }
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("before", "now"), [({"_k": zeros(2)}, {"_k": None}), ({"flag": True}, {"flag": False})]
)
def test_private_tensors_and_public_values_of_caches_separate_calls(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any]
) -> None:
    one, other = placed(
        tmp_path, given(PairCache(zeros(2), **before)), given(PairCache(zeros(2), **now))
    )
    assert one.key != other.key


def test_places_say_argument_path_and_owner(tmp_path: Path) -> None:
    (found,) = placed(
        tmp_path, given([zeros(1), {"k": zeros(2)}], 7, last=PairCache(zeros(3), seen=5))
    )
    assert places(found) == ["x.0", "x.1.k", "last.keys", "mask", "last.seen"]
    assert found.layout.tensors[2].owner == "tests.analyzer.observing.classes:PairCache"
    assert found.layout.arguments == ("x", "mask", "last")


@pytest.mark.parametrize(
    ("call", "positional"),
    [
        (given(zeros(1), zeros(1)), 2),
        (given(zeros(1), mask=zeros(1)), 1),
        (given(x=zeros(1), mask=zeros(1)), 0),
        # What is passed after an argument that falls away can no longer go by position.
        (given(zeros(1), None, 2.0), 1),
        (given(zeros(1), zeros(1), 2.0, 2, False, "sum", zeros(2), zeros(3)), 8),
    ],
)
def test_leading_positions_are_counted(tmp_path: Path, call: Given, positional: int) -> None:
    (found,) = placed(tmp_path, call)
    assert found.layout.positional == positional


def test_a_removed_argument_is_out_of_the_layout_however_it_was_passed(tmp_path: Path) -> None:
    calls = [given(zeros(2), zeros(3), 2.0), given(zeros(2), mask=zeros(4), scale=2.0)]
    tape = tape_of(tmp_path, calls, Optional())
    tape.remove_inputs(["mask"])
    (variant,) = tape.variants()
    assert variant.facts.group.layout.arguments == ("x", "scale")
    assert {str(place) for place in variant.facts.group.layout.tensors} == {"x"}
    assert variant.findings.constants == {"scale": 2.0}


def test_an_unknown_signature_takes_anything(tmp_path: Path) -> None:
    one, other = placed(
        tmp_path, given(zeros(1), zeros(2), a=zeros(3)), given(zeros(9), zeros(8), a=zeros(7)),
        module=Anything(),
    )  # fmt: skip
    assert one.key == other.key
    assert one.layout.arguments == ("args.0", "args.1", "a")
