"""What notebooks show: short, escaped, bounded, without a script, and never an exception."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    check,
    diagnose,
    diff,
    export,
    open_tape,
    private_data,
    recordings,
    replay,
    survey,
)
from calltape_analyzer.differences import Change, TapeDifference
from calltape_analyzer.plain_data import Shown, Sketch
from calltape_analyzer.progress import NotebookLine, reporter_of, watched
from calltape_analyzer.redacting.private_data import PrivateData
from calltape_analyzer.tape import Tape
from tests.analyzer.tapes import Recorded, write_tape
from tests.analyzer.traffic import Llm, record
from tests.hostile_names import HIDDEN, hostile_tape

TAGS = {"div", "strong", "table", "tbody", "thead", "tr", "th", "td", "wbr"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def tape(runs: Path) -> Iterator[Tape]:
    with open_tape(runs / "llm.tape") as opened:
        yield opened


def html(shown: Any) -> str:
    found: str | None = shown._repr_html_()
    assert found is not None
    assert len(found) < 40_000
    tags = re.findall(r"<[^>]*>", found)  # all text is escaped, so that each < begins a tag
    assert {re.sub("[</>]", "", tag) for tag in tags} <= TAGS
    assert found.isprintable()
    return found


def test_a_tape_and_its_results_are_shown_in_a_notebook(tape: Tape) -> None:
    assert "120 of 120 that were seen" in html(tape)
    assert "float32" in html(next(c for c in tape.calls if c.number == 1))
    raised = next(call for call in tape.calls if call.error is not None)
    assert "&lt;b&gt;tokens&lt;/b&gt;" in html(raised)
    variant = tape.variants()[0]
    assert "batch_size" in html(variant)
    assert html(variant) in html(tape.variants())
    assert "batch_size" in html(variant.findings)
    assert "SymbolFinding" in html(variant.findings.symbols[0])
    assert "<strong>Explanation of batch_size</strong>" in html(tape.explain("batch_size"))
    assert "Explanation of input_ids[1]" in html(tape.explain("input_ids", 1))


def test_an_explanation_keeps_its_indentation(tape: Tape) -> None:
    found = tape.explain("batch_size")
    first, second, third = list(found.parts[0].lines())[:3]
    assert [len(line) - len(line.lstrip()) for line in (first, second, third)] == [0, 2, 4]
    shown = html(found)
    assert f"<div>{first}</div><div>&nbsp;&nbsp;{second.strip()}</div>" in shown
    assert f"<div>&nbsp;&nbsp;&nbsp;&nbsp;{third.strip()[:20]}" in shown


def test_recordings_are_a_table_in_a_notebook(runs: Path) -> None:
    shown = html(recordings(runs))
    assert "Llm.forward" in shown
    assert "<th>host</th>" in shown
    assert "damage" not in shown


def test_what_is_empty_is_left_out(tmp_path: Path) -> None:
    write_tape(tmp_path / "t.tape", [Recorded((torch.zeros(1, 2),))] * 2)
    with open_tape(tmp_path / "t.tape") as tape:
        assert "constants" not in html(tape.variants()[0])
        assert "<th>call</th>" not in html(private_data(tape))
    shown = html(Table(rows=[("", "a"), (None, "b")]))
    assert "<thead><tr><th>second</th></tr></thead>" in shown
    assert "<tr><td>a</td></tr><tr><td>b</td></tr>" in shown


def test_a_long_name_may_break() -> None:
    shown = html(Table(rows=[("<" * 150, "b")]))
    assert shown.count("<wbr>") == 2
    assert shown.replace("<wbr>", "").count("&lt;" * 150) == 1


class Table(Shown):
    """Rows of two cells."""

    def __init__(self, rows: list[tuple[object, object]]) -> None:
        self._rows = rows

    def _sketch(self) -> Sketch:
        return Sketch("Table", head=("first", "second"), rows=self._rows)


def test_reports_and_programs(runs: Path) -> None:
    with open_tape(runs / "inner.tape") as tape:
        model = Llm().inner
        report = replay(tape, model)
        assert report.summary in html(report)
        wrong = replay(tape, lambda hidden: hidden[:1, :1])
        assert "fail" in html(wrong)
        assert "and " in html(wrong)  # of many calls some are shown
        programs = export(tape.only(calls="0..9"), model)
        assert "Torch" in html(programs)
        found = check(tape, programs)
        assert found.summary in html(found)


def test_a_survey_is_shown_in_a_notebook(runs: Path, tmp_path: Path) -> None:
    surveyed = survey([str(runs / "llm.tape"), str(runs / "inner.tape")], processes=1)
    assert "Llm.forward</td><td>1</td><td>120" in html(surveyed)
    surveyed.write(tmp_path / "s.tape", target="Llm")
    with open_tape(tmp_path / "s.tape") as tape:
        assert "120 of 120" in html(tape)


def test_nothing_is_scanned_for_it(tmp_path: Path) -> None:
    calls = [Recorded((torch.zeros(1, 2 + n % 7),)) for n in range(300)]
    write_tape(tmp_path / "t.tape", calls, target=lambda x: x, values="none")
    with open_tape(tmp_path / "t.tape") as tape:
        html(tape)
        html(tape.variants()[0])
        assert tape.source == "end"


def test_a_difference_shows_its_changes(tmp_path: Path) -> None:
    short = [Recorded((torch.zeros(2, 2 + n),), {"<b>": 1}) for n in range(3)]
    long = [Recorded((torch.zeros(2, 20 + n, 1),), {f"k{n}": 1}) for n in range(30)]
    write_tape(tmp_path / "a.tape", short)
    write_tape(tmp_path / "b.tape", long)
    with open_tape(tmp_path / "a.tape") as a, open_tape(tmp_path / "b.tape") as b:
        difference = diff(a, b)
        shown = html(difference)
        assert "the traffic on both is the same" in html(diff(a, a))
        assert repr(diff(a, a)) == "<TapeDifference: the traffic on both is the same>"
    assert "&lt;b&gt;" in html(diff_of(difference.disappeared))
    first = difference.appeared[0]
    assert f"<td>+</td><td>{first.kind}</td><td>{first.where}</td>" in shown
    more = len(difference.appeared) + len(difference.disappeared) - 20
    assert f"and {more} more" in shown
    assert "of Change" not in shown
    assert "same" not in repr(difference)


def diff_of(disappeared: tuple[Change, ...]) -> TapeDifference:
    return TapeDifference(a=(), b=(), appeared=(), disappeared=disappeared)


def test_private_data_shows_its_findings(tmp_path: Path) -> None:
    calls = [Recorded((torch.zeros(1, 2),), {"prompt": "a <b> word"}) for _ in range(3)]
    write_tape(tmp_path / "t.tape", calls)
    with open_tape(tmp_path / "t.tape") as tape:
        private = private_data(tape)
        by_call = private_data(tape, by_call=True)
    assert "<td>text</td><td>prompt</td><td>3</td>" in html(private)
    assert "PrivateFinding" not in html(private)
    assert "never on a tape" in html(private)
    assert f"<td>{by_call.findings[0].call}</td>" in html(by_call)
    assert "and 40 more" in html(PrivateData(calls=3, findings=by_call.findings[:5], more=40))
    assert repr(private) == f"<PrivateData of 3 calls: {len(private.findings)} findings>"


def test_a_diagnosis_shows_its_symptoms(tmp_path: Path) -> None:
    write_tape(tmp_path / "t.tape", [Recorded((torch.zeros(1, 2),), {"prompt": "a word"})])
    with open_tape(tmp_path / "t.tape") as tape:
        diagnosed = diagnose(tape)
    assert f"<td>symptoms</td><td>{escape(str(diagnosed.symptoms[0]))}</td>" in html(diagnosed)


def test_names_stay_text(tmp_path: Path) -> None:
    with open_tape(hostile_tape(tmp_path / "<script>.tape")) as tape:
        for shown in (tape, tape[0], tape.variants()[0]):
            assert not set(HIDDEN) & set(html(shown))


def test_a_repr_is_one_short_line(runs: Path, tmp_path: Path) -> None:
    with open_tape(runs / "llm.tape") as tape:
        variant = tape.variants()[0]
        shown = (tape, tape[0], variant, variant.findings)
        shown += (tape.explain("input_ids"), diff(tape, tape), private_data(tape))
        for one in (*shown, survey([runs / "llm.tape"])):
            assert len(repr(one)) < 250
            assert len(repr(one).splitlines()) == 1
    with open_tape(hostile_tape(tmp_path / "h.tape")) as tape:
        assert repr(tape.variants()[0].findings).isprintable()


def test_a_closed_tape_shows_its_repr(runs: Path) -> None:
    tape = open_tape(runs / "llm.tape")
    call = tape.calls[0]
    tape.close()
    assert call._repr_html_() is None


def test_what_a_notebook_shows_is_bounded_and_raises_nothing() -> None:
    class Broken(Shown):
        def _sketch(self) -> Sketch:
            raise RuntimeError

    class Large(Shown):
        def _sketch(self) -> Sketch:
            rows = [("x" * 1000, 1 << 5000, *range(100))] * 1000
            return Sketch("t" * 10_000, [("f", "y" * 10_000)] * 100, head=["h"] * 100, rows=rows)

    assert Broken()._repr_html_() is None
    assert "and 980 more" in html(Large())


def test_progress_in_a_notebook_is_one_display_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            shown.append(html)

    def display(html: str, display_id: bool) -> Handle:
        shown.append(html)
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(
        get_ipython=lambda: shell, display=types.SimpleNamespace(HTML=str, display=display)
    )
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    monkeypatch.setattr("calltape_analyzer.progress.EVERY_SECONDS", 0.0)
    assert list(watched([1, 2, 3], True)) == [1, 2, 3]
    assert len(shown) == 4
    assert 'value="1" max="3"' in shown[1]
    assert "3 of 3" in shown[-1]
    reporter = reporter_of(True)
    assert isinstance(reporter, NotebookLine)
    reporter("tracing <b>x</b>")
    assert "tracing &lt;b&gt;x" in shown[-1]
    ipython.display.display = None
    NotebookLine()("a front end that is gone")


def test_progress_tells_of_tracing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_tape(runs / "inner.tape") as tape:
        export(tape.only(calls="0..3"), Llm().inner, progress=True)
    assert "tracing" in capsys.readouterr().err
