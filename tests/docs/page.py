"""A page of the documentation as a reader follows it.

A Python block whose first line is a comment with a file's name is that file. The other Python
blocks are one program. In a block of the console, lines that begin with ``$`` are commands, and the
lines below one are of what it prints. A block of text below a Python block is of what that prints.
``…`` at the end of such a line stands for the rest of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

__all__ = ["DOCS", "Command", "Page"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w.]+\.py)\n")


@dataclass(frozen=True)
class Command:
    """A command, and lines of what it prints."""

    text: str
    prints: tuple[str, ...]


class Page:
    """The blocks of a page.

    Attributes:
        files: by their names.
        program: the other Python blocks, in their order.
        commands: of the console.
        prints: lines that the program prints.
        said: what was written to stderr when the page was followed, per command.
    """

    def __init__(self, path: Path) -> None:
        blocks = _BLOCK.findall(path.read_text(encoding="utf-8"))
        python = [text for language, text in blocks if language == "python"]
        self.files = {found[1]: text for text in python if (found := _FILE.match(text))}
        self.program = "\n".join(text for text in python if not _FILE.match(text))
        console = [text for language, text in blocks if language == "console"]
        self.commands = [command for text in console for command in _commands(text)]
        pairs = pairwise(blocks)
        self.said: list[str] = []
        self.prints = [
            line
            for (before, _), (language, text) in pairs
            if (before, language) == ("python", "text")
            for line in text.splitlines()
        ]

    def follow(self, folder: Path, python: Path = Path(sys.executable)) -> list[str]:
        """Does in a folder what the page says, but not what it does with the repository (``make``).

        Returns:
            What the program printed, if there is one, and what each command printed.

        Raises:
            AssertionError: something failed, or did not print what the page says.
        """
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        printed = []
        if self.program:
            (folder / "of_this_page.py").write_text(self.program, encoding="utf-8")
            printed.append(self._run(folder, "python of_this_page.py", python))
            _expect(self.prints, printed[-1])
        for command in self.commands:
            if not command.text.startswith("make "):
                printed.append(self._run(folder, command.text, python))
                _expect(command.prints, printed[-1])
        return printed

    def _run(self, folder: Path, command: str, python: Path) -> str:
        """What a command prints, to a reader who has Python's folder on the path."""
        path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=800,
            env={**os.environ, "PATH": path, "COLUMNS": "120"},
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        self.said.append(done.stderr)
        return done.stdout


def _commands(console: str) -> list[Command]:
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    return [Command(text, tuple(filter(None, prints.splitlines()))) for text, prints in found]


def _expect(lines: Sequence[str], printed: str) -> None:
    there = [line.strip() for line in printed.splitlines()]
    for line in map(str.strip, lines):
        start = line.removesuffix("…")
        found = [one for one in there if one == line or (start != line and one.startswith(start))]
        assert found, f"{line!r} is not in\n{printed}"
