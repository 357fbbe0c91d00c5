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


def test_the_oldest_and_the_newest_of_each_promise_are_tried() -> None:
    promises = promised()
    tried = {(case.python, case.torch, case.what) for case in CASES}
    oldest, newest = promises.pythons[0], promises.pythons[-1]
    assert {python for python, _, _ in tried} >= {oldest, newest}
    assert (oldest, promises.torch, "recording, reading") in tried
    assert (oldest, promises.torch_of_exports, "recording, reading, exports") in tried
    assert (oldest, promises.torch_of_exports, "pages") in tried
    assert (newest, "newest", "recording, reading, exports, pages") in tried


@pytest.mark.parametrize("path", [path for part in PARTS.values() for path in part])
def test_what_is_run_is_there(path: str) -> None:
    assert (ROOT / path).exists()
