"""docs/surveys.md is true: its commands and its Python run, its numbers are those of the code."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from calltape_schema import bounds
from tests.analyzer.cli.commands import run

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "surveys.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three days of tapes, as the page records them."""
    monkeypatch.chdir(tmp_path)
    exec(blocks("python")[0], {"__name__": "page"})
    return tmp_path


def test_its_commands_run(folder: Path) -> None:
    codes = {}
    for line in "".join(blocks("sh")).splitlines():
        program, *words = shlex.split(line.removesuffix("|| true"))
        assert program == "calltape"
        ran = run(*words)
        codes[line] = ran.code
        assert ran.code == (4 if "|| true" in line else 0), (line, ran.err)
    assert list(codes.values()).count(4) == 2
    assert json.loads(run("info", "all.tape", "--json").out)["calls"] == 9


@pytest.mark.integration
@pytest.mark.parametrize("block", blocks("python")[1:])
def test_its_python_runs(folder: Path, block: str) -> None:
    (folder / "script.py").write_text(block)
    ran = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, timeout=300, cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    assert "DYNAMIC" in ran.stdout or "<Survey of 3 files, 1 target>" in ran.stdout


def test_its_numbers_are_those_of_the_code() -> None:
    assert f"{bounds.MAX_ROWS:,} distinct inputs" in PAGE
    assert f"at most {bounds.MAX_SOURCES:,} recordings" in PAGE


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)[^)]*\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    assert (DOCS / target).exists()
