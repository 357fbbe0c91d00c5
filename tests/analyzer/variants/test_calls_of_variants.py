"""A variant is gone through as a tape is, and a tape of several says which they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from calltape_analyzer import InferenceError, Tape, open_tape
from tests.analyzer.observed import Given, Optional, given, tape_of, zeros
from tests.forging.changes import flip, member_list

CALLS = [given(zeros(n, 3)) for n in (2, 4)] + [given(zeros(n, 3), zeros(n)) for n in (3, 5, 6)]


def test_a_variant_is_gone_through_as_a_tape_is(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, CALLS, Optional())
    without, with_mask = tape.variants()
    assert [call.number for call in without] == [0, 1]
    assert [call.number for call in with_mask] == [2, 3, 4]
    for variant in tape.variants():
        assert len(variant) == len(list(variant)) == len(variant.calls)
        assert [call.address for call in variant] == [call.address for call in variant.calls]


def test_a_damaged_call_is_skipped_and_told(tmp_path: Path) -> None:
    path = Path(tape_of(tmp_path, CALLS, Optional()).paths[0])
    blobs = [member for member in member_list(path) if member.name.endswith("1.safetensors")]
    flip(path, blobs[0].start + blobs[0].size - 1)
    with open_tape(path) as tape:
        (first, _) = tape.variants()
        assert [call.number for call in first] == [0]
        assert len(tape.damage) == 1


def of_other_ranks(n: int) -> Given:
    return given(zeros(*range(2, 3 + n)))


SEVERAL: dict[str, list[Given]] = {
    "ranks": [of_other_ranks(0), of_other_ranks(1)],
    "bools": [given(zeros(2, 3), add=False), given(zeros(2, 3), add=True)],
    "lists": [given([zeros(2)]), given([zeros(2), zeros(3)])],
    "keys": [given({"a": zeros(2)}), given({"b": zeros(2)})],
    "keywords": [given(zeros(2), extra=zeros(2)), given(zeros(2), other=zeros(2), more=zeros(3))],
}


def errors_of(tape: Tape) -> list[str]:
    found = []
    for ask in (tape.infer_dynamic_shapes, tape.infer_arguments, lambda: tape.single):
        try:
            ask()
        except InferenceError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("calls", SEVERAL.values(), ids=SEVERAL)
def test_a_tape_of_several_says_which_can_be_asked(calls: list[Given], tmp_path: Path) -> None:
    tape = tape_of(tmp_path, calls, Optional())
    names = [variant.name for variant in tape.variants()]
    errors = errors_of(tape)
    assert len(errors) == 3
    for error in errors:
        assert f"Ask each of tape.variants(): {'; '.join(names)}" in error
    for variant in tape.variants():
        variant.infer_dynamic_shapes()
        variant.infer_arguments()


def test_what_one_program_can_hold_is_still_one(tmp_path: Path) -> None:
    assert errors_of(tape_of(tmp_path, CALLS, Optional())) == []
