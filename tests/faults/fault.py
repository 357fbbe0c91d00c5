"""One deliberate fault: a text of a source file, and what stands there instead."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


class StaleFaultError(Exception):
    """The source has changed: the fault cannot be planted as it is."""


@dataclass(frozen=True)
class Fault:
    """A fault to plant.

    Attributes:
        name: unique, for people and ``--only``.
        file: of the repository.
        old: a text that occurs in it exactly once.
        new: the fault.
        breaks: what goes wrong for a user, in one sentence.
        hint: test files and folders that should find it, below ``tests/``.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    hint: tuple[str, ...]

    @property
    def package(self) -> str:
        """``schema``, ``recorder``, ``analyzer`` or ``viewer``."""
        return self.file.partition("/")[0]

    @property
    def tests(self) -> list[str]:
        """The paths of the hinted tests."""
        return [f"tests/{place}" for place in self.hint]

    def planted_in(self, source: str) -> str:
        """A source text with the fault.

        Raises:
            StaleFaultError: the old text does not occur exactly once.
        """
        count = source.count(self.old)
        if count != 1:
            raise StaleFaultError(
                f"stale fault {self.name}: its text is {count} times in {self.file}"
            )
        return source.replace(self.old, self.new)


def check(fault: Fault, root: Path = ROOT) -> None:
    """Checks that a fault can be planted and that the file can be loaded then. A fault that breaks
    an import would be found by any test.

    Raises:
        StaleFaultError: its text is not there exactly once.
        SyntaxError: the file with the fault is no Python.
    """
    path = root / fault.file
    planted = fault.planted_in(path.read_text(encoding="utf-8"))
    if path.suffix == ".py":
        compile(planted, fault.file, "exec")


def check_modules(faults: Sequence[Fault], node: str, folder: Path) -> None:
    """The same for modules of JavaScript, by Node.

    Raises:
        SyntaxError: one is no module.
    """
    for fault in faults:
        source = (ROOT / fault.file).read_text(encoding="utf-8")
        module = folder / f"{fault.name}.mjs"
        module.write_text(fault.planted_in(source), encoding="utf-8")
        done = subprocess.run([node, "--check", module], capture_output=True, text=True)
        if done.returncode:
            raise SyntaxError(f"{fault.name}: {done.stderr}")
