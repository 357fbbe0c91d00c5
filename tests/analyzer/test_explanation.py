"""Why a dimension is what it is: every reason, the calls that show it, and thin evidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from calltape_analyzer import open_tape
from calltape_analyzer.errors import UsageError
from calltape_analyzer.explanation import DimensionExplanation, Explanation
from calltape_analyzer.text import collapsed
from tests.analyzer.chats import CHATS, ZEROS, calls_of, record_chats
from tests.analyzer.tapes import Recorded, write_tape


@pytest.fixture
def llm(tmp_path: Path) -> Path:
    return record_chats(tmp_path / "llm.tape", CHATS)


def explained(file: Path, *args: Any, **options: Any) -> Explanation:
    with open_tape(file) as tape:
        return tape.explain(*args, **options)


def only(explanation: Explanation) -> DimensionExplanation:
    (part,) = explanation.parts
    (dimension,) = part.dimensions
    return dimension


def test_a_dimension_is_explained_for_each_variant_of_a_language_model(llm: Path) -> None:
    explanation = explained(llm, "input_ids", 1)
    assert [part.variant for part in explanation.parts] == ["prefill", "decode"]
    prefill, decode = (part.dimensions[0] for part in explanation.parts)
    assert (prefill.dynamic, prefill.reason, prefill.symbol) == (True, "varied", "sequence_length")
    assert prefill.equals == ("attention_mask[1]",)
    assert [(s.value, s.calls, s.first_call) for s in prefill.seen] == [
        (4, 1, 6), (5, 1, 0), (7, 1, 3)
    ]  # fmt: skip
    assert (decode.dynamic, decode.reason) == (False, "one")
    assert "elsewhere it was 5 (in prefill, call 0)" in decode.why
    assert "always 1, in 6 of 6 calls" in str(explanation)


def test_an_expression_is_explained_with_its_symbols(llm: Path) -> None:
    _, decode = explained(llm, "attention_mask", 1).parts
    total = decode.dimensions[0]
    past = only(explained(llm, "past_key_values.0", 1))
    assert total.expression == f"{past.symbol} + 1"
    assert total.holds == 6
    assert total.related == (f"where {past.symbol} is past_key_values.*[1] (2 of them)",)
    assert past.related == (f"from it follows {total.symbol}: always {total.expression}",)
    text = str(explained(llm, "attention_mask[1]"))
    assert f"always {past.symbol} + 1, in 6 of 6 calls" in text


def test_layers_that_are_alike_are_explained_once(llm: Path) -> None:
    explanation = explained(llm, "past_key_values")
    (part,) = explanation.parts
    assert part.places == ("past_key_values.0", "past_key_values.1")
    assert [d.axis for d in part.dimensions] == [0, 1, 2]
    assert part.dimensions[0].equals == ("input_ids[0]", "attention_mask[0]")
    assert part.dimensions[1].equals == ()
    assert "past_key_values.* (2 of them): tensor float32" in str(explanation)
    assert explanation.notes == (
        "past_key_values is left out, or its default, in 3 calls: prefill",
    )


def test_a_dimension_is_named_by_axis_or_brackets(llm: Path) -> None:
    expected = explained(llm, "past_key_values.1", 2)
    assert expected.axis == 2
    assert explained(llm, "past_key_values.1[2]") == expected
    assert explained(llm, "past_key_values.1", -1) == expected
    assert str(expected).startswith("past_key_values.1[2]\n")
    assert only(expected).why == "always 8, in 6 of 6 calls"


def test_a_symbol_is_explained_by_its_name(llm: Path) -> None:
    explanation = explained(llm, "batch_size")
    assert [part.variant for part in explanation.parts] == ["prefill", "decode"]
    assert {part.dimensions[0].symbol for part in explanation.parts} == {"batch_size"}
    assert explanation.parts[0].dimensions[0].equals == ("attention_mask[0]",)


def test_of_many_sizes_the_smallest_and_largest_are_shown(tmp_path: Path) -> None:
    found = only(
        explained(write_tape(tmp_path / "a.tape", calls_of(*((n,) for n in range(100)))), "x")
    )
    assert found.distinct == 100
    assert [s.value for s in found.seen] == [*range(32), *range(68, 100)]
    (shown,) = (line for line in found.lines(100) if "seen" in line)
    assert shown.startswith("  seen: 0 (1 call, call 0), 1 (")
    assert "… (88 more)" in shown
    assert shown.endswith("99 (1 call, call 99)")


def test_devices_select_nothing(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [{"d": {"on": torch.device("cpu"), "x": ZEROS(2)}}])
    assert [part.places for part in explained(path, "d").parts] == [("d.x",)]


def test_names_that_do_not_exist(llm: Path) -> None:
    with pytest.raises(UsageError, match=r"no call passes atention_mask.*attention_mask\?"):
        explained(llm, "atention_mask")
    with pytest.raises(UsageError, match="input_ids, attention_mask, past_key_values"):
        explained(llm, "zzz")
    with pytest.raises(UsageError, match="no dimension 2: its rank is 2"):
        explained(llm, "input_ids", 2)
    with pytest.raises(UsageError, match="no dimension -3"):
        explained(llm, "input_ids", -3)
    with pytest.raises(UsageError, match=r"past_key_values\.0"):
        explained(llm, "past_key_values.00")


def test_a_symbol_has_no_axes(llm: Path) -> None:
    assert explained(llm, "batch_size").parts
    with pytest.raises(UsageError, match="batch_size is a symbol, which has no axes"):
        explained(llm, "batch_size", 0)


def test_a_parameter_that_no_call_passes_is_explained(llm: Path) -> None:
    explanation = explained(llm, "scale")
    assert explanation.parts == ()
    assert "no call passes scale, or only its default" in str(explanation)


def test_a_size_that_varied_in_another_variant_is_dynamic(tmp_path: Path) -> None:
    calls = calls_of((3, 8), (4, 8), {"x": (5, 8), "m": (2,)})
    path = write_tape(tmp_path / "a.tape", calls)
    first, second = explained(path, "x", 0).parts
    assert first.dimensions[0].reason == "varied"
    pooled = second.dimensions[0]
    assert (pooled.dynamic, pooled.reason) == (True, "pooled")
    assert pooled.why.startswith("always 5, in 1 of 1 call, but elsewhere it was 3 (in ")
    assert "call 0" in pooled.why
    assert "one call is all the evidence" in pooled.warnings


def test_a_size_that_varied_in_a_sibling_is_dynamic(tmp_path: Path) -> None:
    calls = [{"xs": [ZEROS(n, 2)]} for n in (3, 5)] + [{"xs": [ZEROS(3, 2), ZEROS(7, 2)]}]
    second = only(explained(write_tape(tmp_path / "a.tape", calls), "xs.1", 0))
    assert second.reason == "pooled"
    assert "5 (as xs.0[0] in 1 tensor in xs, call 1)" in second.why


def test_a_size_that_equals_a_dynamic_neighbour_is_dynamic(tmp_path: Path) -> None:
    calls = calls_of({"x": (3, 8), "y": (3, 2)}, (4, 8), (5, 8))
    found = only(explained(write_tape(tmp_path / "a.tape", calls), "y", 0))
    assert (found.dynamic, found.reason) == (True, "neighbour")
    assert "x[0] of the same axis and size is dynamic" in found.why


def test_an_explanation_says_that_a_size_broadcasts(tmp_path: Path) -> None:
    calls = calls_of(*({"x": (n, 4), "m": (m, 4)} for n, m in ((2, 2), (3, 3), (4, 1), (5, 1))))
    explanation = explained(write_tape(tmp_path / "a.tape", calls), "m", 0)
    reasons = {part.dimensions[0].reason for part in explanation.parts}
    assert "varied" in reasons
    assert "it broadcasts, and calls where it is not 1 are another variant" in str(explanation)


def test_a_counter_is_explained_by_the_size_that_it_equals(tmp_path: Path) -> None:
    class Layer:
        def __init__(self, length: int) -> None:
            self.keys = ZEROS(1, 2, length, 4)
            self.cumulative_length = length

    class ToyCache:
        def __init__(self, length: int) -> None:
            self.layers = [Layer(length)]

    Layer.__name__ = "ToyLayer"
    calls = [{"cache": ToyCache(n)} for n in (3, 4)]
    path = write_tape(tmp_path / "a.tape", calls)
    found = only(explained(path, "cache.layers.0.cumulative_length"))
    assert (found.axis, found.dynamic, found.reason) == (None, False, "counter")
    assert "always equals cache.layers.0.keys[2], in 2 of 2 calls" in found.why


def test_ints_and_constants_are_explained_by_value(tmp_path: Path) -> None:
    calls = [
        {"x": ZEROS(2), "n": n, "mode": "fast", "flag": True, "kind": torch.float16, "o": {}}
        for n in (3, 4)
    ]
    path = write_tape(tmp_path / "a.tape", calls)
    n = only(explained(path, "n"))
    assert (n.axis, n.dynamic, n.distinct) == (None, True, 2)
    for name, kind, value in (
        ("mode", "str", "'fast'"), ("flag", "bool", "True"), ("kind", "dtype", "float16"),
        ("o", "dict", "(empty)"),
    ):  # fmt: skip
        (part,) = explained(path, name).parts
        assert (part.kind, part.value) == (kind, value)
    assert "calls with another value are another variant" in str(explained(path, "flag"))
    with pytest.raises(UsageError, match="not a tensor"):
        explained(path, "n", 0)


def test_a_float_that_varies_is_no_constant(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [{"x": ZEROS(2), "t": t} for t in (0.5, 1.5, 2.5)])
    (part,) = explained(path, "t").parts
    assert part.varies
    assert str(explained(path, "t")).endswith("calls with other values are of the same variant")


@pytest.mark.parametrize(
    ("calls", "where", "warning"),
    [
        (calls_of((3, 8)), ("x", 0), "one call is all the evidence that it is constant"),
        (calls_of((0,), (1,), (1,)), ("x", 0), "no size of at least 2 was seen"),
        (calls_of((2, 2), (3, 3), (5, 5)), ("x", 1), "were always equal, which may be chance"),
        (
            calls_of(*({"x": (n, 7), "y": (2, n)} for n in (2, 3, 5, 6))),
            ("x", 0),
            "x[0] and y[1], a first dimension and a later one, were always equal",
        ),
        (
            calls_of({"x": (2,), "y": (6,)}, {"x": (3,), "y": (7,)}),
            ("y", 0),
            "rests on 2 distinct sizes",
        ),
    ],
)
def test_thin_evidence_is_warned_of(
    tmp_path: Path, calls: list[Any], where: tuple[str, int], warning: str
) -> None:
    explanation = explained(write_tape(tmp_path / "a.tape", calls), *where)
    assert any(warning in text for text in explanation.warnings), explanation.warnings
    assert "warning: " in str(explanation)


def test_plain_evidence_has_no_warning(llm: Path) -> None:
    for name in ("input_ids", "attention_mask", "past_key_values"):
        assert explained(llm, name).warnings == ()


def test_an_explanation_survives_json(llm: Path, tmp_path: Path) -> None:
    explanation = explained(llm, "attention_mask")
    document = json.loads(explanation.model_dump_json())
    assert Explanation.model_validate_json(explanation.model_dump_json()) == explanation
    assert document["subject"] == "attention_mask"
    assert document["parts"][0]["dimensions"][0]["seen"][0] == {
        "value": 1, "calls": 1, "first_call": 6, "path": None, "address": None
    }  # fmt: skip
    huge = write_tape(tmp_path / "huge.tape", [{"n": 1 << 300}, {"n": 1 << 80}, {"n": 3}])
    (part,) = json.loads(explained(huge, "n").model_dump_json())["parts"]
    seen = [sighting["value"] for sighting in part["dimensions"][0]["seen"]]
    assert seen == [3, str(1 << 80), str(1 << 300)]


def test_an_explanation_is_a_value(llm: Path) -> None:
    one, other = explained(llm, "input_ids"), explained(llm, "input_ids")
    assert (one, hash(one)) == (other, hash(other))
    assert one != explained(llm, "input_ids", 1)
    with pytest.raises(ValidationError):
        one.subject = "attention_mask"


def test_several_files_are_told_apart(tmp_path: Path) -> None:
    paths = [
        write_tape(tmp_path / f"{n}.tape", calls_of((n, 8)), tape_id=bytes([n] * 16))
        for n in (3, 4)
    ]
    with open_tape(paths) as tape:
        found = only(tape.explain("x", 0))
    assert [sighting.path for sighting in found.seen] == [str(path) for path in paths]
    assert f"4 (1 call, call 04040404:0 of {paths[1]})" in str(found.seen[1])


def test_calls_that_raised_are_no_evidence(tmp_path: Path) -> None:
    raised = Recorded(kwargs={"x": ZEROS(9)}, error=("builtins:ValueError", "no"))
    path = write_tape(tmp_path / "a.tape", [*calls_of((2,), (3,)), raised])
    assert [s.value for s in only(explained(path, "x", 0)).seen] == [2, 3]


def test_hostile_names_are_printable(tmp_path: Path) -> None:
    text = "\x1b]0;owned\x07\u202e"
    path = write_tape(
        tmp_path / "a.tape", [{text: ZEROS(n), "d": {text: ZEROS(n), "s": text}} for n in (2, 3)]
    )
    for name in (text, "d"):
        shown = str(explained(path, name))
        assert all(line.isprintable() for line in shown.split("\n"))
    assert explained(path, f"d.{text}").parts


def test_names_that_differ_in_one_number_are_collapsed() -> None:
    names = ["x[0]", "c.layers.0.keys[2]", "c.layers.11.keys[2]", "c.layers.0.values[2]"]
    assert collapsed(names) == [
        "x[0]", "c.layers.*.keys[2] (2 of them)", "c.layers.0.values[2]"
    ]  # fmt: skip
