"""The README is true: every Python block runs, in order, in one session; every command in its
prompt section exits with 0; what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tour import README, commands, run_command, run_python

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tour was taken."""
    folder = tmp_path_factory.mktemp("tour")
    done = run_python(folder)
    assert done.returncode == 0, done.stderr
    (folder / "printed.txt").write_text(done.stdout)
    return folder


@pytest.mark.integration
def test_the_python_blocks_run(tour: Path) -> None:
    printed = (tour / "printed.txt").read_text()
    assert "float32[4,8]" in printed
    assert "DYNAMIC" in printed


@pytest.mark.integration
@pytest.mark.parametrize("command", commands())
def test_the_commands_run(tour: Path, command: str) -> None:
    done = run_command(tour, command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_prompt_section_has_commands() -> None:
    assert len(commands()) >= 5


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"^[A-Z_]{4,}$", README, re.MULTILINE)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)`", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
