"""The README is true: its Python blocks and its commands run, what it names exists, and its numbers
are those of the table of costs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.page import Page
from tests.tour import PAGES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COSTS = (ROOT / "docs/costs.md").read_text(encoding="utf-8")


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_it_runs(tmp_path: Path) -> None:
    page = Page(ROOT / "README.md")
    printed = page.follow(tmp_path)
    assert "DimHint" in printed[0]
    assert all(text.strip() for text in printed)
    assert len(printed) >= 6


def test_it_begins_with_the_installation() -> None:
    assert "```sh\npip install calltape\n```" in README.partition("## ")[0]


def test_a_newcomer_reads_it_in_three_minutes() -> None:
    prose = re.sub(r"^```.*?^```$|^\|.*$", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) < 3 * 250


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)[^)]*\)", README))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_anchors_lead_somewhere() -> None:
    for page, anchor in re.findall(r"\]\(([^)#:]+)#([\w-]+)\)", README):
        heads = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert anchor in slugs, page


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"^[A-Z_]{4,}$", README, re.MULTILINE)


def test_from_a_clone_all_distributions_are_installed() -> None:
    """They need each other in one version, so that pip must find all of them in the clone."""
    (folders,) = re.findall(r"^`pip install ([^`]+)` in a clone", README, re.MULTILINE)
    projects = {path.parent for path in ROOT.glob("*/pyproject.toml")} | {ROOT}
    members = {path for path in projects if (path / "src").is_dir() or path == ROOT}
    assert {(ROOT / folder).resolve() for folder in folders.split()} == members


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:`|^\$ )make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_costs_are_rows_of_the_table() -> None:
    table = re.search(r"^\| measured \|.*\n\| ---.*\n((?:\|.*\n)+)", README, re.MULTILINE)
    assert table is not None
    rows = table[1].splitlines()
    assert len(rows) >= 3
    assert set(rows) <= set(COSTS.splitlines())


def test_the_tour_has_pages() -> None:
    assert all((ROOT / page).exists() for page in PAGES)
