"""The README is true: its Python blocks and its commands run, what it names exists, and its numbers
are those of the table of costs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.page import Page

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COSTS = (ROOT / "docs/costs.md").read_text(encoding="utf-8")


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_run_and_warn_of_nothing(tmp_path: Path) -> None:
    """Each command prints what the page says."""
    page = Page(ROOT / "README.md")
    printed = page.follow(tmp_path)
    assert len(printed) == len(page.commands) == 4
    assert all(command.prints for command in page.commands if "serve.py" not in command.text)
    assert not re.search(r"Warning|WARNING", "".join(page.said)), page.said


@pytest.mark.integration
@pytest.mark.parametrize(
    "command", re.findall(r"^((?:uv )?pip install \./.*)$", README, re.MULTILINE)
)
def test_what_it_installs_is_not_editable(command: str, tmp_path: Path) -> None:
    """Without dependencies, which are there: what is left behind is what matters."""
    uv = Path(sys.executable).with_name("uv")
    python = tmp_path / "environment/bin/python"
    subprocess.run([uv, "venv", "--quiet", tmp_path / "environment"], check=True)
    words = shlex.split(command.removeprefix("uv "))[1:]
    subprocess.run(
        [uv, "pip", *words, "--quiet", "--no-deps", "--python", python], cwd=ROOT, check=True
    )
    facts = list((tmp_path / "environment").rglob("direct_url.json"))
    assert len(facts) == 4
    assert not any("editable" in json.loads(fact.read_text())["dir_info"] for fact in facts)


def test_the_page_says_how_to_install_with_pip_and_with_uv() -> None:
    assert re.search(r"^pip install \./", README, re.MULTILINE)
    assert re.search(r"^uv pip install ", README, re.MULTILINE)


def test_the_first_screen_is_short() -> None:
    """What to write, and what it prints, before any prose: about 20 px a line on GitHub."""
    screen = README.partition("\n```\n\nThe model gets")[0]
    assert screen.count("\n") <= 46
    outside = re.sub(r"^```.*?(^```$|\Z)", "", screen, flags=re.DOTALL | re.MULTILINE)
    assert len(outside.split()) < 30


def test_the_model_is_short() -> None:
    (source,) = re.findall(r"^class .*?^(?=\n\ndef )", README, re.DOTALL | re.MULTILINE)
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 10


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


def test_from_a_clone_all_distributions_are_installed() -> None:
    """They need each other in one version, so that they must all be found in the clone."""
    commands = re.findall(r"^(?:uv )?pip install (?:--no-sources )?(\./.*)$", README, re.MULTILINE)
    assert len(commands) == 2
    projects = {path.parent for path in ROOT.glob("*/pyproject.toml")} | {ROOT}
    members = {path for path in projects if (path / "src").is_dir() or path == ROOT}
    for folders in commands:
        named = [folder.partition("[")[0] for folder in shlex.split(folders)]
        assert {(ROOT / folder).resolve() for folder in named} == members


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:`|^\$ )make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_costs_are_rows_of_the_table() -> None:
    section = re.search(r"^## [^\n]*costs?\b.*?(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)
    assert section is not None
    rows = re.findall(r"^\|.*", section[0], re.MULTILINE)
    assert len(rows) >= 5  # with the head
    assert set(rows) <= set(COSTS.splitlines())
    figure = r"\d[\d,.]* ?(?:×|µs|ms|s|MiB|GiB|%|bytes)(?!\w)"
    told = set(re.findall(figure, section[0])) - set(re.findall(figure, "\n".join(rows)))
    assert not told  # in the text, and in no row
