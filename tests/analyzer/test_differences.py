"""What one tape's traffic shows that another's does not: each kind of change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.differences import Change, TapeDifference, diff
from tests.analyzer.chats import CHATS, calls_of, record_chats
from tests.analyzer.tapes import Recorded, write_tape

ZEROS = torch.zeros


def compared(tmp_path: Path, before: list[Any], now: list[Any], **options: Any) -> TapeDifference:
    """The difference of two tapes of these calls."""
    a = write_tape(tmp_path / "a.tape", before, **options)
    b = write_tape(tmp_path / "b.tape", now, **options)
    with open_tape(a) as tape, open_tape(b) as other:
        return diff(tape, other)


def of_kind(changes: tuple[Change, ...], kind: str) -> list[Change]:
    return [change for change in changes if change.kind == kind]


def test_the_order_of_calls_is_no_difference(tmp_path: Path) -> None:
    one = record_chats(tmp_path / "a.tape", CHATS)
    other = record_chats(tmp_path / "b.tape", tuple(reversed(CHATS)))
    with open_tape(one) as a, open_tape(other) as b:
        difference = diff(a, b)
        assert difference.same
        assert diff(a, a).same
    assert str(difference).endswith("the traffic on both is the same")


def test_other_traffic_of_a_language_model_is_described(tmp_path: Path) -> None:
    one = record_chats(tmp_path / "a.tape", CHATS)
    other = record_chats(tmp_path / "b.tape", ((2, 5), (8, 5)), step=2)
    with open_tape(one) as a, open_tape(other) as b:
        difference = diff(a, b)
    assert not difference.same
    changes = {(c.kind, c.where): c for c in difference.appeared}
    constant = changes["dimension", "input_ids[1]"]
    assert constant.text == "now 2; always 1 before, in decode"
    assert (constant.first_call, constant.calls) == (1, 4)
    total = next(c for c in difference.appeared if c.kind == "relation")
    assert total.where == "total_sequence_length (attention_mask[1])"
    assert total.text.endswith("+ 1, as always in decode: 7 instead of 6")
    batch = changes["size", "input_ids[0], attention_mask[0]"]
    assert (batch.text, batch.first_call) == ("now 8; 1..3 before, in prefill", 3)
    # The cache's layers are told together, and with what else has the same sizes.
    assert any("past_key_values.*[0] (2 of them)" in c.where for c in difference.appeared)
    assert (
        "+ dimension: input_ids[1]: now 2; always 1 before, in decode (4 calls, first call 1)"
        in (str(difference).splitlines())
    )


def test_a_new_argument_appears_with_its_variant(tmp_path: Path) -> None:
    before = calls_of((2,), (3,))
    now = [*before, *calls_of({"x": (2,), "m": (2,), "fast": True})]
    difference = compared(tmp_path, before, now)
    fast, mask = of_kind(difference.appeared, "argument")
    assert (mask.where, mask.first_call, mask.calls) == ("m", 2, 1)
    assert mask.text == "never passed before, or only its default"
    assert fast.text.endswith("default: True")
    (variant,) = of_kind(difference.appeared, "variant")
    assert variant.text == "never seen before: with fast; with m"
    assert not difference.disappeared
    difference = compared(tmp_path, now, before)
    assert not difference.appeared
    assert [c.kind for c in difference.disappeared] == ["argument", "argument", "variant"]
    assert difference.disappeared[1].text == "no longer passed, or only its default"
    assert difference.disappeared[0].first_call == 2  # on the tape that has it
    assert not difference.same


@pytest.mark.parametrize(
    ("before", "now", "kind", "where", "text"),
    [
        ({"x": ZEROS(2)}, {"x": ZEROS(2).half()}, "dtype", "x", "float16; before only float32"),
        ({"x": ZEROS(2)}, {"x": ZEROS(2, 3)}, "rank", "x", "2; before only 1"),
        ({"x": ZEROS(2)}, {"x": 3}, "kind", "x", "int; before only tensor"),
        ({"m": "a"}, {"m": "b"}, "constant", "m", "'b'; before only 'a'"),
        ({"m": 0.5}, {"m": 0.25}, "constant", "m", "0.25; before only 0.5"),
        ({"m": True}, {"m": False}, "constant", "m", "False; before only True"),
        ({"o": {"m": None}}, {"o": {"m": True}}, "kind", "o.m", "bool; before only none"),
        ({"n": 3}, {"n": 5}, "int", "n", "now 5; always 3 before, in main"),
        ({"x": ZEROS(2)}, {"x": ZEROS(9)}, "dimension", "x[0]", "now 9; always 2 before, in main"),
    ],
)
def test_what_differs_in_one_call_is_said_with_its_number(
    tmp_path: Path, before: Any, now: Any, kind: str, where: str, text: str
) -> None:
    difference = compared(tmp_path, [before], [before, now])
    (change,) = of_kind(difference.appeared, kind)
    assert (change.where, change.text) == (where, text)
    assert (change.first_call, change.calls) == (1, 1)


def test_sizes_and_ints_beyond_the_range_appear(tmp_path: Path) -> None:
    before = [{"x": ZEROS(n, 4), "n": n * 10} for n in (2, 5)]
    now = [{"x": ZEROS(n, 4), "n": n * 10} for n in (3, 7, 4, 1)]
    difference = compared(tmp_path, before, now)
    size, number = difference.appeared
    assert (size.kind, size.where, size.text) == ("size", "x[0]", "now 1, 7; 2..5 before, in main")
    assert (size.first_call, size.calls) == (1, 2)
    assert (number.kind, number.text) == ("int", "now 10, 70; 20..50 before, in main")
    assert compared(tmp_path, before, now[:1]).same  # between those seen


def test_sizes_seen_in_another_variant_are_known(tmp_path: Path) -> None:
    before = calls_of((2,), (9,), {"x": (4,), "m": (1,)})
    assert not compared(tmp_path, before, calls_of({"x": (7,), "m": (1,)})).appeared
    beyond = compared(tmp_path, before, calls_of({"x": (12,), "m": (1,)}))
    (change,) = beyond.appeared
    assert change.text.startswith("now 12; 2..9 before, in ")


def test_sizes_in_a_new_structure_are_compared_with_all_before(tmp_path: Path) -> None:
    before = calls_of((2, 8), (5, 8))
    difference = compared(tmp_path, before, calls_of({"x": (9, 16), "m": (3,)}))
    texts = {c.where: c.text for c in difference.appeared if c.kind in ("size", "dimension")}
    assert texts["x[0]"].startswith("now 9; 2..5 before")
    assert texts["x[1]"].startswith("now 16; always 8 before")


def test_dimensions_that_are_no_longer_equal_appear(tmp_path: Path) -> None:
    before = calls_of(*({"x": (n,), "y": (n,), "z": (n,)} for n in (2, 3, 5)))
    now = calls_of({"x": (2,), "y": (2,), "z": (2,)}, {"x": (5,), "y": (5,), "z": (3,)})
    difference = compared(tmp_path, before, now)
    (change,) = difference.appeared
    assert (change.kind, change.first_call, change.calls) == ("symbol", 1, 1)
    assert change.text == (
        "no longer equal, as they always were in main: x[0], y[0] is 5, z[0] is 3"
    )


def test_a_sum_that_no_longer_holds_appears(tmp_path: Path) -> None:
    before = calls_of(*({"x": (a,), "y": (b,), "z": (a + b,)} for a, b in ((2, 7), (3, 4), (6, 5))))
    now = calls_of({"x": (3,), "y": (5,), "z": (8,)}, {"x": (3,), "y": (5,), "z": (9,)})
    difference = compared(tmp_path, before, now)
    (change,) = difference.appeared
    assert change.kind == "relation"
    assert (change.first_call, change.calls) == (1, 1)
    assert change.text.endswith("as always in main: 9 instead of 8")


def test_a_counter_that_no_longer_counts_appears(tmp_path: Path) -> None:
    class ToyLayer:
        def __init__(self, length: int, seen: int) -> None:
            self.keys = ZEROS(1, 2, length, 4)
            self.cumulative_length = seen

    before = [{"cache": ToyLayer(n, n)} for n in (3, 4, 5)]
    difference = compared(tmp_path, before, [{"cache": ToyLayer(5, 5)}, {"cache": ToyLayer(5, 6)}])
    (change,) = difference.appeared
    assert (change.kind, change.where) == ("relation", "cache.cumulative_length")
    assert change.text == "no longer counts cache.keys[2], as it always did in main"
    assert change.first_call == 1


def test_a_dimension_that_no_longer_varies_disappears(tmp_path: Path) -> None:
    before = calls_of((2,), (3,), (5,))
    difference = compared(tmp_path, before, calls_of((3,), (3,)))
    (change,) = difference.disappeared
    assert (change.kind, change.text) == ("dimension", "2..5 in main before, now always 3")
    assert not compared(tmp_path, before, calls_of((3,))).disappeared  # one call says nothing


def test_broadcast_calls_that_are_gone(tmp_path: Path) -> None:
    before = calls_of(*({"x": (n, 4), "m": (m, 4)} for n, m in ((2, 2), (3, 3), (4, 1), (5, 1))))
    difference = compared(tmp_path, before, before[:2])
    (change,) = difference.disappeared
    assert (change.kind, change.text) == ("variant", "no longer seen: m[0] = 1")
    assert change.first_call == 2


def test_elements_are_told_but_are_no_difference(tmp_path: Path) -> None:
    before = [{"ids": torch.tensor([3, 9])}]
    now = [{"ids": torch.tensor([4, 5])}, {"ids": torch.tensor([1, 12])}]
    difference = compared(tmp_path, before, now)
    (change,) = difference.appeared
    assert (change.kind, change.where, change.text) == (
        "range", "ids", "elements 1..12; 3..9 before"
    )  # fmt: skip
    assert (change.first_call, change.calls) == (1, 1)
    assert difference.same


def test_another_device_is_no_difference(tmp_path: Path) -> None:
    calls = [[{"d": torch.device(name)}] for name in ("cpu", "meta")]
    assert compared(tmp_path, *calls).same


def test_an_error_appears(tmp_path: Path) -> None:
    raised = Recorded(kwargs={"x": ZEROS(2)}, error=("builtins:ValueError", "no"))
    difference = compared(tmp_path, calls_of((2,)), [*calls_of((2,)), raised])
    (change,) = difference.appeared
    assert (change.kind, change.first_call) == ("error", 1)


def test_another_signature_is_a_difference(tmp_path: Path) -> None:
    def f(x: Any) -> None: ...

    def g(x: Any, y: Any = 1) -> None: ...

    a = write_tape(tmp_path / "a.tape", calls_of((2,)), target=f)
    b = write_tape(tmp_path / "b.tape", calls_of((2,)), target=g)
    with open_tape(a) as tape, open_tape(b) as other:
        (change,) = diff(tape, other).appeared
    assert change.kind == "target"
    assert change.text == "its signature differs from parameter y on"
    assert change.first_call is None


def test_lists_that_grow(tmp_path: Path) -> None:
    difference = compared(tmp_path, [{"c": [ZEROS(2)]}], [{"c": [ZEROS(2), ZEROS(2)]}])
    (variant,) = of_kind(difference.appeared, "variant")
    assert variant.text == "never seen before: c has 2 tensors instead of 1"


def test_empty_tapes_are_the_same(tmp_path: Path) -> None:
    assert compared(tmp_path, [], []).same
    assert [c.kind for c in compared(tmp_path, [], calls_of((2,))).appeared] == [
        "argument", "variant"
    ]  # fmt: skip
    assert not compared(tmp_path, calls_of((2,)), []).same


def test_files_are_named_where_they_are_several(tmp_path: Path) -> None:
    a = write_tape(tmp_path / "a.tape", calls_of((2,)))
    several = [
        write_tape(tmp_path / f"{n}.tape", calls_of((n,)), tape_id=bytes([n] * 16)) for n in (2, 7)
    ]
    with open_tape(a) as tape, open_tape(several) as other:
        (change,) = diff(tape, other).appeared
    assert change.path == str(several[1])
    assert str(change).endswith(f"(1 call, call 07070707:0 of {several[1]})")


def test_differences_are_plain_data_and_printable(tmp_path: Path) -> None:
    text = "\x1b[2J\u202e"
    difference = compared(tmp_path, [{text: text}], [{text: f"{text}2", f"{text}3": ZEROS(1)}])
    assert all(line.isprintable() for line in str(difference).split("\n"))
    document = json.loads(difference.model_dump_json())
    assert document["same"] is False
    assert {c["kind"] for c in document["appeared"]} == {"constant", "argument", "variant"}
    assert len(list(difference)) == len(document["appeared"]) + len(document["disappeared"])
