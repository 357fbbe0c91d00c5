"""Plain numbers that may be data are told, and omitted, unless they are sizes or code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape, private_data, redact
from calltape_recorder import First, record
from calltape_schema.packing import pack
from calltape_schema.privacy import is_setting
from tests.analyzer.redacting.answers import assert_same
from tests.unpacked import readable

Calls = Sequence[dict[str, Any]]
PHONE, CUSTOMER = 49_301_987_654_321, 987_654_321_987


class Model(torch.nn.Module):
    def forward(
        self, x: Any, customer: int = 0, limit: int = 4096, scale: float = 1.0, n: int = 0,
        **more: Any,
    ) -> Any:  # fmt: skip
        return {"again": customer}


def recorded(path: Path, calls: Calls, **options: Any) -> Path:
    model = Model()
    with record(model, path, **options):
        for call in calls:
            model(**{"x": torch.ones(2, 3), **call})
    return path


def redacted(
    source: Path, *, compares: bool = True, **options: Any
) -> tuple[list[dict[str, Any]], str]:
    """The arguments on the new tape, and what the report notes."""
    result = source.with_name("redacted.tape")
    with open_tape(source) as tape:
        report = redact(tape, result, overwrite=True, **options)
    if compares and "shapes_only" not in options:
        assert_same(source, result)
    with open_tape(result) as new:
        return [call.inputs.kwargs for call in new], "\n".join(report.notes)


def is_omitted(value: Any) -> bool:
    return type(value).__name__ == "Placeholder"


def gone(number: float, source: Path) -> bool:
    """Whether no byte of the new tape tells a number that the old one has."""
    before, after = (
        readable(path.read_bytes()) for path in (source, source.with_name("redacted.tape"))
    )  # fmt: skip
    assert pack(number) in before
    return pack(number) not in after and str(number).encode() not in after


def test_settings_are_told_from_data() -> None:
    settings = (0, -1, 7, 1024, -1024, 0.5, 1e-5, -1e9, 1e30, 0.1234, float("nan"), float("inf"))
    data = (1025, -1025, CUSTOMER, 0.12345, 52.520008, 987654321987.0)
    assert [one for one in settings if not is_setting(one)] == []
    assert [one for one in data if is_setting(one)] == []


def test_private_numbers_are_listed_without_their_values(tmp_path: Path) -> None:
    calls = [
        {"customer": CUSTOMER, "n": 5, "scale": 0.5, "at": (52.520008, 1), "z": complex(1, 13.4051),
         "many": [4041] * 9}
    ]  # fmt: skip
    source = recorded(tmp_path / "a.tape", calls)
    with open_tape(source) as tape:
        private = private_data(tape)
    numbers = [finding.place for finding in private.findings if finding.kind == "number"]
    assert numbers == ["customer", "at.0", "z", "outputs.again"]
    assert "a number that may be data at customer (1 call)" in str(private)
    assert "987" not in str(private)
    assert [finding.place for finding in private.findings if finding.kind == "long_list"] == [
        "many"
    ]


def test_a_constant_and_a_varying_number_are_omitted(tmp_path: Path) -> None:
    calls = [
        {"x": torch.ones(rows, 3), "customer": CUSTOMER + rows * rows * 7, "phone": PHONE,
         "at": 52.520008, "n": rows, "scale": 0.5}
        for rows in (2, 3, 5, 9)
    ]  # fmt: skip
    source = recorded(tmp_path / "a.tape", calls)
    made, notes = redacted(source)
    for old, new in zip(calls, made, strict=True):
        assert (new["n"], new["scale"]) == (old["n"], 0.5)
        assert all(is_omitted(new[name]) for name in ("customer", "phone", "at"))
        assert all(gone(old[name], source) for name in ("customer", "phone", "at"))
    assert "the numbers at at, customer, phone may be data and are not on the new tape" in notes
    made, notes = redacted(source, keep=["customer", "phone"])
    assert [(one["customer"], one["phone"]) for one in made] == [
        (one["customer"], PHONE) for one in calls
    ]
    assert "the numbers at at may be data" in notes


def test_a_number_that_is_long_in_one_call_is_omitted_in_all(tmp_path: Path) -> None:
    """Otherwise calls would be of two variants, and tell which customers have short numbers."""
    made, _ = redacted(recorded(tmp_path / "a.tape", [{"customer": 7}, {"customer": CUSTOMER}]))
    assert all(is_omitted(one["customer"]) for one in made)


def test_sizes_stay(tmp_path: Path) -> None:
    """A tape tells the sizes of tensors anyway. What follows from them is omitted."""
    calls = [
        {"x": torch.ones(rows, 3), "n": rows, "total": 3 * rows + 1, "customer": CUSTOMER + rows**3}
        for rows in (1500, 1700, 2100)
    ]
    source = recorded(tmp_path / "a.tape", calls)
    made, notes = redacted(source)
    assert [one["n"] for one in made] == [1500, 1700, 2100]
    assert all(is_omitted(one["total"]) for one in made)
    assert "the numbers at customer, total may be data" in notes
    made, _ = redacted(source, shapes_only=["n"])
    assert all(is_omitted(one["n"]) for one in made)
    made, _ = redacted(source, shapes_only=["*"])
    assert all(is_omitted(one["n"]) for one in made)


def test_a_number_that_is_a_size_in_some_calls_only_is_omitted(tmp_path: Path) -> None:
    calls = [{"x": torch.ones(rows, 3), "n": 1500} for rows in (1500, 1700)]
    made, _ = redacted(recorded(tmp_path / "a.tape", calls))
    assert all(is_omitted(one["n"]) for one in made)


def test_a_number_that_equals_its_default_is_code(tmp_path: Path) -> None:
    calls = [{"limit": 4096, "customer": CUSTOMER}, {"limit": 4096, "customer": CUSTOMER}]
    made, notes = redacted(recorded(tmp_path / "a.tape", calls))
    assert {one["limit"] for one in made} == {4096}
    assert "limit" not in notes


@pytest.mark.parametrize("option", ["keep", "shapes_only"])
def test_who_asks_decides(tmp_path: Path, option: str) -> None:
    calls: Calls = [{"customer": CUSTOMER, "phone": PHONE}, {"customer": 3, "phone": PHONE}]
    source = recorded(tmp_path / "a.tape", calls)
    made, notes = redacted(source, **{option: "phone"})
    assert is_omitted(made[0]["customer"])
    assert (made[0]["phone"] == PHONE) is (option == "keep")
    assert gone(PHONE, source) is (option != "keep")
    assert "the numbers at customer may be data" in notes


def test_a_pattern_with_wildcards_is_not_about_small_numbers(tmp_path: Path) -> None:
    calls: Calls = [
        {"x": torch.ones(n, 3), "n": n, "scale": 0.5, "customer": CUSTOMER} for n in (2, 3, 9)
    ]
    source = recorded(tmp_path / "a.tape", calls)
    made, notes = redacted(source, shapes_only="*")
    assert [(one["n"], one["scale"]) for one in made] == [(2, 0.5), (3, 0.5), (9, 0.5)]
    assert gone(CUSTOMER, source)
    assert "may be data" not in notes
    made, _ = redacted(source, shapes_only="n")
    assert all(is_omitted(one["n"]) for one in made)


def test_numbers_of_calls_that_are_not_on_the_tape(tmp_path: Path) -> None:
    """Counters have them: of a number that varies, and of one that is constant on the tape."""
    calls = [
        {"x": torch.ones(2 + n % 3, 3), "customer": 12 + n * n % 3 + n // 3 * CUSTOMER,
         "phone": PHONE + n // 10, "n": n % 4}
        for n in range(40)
    ]  # fmt: skip
    source = recorded(tmp_path / "a.tape", calls, keep=First(3))
    made, notes = redacted(source, compares=False)  # a filtered tape has no counters
    assert "customer, phone" in notes
    assert gone(PHONE, source)
    assert gone(PHONE + 3, source)
    assert gone(CUSTOMER * 13 + 12, source)
    assert all(is_omitted(one["customer"]) for one in made)


def test_sizes_of_calls_that_are_not_on_the_tape(tmp_path: Path) -> None:
    """They stay, unless they are sizes in the calls of the tape only."""
    calls = [{"x": torch.ones(2000 + n, 3), "n": 2000 + n, "m": 2000 + n % 5} for n in range(9)]
    source = recorded(tmp_path / "a.tape", calls, keep=First(4))
    made, notes = redacted(source, compares=False)
    assert [one["n"] for one in made] == [2000, 2001, 2002, 2003]
    assert all(is_omitted(one["m"]) for one in made)
    assert "the numbers at m may be data" in notes
    with open_tape(source.with_name("redacted.tape")) as tape:
        (found,) = tape.variants()[0].findings.ints
        assert (found.min, found.max) == (2000, 2008)
