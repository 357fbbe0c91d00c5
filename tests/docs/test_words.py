"""Pages are short enough to be read, and each is of one subject."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.docs.words import (
    NOT_COUNTED,
    ROOT,
    SUBJECTS,
    TOTAL,
    every_page,
    long_lines,
    pages,
    words_of,
)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_is_short(subject: str) -> None:
    limit, patterns = SUBJECTS[subject]
    counts = {path.name: words_of(path) for path in pages(patterns)}
    assert counts
    assert sum(counts.values()) <= limit, counts


def test_all_pages_are_short() -> None:
    assert sum(words_of(page) for _, own in SUBJECTS.values() for page in pages(own)) <= TOTAL


def test_each_page_is_of_one_subject() -> None:
    known = Counter(page for _, own in SUBJECTS.values() for page in pages(own))
    known.update(pages(NOT_COUNTED))
    assert {page: known[page] for page in every_page() if known[page] != 1} == {}


@pytest.mark.parametrize(
    "page", every_page(), ids=lambda page: page.relative_to(ROOT).as_posix().replace("/", "-")
)
def test_lines_are_short(page: Path) -> None:
    assert long_lines(page) == []


def test_words_are_counted_without_code_and_heads(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        f"# A head\n\n| a | `b c` |\n| --- | --- |\n```sh\nno words\n```\n{'x' * 121}\n"
    )
    assert (words_of(page), long_lines(page)) == (6, [8])
