"""A page of the documentation as a reader follows it.

A Python block whose first line is a comment with a file's name is that file. The other Python
blocks are one program. In a block of the console, lines that begin with ``$`` are commands, and the
lines below one, if there are some, are all that it prints, byte for byte. A block of text below a
Python block is a part of what that prints, in its order, byte for byte. There is one exception,
which a reader sees: ``…`` stands for the rest of its line, such as a time, or, if it is alone on a
line, for any lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

__all__ = ["DOCS", "Command", "Page"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w.]+\.py)\n")


@dataclass(frozen=True)
class Command:
    """A command, and what it prints; empty if the page does not show it."""

    text: str
    prints: str


class Page:
    """The blocks of a page.

    Attributes:
        files: by their names.
        program: the other Python blocks, in their order.
        commands: of the console.
        prints: what the program prints, in blocks.
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
            text
            for (before, _), (language, text) in pairs
            if (before, language) == ("python", "text")
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
            _expect("…\n".join(["", *self.prints, ""]), printed[-1])
        for command in self.commands:
            if not command.text.startswith("make "):
                printed.append(self._run(folder, command.text, python))
                if command.prints:
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
    matches = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    return [Command(text, prints) for text, prints in matches]


def _expect(shown: str, printed: str) -> None:
    """What a page shows is what was printed; see the head of this file."""
    parts = [
        r"(?:.*\n)*?" if line == "…\n"
        else re.escape(line[:-2]) + r".*\n" if line.endswith("…\n")
        else re.escape(line)
        for line in shown.splitlines(keepends=True)
    ]  # fmt: skip
    assert re.fullmatch("".join(parts), printed), f"the page shows\n{shown}\nprinted was\n{printed}"
