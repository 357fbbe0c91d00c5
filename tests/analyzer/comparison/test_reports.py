"""What came of running recorded calls, as text and as data."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer.comparison.judging import verdict_of_error
from calltape_analyzer.comparison.reports import (
    CallsKind,
    NotVerified,
    Report,
    ReportRow,
    SomeCalls,
)
from calltape_analyzer.facts import Other, OtherNote, fact_document
from calltape_schema.errors import TapeError

FINE = ReportRow(call=0, variant="prefill", max_abs=1e-7, max_rel=1e-6, compared=8)
WORSE = ReportRow(call=1, variant="decode", max_abs=3e-6, max_rel=1e-5, compared=8)
EMPTY = ReportRow(call=2, variant="decode")
SHAPES = ReportRow(call=3, variant="decode", error=NotVerified((), 1), against="shapes")
DIFFERS = "logits: 3 of 8 elements differ by up to 0.5"
WRONG = ReportRow(call=7, variant="decode", max_abs=0.5, max_rel=2.0, error=Other(DIFFERS))
HOMELESS = ReportRow(
    call=9,
    variant=None,
    max_abs=math.inf,
    max_rel=math.inf,
    error=Other("no program accepts these arguments"),
)
NAN = ReportRow(
    call=10,
    variant="decode",
    max_abs=math.nan,
    max_rel=-math.inf,
    error=Other("logits is nan"),
    against="module",
)


@pytest.mark.parametrize(
    ("rows", "ok", "reproduced"),
    [
        ([], False, 0),  # nothing was verified
        ([FINE], True, 1),
        ([FINE, WORSE], True, 2),
        ([FINE, WRONG], False, 1),
        ([HOMELESS], False, 0),
        ([EMPTY], False, 0),  # nothing was compared in any call
        ([EMPTY, FINE], True, 2),
        ([FINE, SHAPES], False, 1),
    ],
)
def test_a_report_is_true_if_every_call_was_reproduced(
    rows: list[ReportRow], ok: bool, reproduced: int
) -> None:
    report = Report(rows=rows)
    assert bool(report) is report.ok is ok
    assert report.reproduced == reproduced
    assert len(report) == len(rows)
    assert [row.call for row in report] == [row.call for row in rows]


def test_the_summary_says_how_many_which_and_how_far() -> None:
    assert Report(rows=[FINE, WORSE, WRONG, HOMELESS]).summary == (
        "2 of 4 recorded calls reproduced (prefill: 1; decode: 1 of 2; no variant: 0 of 1); "
        "largest difference 3.0e-06"
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], "0 of 0 recorded calls reproduced"),
        # What is not reproduced has no difference that means anything.
        (
            [WRONG, HOMELESS],
            "0 of 2 recorded calls reproduced (decode: 0 of 1; no variant: 0 of 1)",
        ),
        (
            [ReportRow(call=0, variant="main", compared=1)],
            "1 of 1 recorded calls reproduced (main: 1); largest difference 0.0e+00",
        ),
        ([EMPTY], "0 of 1 recorded calls reproduced (decode: 0 of 1); no value was compared"),
        (
            [SHAPES],
            "0 of 1 recorded calls reproduced (decode: 0 of 1); no value was compared",
        ),
    ],
)
def test_the_summary_of_few_rows_claims_no_more_than_they_show(
    rows: list[ReportRow], expected: str
) -> None:
    assert Report(rows=rows).summary == expected


def strict(text: str) -> Any:
    """Parses JSON as other languages do: without NaN and Infinity."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


NUMBERS = st.floats() | st.sampled_from([math.inf, -math.inf, math.nan])
ROWS = st.builds(
    ReportRow,
    call=st.integers(0, 99),
    variant=st.none() | st.sampled_from(["main", "decode"]),
    max_abs=NUMBERS,
    max_rel=NUMBERS,
    error=st.none() | st.builds(Other, st.text()),
)


@given(st.lists(ROWS), st.lists(st.text(), max_size=2))
def test_json_is_json_whatever_the_differences_are(rows: list[ReportRow], notes: list[str]) -> None:
    report = Report(rows=rows, notes=list(map(OtherNote, notes)))
    text = report.model_dump_json()
    found = strict(text)
    assert found["ok"] is report.ok
    assert [note["text"] for note in found["notes"]] == notes
    assert [row["call"] for row in found["rows"]] == [row.call for row in rows]
    errors = [row.error and fact_document(row.error) for row in report]
    assert [row["error"] for row in found["rows"]] == errors
    assert found["summary"] == report.summary
    for row, plain in zip(rows, found["rows"], strict=True):
        for name in ("max_abs", "max_rel"):
            # As text or as number, float() reads it back.
            value = getattr(row, name)
            assert float(plain[name]) == value or math.isnan(value)
    assert Report.model_validate_json(text).model_dump_json() == text


def test_a_name_that_utf8_does_not_have_is_escaped() -> None:
    row = ReportRow(call=0, variant="a\ud800b", error=Other("\udfff: other outputs"))
    report = Report(rows=[row], notes=[OtherNote("\udabc")])
    found = strict(report.model_dump_json())
    assert found["rows"][0]["variant"] == "a\\ud800b"
    assert found["rows"][0]["error"]["text"] == "\\udfff: other outputs"
    assert found["notes"][0]["text"] == "\\udabc"


def test_the_table_has_a_line_per_call_and_the_summary() -> None:
    report = Report(rows=[FINE, WRONG, HOMELESS, NAN], notes=[SomeCalls(CallsKind.UNTIMED, 2)])
    lines = report.table(every=True).splitlines()
    assert lines[0].split() == ["call", "variant", "ok", "max", "abs", "max", "rel", "error"]
    assert lines[1].split() == ["0", "prefill", "yes", "1.0e-07", "1.0e-06"]
    assert lines[2].split()[:5] == ["7", "decode", "NO", "5.0e-01", "2.0e+00"]
    assert lines[2].endswith("logits: 3 of 8 elements differ by up to 0.5")
    assert lines[3].split()[:5] == ["9", "-", "NO", "-", "-"]
    assert lines[-2] == "2 calls may take any time: the tape has no duration"
    assert lines[-1] == report.summary
    assert len(lines) == 7
    # Columns stand below each other.
    assert {line.index("NO") for line in lines[2:5]} == {lines[0].index("ok")}
    assert str(report) == report.table()


def test_an_empty_table_is_a_summary() -> None:
    assert Report(rows=[]).table() == Report(rows=[]).summary


def test_a_short_table_has_the_failing_rows_and_counts_the_others() -> None:
    rows = [FINE, WRONG, WORSE, HOMELESS]
    lines = Report(rows=rows, notes=[OtherNote("a note")]).table().splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["call", "7", "9"]
    assert lines[3:] == ["2 other calls are fine", "a note", Report(rows=rows).summary]
    assert Report(rows=[FINE]).table() == Report(rows=[FINE]).summary


def test_a_table_of_many_failures_is_short() -> None:
    rows = [WRONG.model_copy(update={"call": i}) for i in range(1000)]
    report = Report(rows=[FINE, *rows])
    lines = report.table().splitlines()
    assert len(lines) < 60
    assert "950 more calls fail" in lines
    assert "1 other call is fine" in lines
    assert len(report.table(every=True).splitlines()) == 1003


def test_the_repr_begins_with_what_fails() -> None:
    report = Report(rows=[FINE, WRONG, HOMELESS])
    assert repr(report).startswith(f"<Report: call 7: {DIFFERS}; call 9: no program accepts")
    assert repr(report).endswith(f"{report.summary}>")
    many = Report(rows=[WRONG.model_copy(update={"call": i}) for i in range(1000)])
    assert len(repr(many)) < 500
    assert "997 more calls" in repr(many)
    with pytest.raises(AssertionError, match="call 7: logits: 3 of 8 elements differ"):
        assert report, repr(report)


def test_terminals_get_no_control_characters() -> None:
    row = ReportRow(call=0, variant="\x1b[31m", error=Other("\x1b[2J\u202e"))
    report = Report(rows=[row], notes=[OtherNote("\x1b[2J")])
    assert repr(report).isprintable()
    assert all(line.isprintable() for line in report.table(every=True).splitlines())


UNVERIFIED = [
    ("shapes", "agrees in structure, dtypes and shapes; no value was compared"),
    ("part", "agrees in part: the tape does not have all values"),
    ("success", "returned, which is all that was asked"),
]


@pytest.mark.parametrize(("against", "words"), UNVERIFIED)
def test_what_was_not_compared_is_not_reproduced(against: str, words: str) -> None:
    report = Report(rows=[ReportRow(call=0, variant=None, against=against)])
    assert report.ok
    assert report.reproduced == 0
    assert report.summary == f"0 of 1 recorded calls reproduced; 1 call {words}"


def test_an_error_of_several_lines_stays_on_its_row() -> None:
    report = Report(rows=[ReportRow(call=0, variant="main", error=Other("first\nsecond"))])
    assert len(report.table().splitlines()) == 3


def test_what_was_compared_with_the_model_alone_is_said() -> None:
    row = ReportRow(call=0, variant="main", compared=3, against="module")
    assert Report(rows=[row]).summary == (
        "1 of 1 recorded calls reproduced (main: 1); largest difference 0.0e+00; "
        "1 call compared with the model, not with the tape"
    )


@pytest.mark.parametrize(
    ("kind", "is_tested", "is_unreadable"),
    [("damaged", False, True), ("io", False, False), ("not_found", True, False)],
)
def test_damage_of_the_tape_says_nothing_of_the_target(
    kind: Any, is_tested: bool, is_unreadable: bool
) -> None:
    row = ReportRow(call=3, variant=None, **dict(verdict_of_error(TapeError(kind, "no more"))))
    assert (row.is_tested, row.is_unreadable) == (is_tested, is_unreadable)
    assert verdict_of_error(ValueError()).against == "tape"


def test_a_long_error_is_written_once() -> None:
    long = "no program accepts these arguments: " + "why " * 30
    rows = [ReportRow(call=n, variant=None, error=Other(long)) for n in (4, 7, 9)]
    lines = Report(rows=[*rows, HOMELESS, HOMELESS]).table().splitlines()
    assert [line.partition("-        -")[2].strip() for line in lines[1:6]] == [
        long.strip(), "as call 4", "as call 4", str(HOMELESS.error), str(HOMELESS.error)
    ]  # fmt: skip


def test_an_infinite_difference_is_shown_where_values_were_compared() -> None:
    row = HOMELESS.model_copy(update={"compared": 3})
    assert Report(rows=[row]).table().splitlines()[1].split()[3:5] == ["inf", "inf"]
