"""docs/versions.md: it promises what installers are told, and was written by the command."""

from __future__ import annotations

import pytest

from tests.versions.__main__ import CASES, PARTS, ROOT
from tests.versions.promises import PAGE, promised


def test_the_page_promises_what_installers_are_told() -> None:
    assert promised().as_text() in PAGE.read_text()


def test_the_page_has_a_row_for_each_case() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| 3.")]
    assert len(rows) == len(CASES)
    for row, case in zip(rows, CASES, strict=True):
        assert row.startswith(f"| {case.python}")
        assert case.what in row


@pytest.mark.parametrize("path", [path for part in PARTS.values() for path in part])
def test_what_is_run_is_there(path: str) -> None:
    assert (ROOT / path).exists()
