"""What Markdown is made of: nothing breaks out of it, it is bounded, and it says what was cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer.markdown import LIMIT, Document, cell, span

NASTY = [
    "a`b", "``` \nx", "a|b", "\\|", "x\ny | z", "</details>", "<!-- ", "<script>alert(1)</script>",
    "\x1b[31mred\x07", "\u202eabc", "@octocat", "#1", "[x](http://evil)", "![](http://evil)",
    "`" * 500, "|" * 300, "a" * 10_000, "\r\n| - |", " ` ", "`", "\ud800",
]  # fmt: skip


def code_of(text: str) -> str:
    """The content of a text that is one code span, as CommonMark reads it."""
    found = re.fullmatch(r"(`+)(?!`)(.*)(?<!`)\1", text, re.DOTALL)
    assert found is not None, text
    assert found[1] not in re.findall("`+", found[2])
    inner = found[2]
    is_padded = inner[0] == inner[-1] == " " and inner.strip()
    return inner[1:-1] if is_padded else inner


@pytest.mark.parametrize("text", NASTY)
def test_a_cell_is_one_span(text: str) -> None:
    shown = cell(text)
    assert shown.isprintable()
    assert "|" not in shown
    assert len(shown) < 1400
    code_of(shown)


@given(st.text())
def test_any_text_is_one_span(text: str) -> None:
    shown = span(text)
    assert shown.isprintable()
    assert shown == "-" or code_of(shown)


def test_rows_that_do_not_fit_are_counted() -> None:
    document = Document("Title", limit=10_000)
    document.table("calls that fail", ("call", "why"), [(str(i), "w" * 90) for i in range(1000)])
    document.heading("p" * 9000)
    text = document.text()
    assert len(text) <= 10_000
    shown = sum(line.startswith("| `") for line in text.split("\n"))
    assert 50 < shown < 1000
    assert f"{1000 - shown} of 1,000 calls that fail" in text
    assert "a heading" in text


@given(st.lists(st.text(min_size=1, max_size=300), max_size=80), st.integers(5_000, 9_000))
def test_a_document_stays_within_its_limit(texts: list[str], limit: int) -> None:
    document = Document("Title", limit=limit)
    for text in texts:
        document.table("rows", ("a", "b"), [(text * 9, text)] * 9)
    assert len(document.text()) <= limit <= LIMIT
