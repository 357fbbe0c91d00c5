"""What an analysis returns is immutable data, whose JSON is valid whatever a tape holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from calltape_analyzer import diff, open_tape
from calltape_analyzer.plain_data import PlainData, json_text, plain
from tests.analyzer.tapes import write_tape


class Sample(PlainData):
    value: Any
    name: str = "x"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        ((1, [2]), [1, [2]]),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (b"\xff", "b'\\xff'"),
        ((1 << 64) - 1, (1 << 64) - 1),
        (-(1 << 64), f"-{1 << 64}"),
        (1 << 8191, str(1 << 8191)),
        (1 << 8192, "an int of 8193 bits"),
        pytest.param(10**5000, "an int of 16610 bits", id="wide"),
        ("\ud800", "\\ud800"),
        ({"\ud800": ("\udfff", "é😀")}, {"\\ud800": ["\\udfff", "é😀"]}),
        ("a" * 4097, "a" * 4096 + "…"),
        ({b"k": 1, float("nan"): 2, 3: 4}, {"b'k'": 1, "nan": 2, 3: 4}),
    ],
)
def test_every_value_has_a_form_in_json(value: Any, shown: Any) -> None:
    assert plain(value) == shown
    text = Sample(value=value).model_dump_json()
    assert text.isascii()
    assert json.loads(text) == {"value": json.loads(json.dumps(shown)), "name": "x"}


def test_json_has_the_form_of_pydantic() -> None:
    made = Sample(value=[1, {"a": None}])
    assert made.model_dump_json() == '{"value":[1,{"a":null}],"name":"x"}'
    assert made.model_dump_json(exclude={"value"}, indent=2) == '{\n  "name": "x"\n}'
    assert json_text([made.model_dump()]) == f"[{made.model_dump_json()}]"


def test_plain_data_is_immutable_and_equal_by_value() -> None:
    made = Sample(value=1)
    assert (made, hash(made)) == (Sample(value=1), hash(Sample(value=1)))
    assert made != Sample(value=2)
    with pytest.raises(ValidationError):
        made.value = 2


def test_results_with_awkward_values_survive_json(tmp_path: Path) -> None:
    given = {
        "b": b"\xff",
        "f": float("nan"),
        "n": 1 << 80,
        "w": 1 << 8190,
        "s": "\ud800",
        "\ud801": "t",
    }
    paths = [
        write_tape(tmp_path / name, [call])
        for name, call in (("a.tape", given), ("b.tape", {**given, "s": "\udfff"}))
    ]
    with open_tape(paths[0]) as tape, open_tape(paths[1]) as other:
        (variant,) = tape.variants()
        every = [
            variant.findings,
            diff(tape, other),
            *(tape.explain(name) for name in given),
        ]
        for found in every:
            text = found.model_dump_json()
            assert json.loads(text)
            # The parser of pydantic takes no lone surrogate.
            assert type(found).model_validate_json(text).model_dump_json() == text


def test_a_key_is_the_same_after_it_was_read_back() -> None:
    first = plain({(None, b"\x00", (1.5, b"a")): 1})
    again = plain({(None, "b'\\x00'", (1.5, "b'a'")): 1})
    assert first == again
