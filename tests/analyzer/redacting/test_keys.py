"""Keys that look like data become ordinals, and the analysis says the same of the tape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calltape_analyzer import Variant, open_tape, redact
from calltape_recorder import record
from tests.analyzer.redacting.answers import assert_same
from tests.unpacked import readable


class Model(torch.nn.Module):
    def forward(self, ids: Any, **more: Any) -> Any:
        return ids


def recorded(path: Path, *calls: dict[str, Any]) -> Path:
    model = Model()
    with record(model, path):
        for call in calls:
            model(**call)
    return path


def redacted(source: Path, **options: Any) -> list[dict[str, Any]]:
    """The arguments on the new tape, of which the analysis says the same."""
    result = source.with_name("redacted.tape")
    with open_tape(source) as tape:
        redact(tape, result, **options)
    assert_same(source, result)
    with open_tape(result) as tape:
        return [call.inputs.kwargs for call in tape]


def test_equal_keys_stay_equal_and_names_stay(tmp_path: Path) -> None:
    x = torch.ones
    source = recorded(
        tmp_path / "a.tape",
        {"ids": x(2), "users": {"bob@example.com": x(2), "image": x(3), 4_915_112: x(4)}},
        {"ids": x(3), "users": {b"4915112": x(4), "bob@example.com": x(3), "image": x(3)}},
        {"ids": x(3), "more": {(4_915_112, "image", 3): x(4), 0.123456: x(3), None: x(3)}},
    )
    first, second, third = redacted(source)
    assert list(first["users"]) == ["(1)", "image", "(2)"]
    assert list(second["users"]) == ["(3)", "(1)", "image"]
    assert list(third["more"]) == [("(2)", "image", 3), "(4)", None]
    data = readable((tmp_path / "redacted.tape").read_bytes())
    assert not [one for one in (b"bob", b"4915112", b"\x4a\xff\x88") if one in data]


def test_a_size_that_is_also_a_key_is_kept(tmp_path: Path) -> None:
    calls = [{"ids": torch.ones(5000), "table": {5000: torch.ones(rows)}} for rows in (3, 4, 5)]
    with open_tape(recorded(tmp_path / "a.tape", *calls)) as tape:
        redact(tape, tmp_path / "b.tape")
        before = [one.findings.symbols for one in tape.variants()]
    with open_tape(tmp_path / "b.tape") as tape:
        after = [one.findings.symbols for one in tape.variants()]
    assert [[one.min, one.max] for one in after[0]] == [[one.min, one.max] for one in before[0]]


def test_a_row_is_omitted_where_only_another_path_is_kept(tmp_path: Path) -> None:
    """It is on the new tape, because somebody wants it there."""
    ids = torch.tensor([[700, 30_000, 412, 5]])
    source = recorded(
        tmp_path / "a.tape",
        {"ids": ids, "labels": ids.clone(), "text": "a long text", "title": "a long text, once"},
    )
    redacted(source, keep=["ids", "title"])
    assert (tmp_path / "redacted.tape").read_bytes().count(ids.numpy().tobytes()) == 1


def test_names_of_arguments_that_are_no_identifiers(tmp_path: Path) -> None:
    """They are keys of a dict for Python (``f(**{"my name": 1})``)."""
    names = ("my name", "\x1b[31mred", "new\nline", "[bold]", "漢字😀", "a.b", "x=1", "")
    values = {name: torch.zeros(2) if name < "b" else 3 for name in names}
    calls = ({"ids": torch.zeros(2 + rows, 8), **values} for rows in range(3))
    source = recorded(tmp_path / "a.tape", *calls)
    made = redacted(source)
    data = (tmp_path / "redacted.tape").read_bytes()
    assert not [name for name in names if len(name) > 4 and name.encode() in data]
    assert {len(one) for one in made} == {1 + len(names)}


@pytest.mark.parametrize("key", ["my name", "1", 4041, "a.b c", "présent"])
def test_symbols_and_variants_named_after_keys_keep_their_shapes(
    key: str | int, tmp_path: Path
) -> None:
    """A size that varies by itself is a symbol, and a key that not all calls have is a variant:
    both have names that are made of the key."""
    calls: list[dict[str, Any]] = [
        {"ids": torch.zeros(2, 3 + 2 * number), "meta": {key: torch.zeros(9 - number**2 % 5)}}
        for number in range(4)
    ]
    calls.append({"ids": torch.zeros(2, 1), "meta": {}})
    if isinstance(key, str):
        calls.append({"ids": torch.zeros(2, 1), key: torch.zeros(4)})
        calls.append({"ids": torch.zeros(2, 6), key: torch.zeros(1)})
    source, result = recorded(tmp_path / "a.tape", *calls), tmp_path / "b.tape"
    with open_tape(source) as tape:
        redact(tape, result)
        before = {
            variant.findings.first_call: numbered_shapes(variant) for variant in tape.variants()
        }
    with open_tape(result) as tape:
        after = {
            variant.findings.first_call: numbered_shapes(variant) for variant in tape.variants()
        }
    assert after == before


def numbered_shapes(variant: Variant) -> list[list[Any]]:
    """The shapes of a variant, with symbols by their number."""
    numbers: dict[str, int] = {}
    return [
        [
            axis if isinstance(axis, int) else f"<{numbers.setdefault(str(axis), len(numbers))}>"
            for axis in tensor.shape
        ]
        for tensor in variant.findings.tensors
    ]


# A dot may be one between the parts of a path.
KEYS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1, max_size=4)
    | st.integers(),
    min_size=1, max_size=3, unique_by=str,
)  # fmt: skip
SIZES = st.lists(st.integers(1, 9), min_size=6, max_size=6)


@settings(max_examples=15)
@given(KEYS, st.lists(SIZES, min_size=1, max_size=5))
def test_redaction_of_any_keys_keeps_variants_and_symbols(
    tmp_path_factory: pytest.TempPathFactory, keys: list[Any], sizes: list[list[int]]
) -> None:
    calls = []
    for rows, columns, *others in sizes:
        tensors = {k: torch.zeros(n) for k, n in zip(keys, others, strict=False) if n != 9}
        calls.append({"ids": torch.zeros(rows, columns), "meta": tensors})
    source = recorded(tmp_path_factory.mktemp("keys") / "a.tape", *calls)
    result = source.with_name("b.tape")
    with open_tape(source) as tape:
        redact(tape, result)
        before = [len(one.findings.symbols) for one in tape.variants()]
        calls_of = [one.findings.calls for one in tape.variants()]
    with open_tape(result) as tape:
        found = list(tape.variants())
    assert sorted(before) == sorted(len(one.findings.symbols) for one in found)
    assert sorted(calls_of) == sorted(one.findings.calls for one in found)


class Traffic(torch.nn.Module):
    def forward(
        self, x: Any = None, mask: Any = None, ids: Any = None, meta: Any = None, prompt: str = "",
        account: int = 0,
    ) -> Any:  # fmt: skip
        return x


def of_traffic(path: Path, calls: list[dict[str, Any]]) -> Path:
    model = Traffic()
    with record(model, path):
        for call in calls:
            model(**call)
    return path


def test_numbers_at_keys_that_are_data_do_not_stay(tmp_path: Path) -> None:
    calls = [
        {
            "x": torch.ones(3 + i), "account": account, "meta": {f"alice {i}": 123_456 + i},
            "ids": [4000 + j * 37 + i * 13 for j in range(5 + i)],
        }
        for i, account in enumerate((4_915_112_345_678, 4_916_098_761_234))
    ]  # fmt: skip
    source, result = of_traffic(tmp_path / "a.tape", calls), tmp_path / "b.tape"
    with open_tape(source) as tape:
        notes = redact(tape, result).notes
    (note,) = (one for one in notes if "may be data" in one)
    assert note.startswith("the numbers at account, ids.0, ids.1, ids.2, ids.3, ids.4, ids.5, meta")
    with open_tape(result) as tape:
        assert [call.record.inputs.scalars for call in tape] == [(), ()]


@pytest.mark.parametrize("what", ["texts", "masks"])
def test_several_recordings_become_one(what: str, tmp_path: Path) -> None:
    """Their calls have other numbers and another order then."""
    x = torch.ones
    calls: dict[str, list[list[dict[str, Any]]]] = {
        "texts": [[{"x": x(3 + i), "prompt": f"user {i}"} for i in range(3)]] * 2,
        "masks": [
            [{"x": x(3 + i), "mask": x(3 + i)} for i in range(3)],
            [{"x": x(2 + i)} for i in range(3)],
        ],
    }
    paths = [of_traffic(tmp_path / f"{n}.tape", one) for n, one in enumerate(calls[what])]
    with open_tape(paths) as tape:
        assert redact(tape, tmp_path / "b.tape").calls == 6
