"""Plain numbers that may be data are told, and replaced where no size has to do with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape, private_data, redact
from calltape_analyzer.redacting import keyed_redaction
from calltape_recorder import First, record
from calltape_schema.packing import pack
from calltape_schema.privacy import is_setting
from tests.analyzer.redacting.answers import answers, differing, programs_of, replaced_numbers
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
        for one in calls:
            model(**{"x": torch.ones(2, 3), **one})
    return path


def redacted(source: Path, **options: Any) -> tuple[list[dict[str, Any]], str]:
    """The arguments on the new tape, and what the report notes. The answers were compared."""
    result = source.with_name("redacted.tape")
    with open_tape(source) as tape:
        report = redact(tape, result, overwrite=True, **options)
    with open_tape(source) as old, open_tape(result) as new:
        notes = "\n".join(report.notes)
        told = re.findall("the numbers? at (.*?) may be data and are others", notes)
        # Also one that became itself by chance.
        replaced = replaced_numbers(old, new).union(*(names.split(", ") for names in told))
        programs = programs_of(old)
        before, after = (answers(tape, programs, replaced) for tape in (old, new))
        if "shapes_only" not in options and "are not on the new tape" not in notes:
            assert differing(before, after) == []
        return [call.inputs.kwargs for call in new], notes


def gone(number: float, source: Path) -> bool:
    """Whether no byte of the new tape tells a number that the old one has."""
    before, after = (
        readable(path.read_bytes()) for path in (source, source.with_name("redacted.tape"))
    )  # fmt: skip
    assert pack(number) in before
    return pack(number) not in after and str(number).encode() not in after


def test_numbers_that_look_like_settings() -> None:
    settings = (0, -1, 7, 1024, -1024, 0.5, 1e-5, -1e9, 1e30, 0.1234, float("nan"), float("inf"))
    data = (1025, -1025, CUSTOMER, 0.12345, 52.520008, 987654321987.0)
    assert [one for one in settings if not is_setting(one)] == []
    assert [one for one in data if is_setting(one)] == []


def test_they_are_listed(tmp_path: Path) -> None:
    calls = [
        {"customer": CUSTOMER, "n": 5, "scale": 0.5, "at": (52.520008, 1), "z": complex(1, 13.4051),
         "many": [4041] * 9}
    ]  # fmt: skip
    source = recorded(tmp_path / "a.tape", calls)
    with open_tape(source) as tape:
        found = private_data(tape)
    numbers = [one.place for one in found.findings if one.kind == "number"]
    assert numbers == ["customer", "at.0", "z", "outputs.again"]
    assert "a number that may be data at customer (1 call)" in str(found)
    assert "987" not in str(found)
    assert [one.place for one in found.findings if one.kind == "long_list"] == ["many"]


def test_a_constant_and_a_varying_number_become_others(tmp_path: Path) -> None:
    calls = [
        {"x": torch.ones(rows, 3), "customer": CUSTOMER + rows * rows * 7, "phone": PHONE,
         "at": 52.520008, "n": rows, "scale": 0.5}
        for rows in (2, 3, 5, 9)
    ]  # fmt: skip
    source = recorded(tmp_path / "a.tape", calls)
    made, notes = redacted(source)
    for old, new in zip(calls, made, strict=True):
        assert (new["n"], new["scale"]) == (old["n"], 0.5)
        assert new["customer"] != old["customer"]
        assert new["customer"].bit_length() == old["customer"].bit_length()
        assert gone(old["customer"], source)
        assert "again" not in new
    assert len({one["customer"] for one in made}) == 4
    assert {one["phone"] for one in made} != {PHONE}
    assert gone(PHONE, source)
    assert gone(52.520008, source)
    assert "the numbers at at, customer, phone may be data and are others now" in notes
    assert "stay" not in notes


def test_equal_numbers_stay_equal(tmp_path: Path) -> None:
    calls = [{"customer": CUSTOMER + n, "owner": CUSTOMER + n} for n in (0, 31, 77)]
    made, _ = redacted(recorded(tmp_path / "a.tape", calls))
    assert all(one["customer"] == one["owner"] for one in made)


def test_sizes_and_what_follows_from_them_stay(tmp_path: Path) -> None:
    calls = [
        {"x": torch.ones(rows, 3), "n": rows, "total": 3 * rows + 1, "customer": CUSTOMER + rows**3}
        for rows in (1500, 1700, 2100)
    ]
    source = recorded(tmp_path / "a.tape", calls)
    made, notes = redacted(source)
    assert [(one["n"], one["total"]) for one in made] == [(1500, 4501), (1700, 5101), (2100, 6301)]
    assert "the numbers at customer may be data and are others now" in notes
    assert "the numbers at n, total may be data and stay" in notes
    made, notes = redacted(source, shapes_only=["n", "total"])
    assert {type(one["n"]).__name__ for one in made} == {"Placeholder"}
    assert "stay" not in notes


def test_a_number_that_equals_its_default_is_code(tmp_path: Path) -> None:
    calls = [{"limit": 4096, "customer": CUSTOMER}, {"limit": 4096, "customer": CUSTOMER}]
    made, notes = redacted(recorded(tmp_path / "a.tape", calls))
    assert {one["limit"] for one in made} == {4096}
    assert "limit" not in notes


def test_no_number_becomes_a_default(tmp_path: Path) -> None:
    """There are few numbers of as many bits."""
    calls: Calls = [{"customer": CUSTOMER, "n": n, "limit": n} for n in range(4094, 4098)]
    for _ in range(4):
        made, _ = redacted(recorded(tmp_path / "a.tape", calls, overwrite=True))
        assert [one["limit"] == 4096 for one in made] == [False, False, True, False]


@pytest.mark.parametrize("way", ["keep", "shapes_only"])
def test_who_asks_decides(tmp_path: Path, way: str) -> None:
    calls: Calls = [{"customer": CUSTOMER, "phone": PHONE}, {"customer": 3, "phone": PHONE}]
    source = recorded(tmp_path / "a.tape", calls)
    made, _ = redacted(source, **{way: "phone"})
    assert made[0]["customer"] != CUSTOMER
    assert (made[0]["phone"] == PHONE) is (way == "keep")
    assert gone(PHONE, source) is (way != "keep")


def test_a_pattern_with_wildcards_is_not_about_small_numbers(tmp_path: Path) -> None:
    calls: Calls = [
        {"x": torch.ones(n, 3), "n": n, "scale": 0.5, "customer": CUSTOMER} for n in (2, 3, 9)
    ]
    source = recorded(tmp_path / "a.tape", calls)
    made, _ = redacted(source, shapes_only="*")
    assert [(one["n"], one["scale"]) for one in made] == [(2, 0.5), (3, 0.5), (9, 0.5)]
    assert gone(CUSTOMER, source)
    made, _ = redacted(source, shapes_only="n")
    assert {type(one["n"]).__name__ for one in made} == {"Placeholder"}


def test_no_pseudonym_stays_where_only_shapes_do(tmp_path: Path) -> None:
    source = recorded(tmp_path / "a.tape", [{"customer": CUSTOMER, "n": 7}])
    made, _ = redacted(source, shapes_only="*")
    assert type(made[0]["customer"]).__name__ == "Placeholder"
    assert made[0]["n"] == 7
    assert gone(CUSTOMER, source)


def test_numbers_of_calls_that_are_not_on_the_tape(tmp_path: Path) -> None:
    """Counters have them: of a number that varies, and of one that is constant on the tape."""
    calls = [
        {"x": torch.ones(2 + n % 3, 3), "customer": 12 + n * n % 3 + n // 3 * CUSTOMER,
         "phone": PHONE + n // 10, "n": n % 4}
        for n in range(40)
    ]  # fmt: skip
    source = recorded(tmp_path / "a.tape", calls, keep=First(3))
    made, notes = redacted(source)
    assert "customer, phone" in notes
    assert "stay" not in notes
    assert gone(PHONE, source)
    assert gone(PHONE + 3, source)
    assert gone(CUSTOMER * 13 + 12, source)
    assert {one["customer"].bit_length() for one in made} == {4}


def test_numbers_that_follow_from_other_ints_go(tmp_path: Path) -> None:
    """Customers are often numbered one after the other, and calls are too."""
    calls = [
        {"x": torch.ones(rows, 3), "customer": CUSTOMER + 7 * i, "order": PHONE + i, "turn": i}
        for i, rows in enumerate((2, 9, 4, 7, 3))
    ]
    source = recorded(tmp_path / "a.tape", calls)
    made, notes = redacted(source)
    assert [one["turn"] for one in made] == [0, 1, 2, 3, 4]
    for name in ("customer", "order"):
        assert {type(one.get(name)).__name__ for one in made} == {"Placeholder"}
        assert all(gone(one[name], source) for one in calls)
    assert "the numbers at customer, order may be data and are not on the new tape" in notes
    made, notes = redacted(source, keep=["customer", "order"])
    assert [one["order"] for one in made] == [one["order"] for one in calls]
    assert "may be data" not in notes


def test_a_pattern_takes_long_numbers_out_too(tmp_path: Path) -> None:
    """Also where a size has to do with them: the size stays."""
    calls = [
        {"x": torch.ones(rows, 3), "n": rows, "limit": 9000 + rows, "scale": 0.5}
        for rows in (1500, 1700, 2100)
    ]
    source = recorded(tmp_path / "a.tape", calls)
    made, notes = redacted(source, shapes_only="*")
    assert all(type(one[name]).__name__ == "Placeholder" for one in made for name in ("n", "limit"))
    assert [one["scale"] for one in made] == [0.5] * 3
    assert "may be data" not in notes


def test_numbers_that_the_analysis_needs_for_another_reason_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = recorded(tmp_path / "a.tape", [{"customer": CUSTOMER, "n": 7}])
    asked: list[bool] = []

    class Needy(keyed_redaction.KeyedRedaction):
        def prove(self, path: str, *, has_calls: bool) -> list[str]:
            asked.append(bool(self._asked.numbers.replaced))
            if asked[-1]:
                raise keyed_redaction.DifferentAnswerError("no", (len(asked),), advice="none")
            return super().prove(path, has_calls=has_calls)

    monkeypatch.setattr("calltape_analyzer.redacting.redaction.KeyedRedaction", Needy)
    made, notes = redacted(source)
    assert asked == [True] * 6 + [False]
    assert made[0]["customer"] == CUSTOMER
    assert "the numbers at customer may be data and stay" in notes
