"""docs/remote.md is true: its Python block runs, what it names exists, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from calltape_analyzer.reading import remote_access, remote_file, remote_names

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "remote.md").read_text()


@pytest.mark.integration
def test_the_python_block_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    ran = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert ran.returncode == 0, ran.stderr
    assert "DYNAMIC" in ran.stdout


def test_its_numbers_are_those_of_the_code() -> None:
    assert f"{remote_access._SECONDS:g} seconds" in PAGE
    assert f"{remote_names._MOST_NAMES:,} files" in PAGE
    assert f"up to {remote_file._LAST_PIECE // 2**20} MiB" in PAGE
    assert remote_access._VARIABLE in PAGE


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)[^)]*\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    assert (DOCS / target).exists() or target.startswith("https")
