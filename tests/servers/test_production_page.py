"""The page "Recording in production" is true: its Python blocks run in order, its commands exit
with 0, its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "production.md").read_text()
SERVER = "# service.py\n"

pytestmark = pytest.mark.integration


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def run(folder: Path, *command: str) -> str:
    """Runs a command as a reader would who has Python's folder on the PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "PATH": path, "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all Python blocks ran, in one process."""
    folder = tmp_path_factory.mktemp("production")
    python = blocks("python")
    (folder / "tour.py").write_text("\n".join(b for b in python if not b.startswith(SERVER)))
    (server,) = [block for block in python if block.startswith(SERVER)]
    (folder / "service.py").write_text(server)
    (folder / "printed.txt").write_text(run(folder, sys.executable, "tour.py"))
    return folder


def test_the_python_blocks_run(tour: Path) -> None:
    printed = (tour / "printed.txt").read_text()
    assert "20 calls go to the tape" in printed
    assert "'flight_recorder': 80" in printed
    assert "bytes per call" in printed


def test_the_commands_run(tour: Path) -> None:
    commands = re.findall(r"^\$ (.*)$", "\n".join(blocks("console")), re.MULTILINE)
    assert len(commands) >= 6
    printed = run(tour, "bash", "-exc", "\n".join(commands))
    assert printed.count("3 of 3 calls seen") == 3  # one of them by a recorder in the page itself


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)[^)]*\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    assert (DOCS / target).exists()
