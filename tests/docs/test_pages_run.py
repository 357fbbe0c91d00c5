"""What the pages show works: every Python block runs, every command exits with 0 and prints what
stands below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.page import DOCS, Page

# These pages need more than a folder (a repository, a server, tapes, a project with tests). Their
# own tests run them.
ELSEWHERE = {
    "bisecting.md": "tests/docs/test_bug_pages.py",
    "minimising.md": "tests/docs/test_bug_pages.py",
    "production.md": "tests/servers/test_production_page.py",
    "sharing.md": "tests/docs/test_bug_pages.py",
    "testing.md": "tests/docs/test_bug_pages.py",
}
PAGES = {path.name: path for path in sorted(DOCS.glob("*.md"))}
HERE = [
    name
    for name, path in PAGES.items()
    if name not in ELSEWHERE and (Page(path).program or Page(path).files or Page(path).commands)
]


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", HERE)
def test_the_page_runs(name: str, tmp_path: Path) -> None:
    Page(PAGES[name]).follow(tmp_path)


def test_pages_are_found() -> None:
    assert {"start.md", "exporting.md", "classes.md"} <= set(HERE)


@pytest.mark.parametrize(("page", "test"), sorted(ELSEWHERE.items()))
def test_other_pages_have_a_test(page: str, test: str) -> None:
    root = DOCS.parent
    assert page in PAGES
    assert page in (root / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_code_has_a_language(name: str) -> None:
    """A block without one would not run, and nobody would notice."""
    fences = re.findall(r"^```(.*)$", PAGES[name].read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert all(fences[::2])
