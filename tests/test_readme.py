"""The README is true: every Python block runs, in order, in one session; every command in its
prompt section exits with 0; what it names exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tour was taken, in a fresh process as a reader's would be."""
    folder = tmp_path_factory.mktemp("tour")
    script = folder / "tour.py"
    script.write_text("\n".join(blocks("python")))
    done = subprocess.run(
        [sys.executable, script.name], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (folder / "printed.txt").write_text(done.stdout)
    return folder


@pytest.mark.integration
def test_the_python_blocks_run(tour: Path) -> None:
    printed = (tour / "printed.txt").read_text()
    assert "float32[4,8]" in printed
    assert "DYNAMIC" in printed


def commands() -> list[str]:
    prompts = "\n".join(blocks("console"))
    return re.findall(r"^\$ (calltape .*)$", prompts, re.MULTILINE)


@pytest.mark.integration
@pytest.mark.parametrize("command", commands())
def test_the_commands_run(tour: Path, command: str) -> None:
    arguments = shlex.split(command)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "calltape_analyzer", *arguments],
        cwd=tour,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120"},
    )
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
