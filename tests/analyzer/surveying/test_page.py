"""docs/surveys.md has the numbers of the code, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calltape_schema import bounds

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "surveys.md").read_text(encoding="utf-8")


def test_its_numbers_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    assert f"keeps at most {bounds.MAX_ROWS:,} distinct inputs" in text
    assert f"names at most {bounds.MAX_SOURCES:,} recordings" in text


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)[^)]*\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    assert (DOCS / target).exists()
