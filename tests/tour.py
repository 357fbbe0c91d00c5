"""The README's tour: its Python blocks, and the commands that it shows.

``python -m tests.tour PYTHON`` takes it with another Python, in a new folder: with one that
has the built distributions and nothing else, say. It needs no package itself.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["README", "blocks", "commands", "run_command", "run_python"]

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """The ``calltape`` commands at a prompt."""
    prompts = "\n".join(blocks("console"))
    return re.findall(r"^\$ (calltape .*)$", prompts, re.MULTILINE)


def run_python(folder: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Runs the Python blocks, in order, in one fresh process as a reader's would be."""
    script = folder / "tour.py"
    script.write_text("\n".join(blocks("python")), encoding="utf-8")
    return _run([python, script.name], folder, 300)


def run_command(
    folder: Path, command: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Runs a command in the folder of the Python blocks."""
    return _run([python, "-m", "calltape_analyzer", *shlex.split(command)[1:]], folder, 120)


def _run(arguments: list[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "COLUMNS": "120"},
    )


def _take(python: str) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, done in (
            ("the Python blocks", run_python(folder, python)),
            *((command, run_command(folder, command, python)) for command in commands()),
        ):
            print("ok" if done.returncode == 0 else "FAILED", title, flush=True)
            if done.returncode:
                print(done.stdout, done.stderr, sep="\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(_take(str(Path(sys.argv[1]).absolute())))
