"""A part of a tape: some calls, some variants, without some arguments; and addresses of calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, diff, open_tape, replay
from calltape_analyzer.errors import UsageError
from tests.analyzer.tapes import write_tape

A, B = bytes.fromhex("3f9a01bc" * 4), bytes.fromhex("77000000" * 4)


class Model(torch.nn.Module):
    def forward(self, x: Any, mask: Any = None) -> Any:
        return x + 1


def written(path: Path, first: int, tape_id: bytes) -> Path:
    calls: list[Any] = [((torch.zeros(first + i, 4),), {}) for i in range(3)]
    calls += [((torch.zeros(2, 4),), {"mask": torch.ones(2, 5 + i)}) for i in range(2)]
    outputs = [call[0][0] + 1 for call in calls]
    return write_tape(path, calls, target=Model(), outputs=outputs, tape_id=tape_id)


@pytest.fixture
def tape(tmp_path: Path) -> Iterator[Tape]:
    with open_tape(written(tmp_path / "a.tape", 2, A)) as tape:
        yield tape


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Tape]:
    tmp_path = tmp_path / "both"
    tmp_path.mkdir()
    written(tmp_path / "a.tape", 2, A)
    written(tmp_path / "b.tape", 7, B)
    with open_tape(tmp_path) as tape:
        yield tape


def numbers(tape: Tape) -> list[int]:
    return [call.number for call in tape.calls]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (3, [3]),
        ("3", [3]),
        ("0..1", [0, 1]),
        ("..1", [0, 1]),
        ("3..", [3, 4]),
        ("0,2..3", [0, 2, 3]),
        ([4, "0..1"], [0, 1, 4]),
        ("3f9a:4", [4]),
        ("3f9a01bc:..", [0, 1, 2, 3, 4]),
    ],
)
def test_only_keeps_the_calls_that_are_asked_for(
    tape: Tape, given: Any, expected: list[int]
) -> None:
    part = tape.only(calls=given)
    assert numbers(part) == expected
    assert [call.index for call in part.calls] == list(range(len(expected)))
    assert len(tape) == 5


def test_calls_that_one_has(tape: Tape) -> None:
    assert numbers(tape.only(calls=[tape[1], tape[2].ref])) == [1, 2]


def test_a_list_of_no_calls_is_a_choice(tape: Tape) -> None:
    part = tape.only(calls=[call for call in tape.calls if call.number > 99])
    assert numbers(part) == []
    assert part.variants() == []


@pytest.mark.parametrize("given", ["", "x", "3-4", "-1", "4..3", "9", "0..3,7", "77:1", 1.5])
def test_calls_that_are_none(tape: Tape, given: Any) -> None:
    with pytest.raises(UsageError):
        tape.only(calls=given)


def test_answers_are_those_of_the_calls(tape: Tape) -> None:
    part = tape.only(calls="0..1")
    shapes: Any = part.infer_dynamic_shapes()
    assert shapes == ({0: torch.export.Dim.DYNAMIC},)
    assert [len(variant) for variant in part.variants()] == [2]
    assert part.observations().calls == 2
    assert len(replay(part, Model())) == 2
    assert diff(part, tape.only(calls="0..2")).appeared
    assert not part.counters.complete


def test_only_keeps_a_variant_by_name_number_or_itself(tape: Tape) -> None:
    names = [variant.name for variant in tape.variants()]
    part = tape.only(variant=names[1])
    assert numbers(part) == [3, 4]
    assert [variant.name for variant in part.variants()] == names[1:]
    assert set(part.infer_arguments().kwargs) == {"mask"}
    assert numbers(tape.only(variant=0)) == [0, 1, 2]
    assert numbers(tape.only(variant="0")) == [0, 1, 2]
    assert numbers(tape.only(variant=tape.variants())) == [0, 1, 2, 3, 4]
    with pytest.raises(UsageError, match="There are"):
        tape.only(variant="other")


def test_a_variant_keeps_what_the_others_showed(tape: Tape) -> None:
    (variant,) = tape.only(variant=1).variants()
    (alone,) = tape.only(calls="3..4").variants()
    assert variant.findings.tensors[0].dimensions[0].reason == "pooled"
    assert alone.findings.tensors[0].dimensions[0].reason == "constant"
    explained = tape.only(variant=1).explain("x", 0)
    assert [part.variant for part in explained.parts] == [variant.name]
    assert "elsewhere it was 3" in str(explained)


def test_only_keeps_calls_of_one_variant(tape: Tape) -> None:
    assert numbers(tape.only(calls="2..3", variant=1)) == [3]


def test_only_merges_variants_without_an_argument(tape: Tape) -> None:
    counters = tape.counters
    part = tape.only(ignore=["mask"])
    assert part.counters is counters
    assert [len(variant) for variant in part.variants()] == [5]
    assert part.removed == ("mask",)
    assert len(tape.variants()) == 2
    with pytest.raises(UsageError, match="no call passes masc"):
        tape.only(ignore=["masc"])


def test_only_selects_from_a_part(tape: Tape) -> None:
    part = tape.only(calls="1..4").only(variant=1, ignore=()).only(calls="4")
    assert numbers(part) == [4]


def test_addresses_tell_calls_of_several_recordings_apart(directory: Tape) -> None:
    addresses = [call.address for call in directory.calls]
    assert addresses[:2] == ["3f9a01bc:0", "3f9a01bc:1"]
    assert len(set(addresses)) == 10
    for call in directory.calls:
        assert directory.find(call.address).ref == call.ref
    with pytest.raises(UsageError, match=r"3f9a01bc:0 .*77000000:0 "):
        directory.find(0)
    assert len(directory.only(calls="0..1")) == 4
    assert len(directory.only(calls="7700:0..1")) == 2


def test_people_are_told_what_suffices(tape: Tape, directory: Tape) -> None:
    assert tape.calls.label_of(tape[3].ref) == "3"
    assert directory.calls.label_of(directory[3].ref) == "3f9a01bc:3"
    assert tape.find("3f9a01bc:3").number == tape.find(3).number == tape.find("3").number
    for given in ("0..2", "x", "0,1"):
        with pytest.raises(UsageError):
            tape.find(given)
