"""Which versions are promised: read from the files that tell installers, and from the check that
rejects exports. The page docs/versions.md says the same."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from calltape_analyzer.programs.exported_model import NEEDED

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

__all__ = ["EXTRAS", "PAGE", "ROOT", "Promises", "promised"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "versions.md"
MEMBERS = ("schema", "recorder", "analyzer")
EXTRAS = ("fast", "onnx", "zstd")
"""Those whose lowest versions are tried as well."""

_A_PYTHON = re.compile(r"Programming Language :: Python :: (3\.\d+)")
_A_BOUND = re.compile(r"([\w.-]+)>=([\w.]+)")


@dataclass(frozen=True)
class Promises:
    """What is promised.

    Attributes:
        pythons: from the oldest to the newest.
        torch: the oldest for recording, and for reading tapes.
        torch_of_exports: the oldest for exports.
        lowest: the lowest version of each direct dependency, also of :data:`EXTRAS`, by name.
    """

    pythons: tuple[str, ...]
    torch: str
    torch_of_exports: str
    lowest: dict[str, str]

    def as_text(self) -> str:
        """The part of the page that says what is promised."""
        oldest, newest = self.pythons[0], self.pythons[-1]
        others = ", ".join(f"{name} {lowest}" for name, lowest in sorted(self.lowest.items()))
        return f"""\
| what | Python | torch |
| --- | --- | --- |
| recording, reading tapes | {oldest} to {newest} | {self.torch} or newer |
| exports: `export()`, `load_programs()`, `verify()`, `replay` of a `.pt2` or of saved programs \
| {oldest} to {newest} | {self.torch_of_exports} or newer |

With an older torch, an export raises an error that says so. Before {self.torch_of_exports}, a
verified program can silently return wrong results.

{fill(f"Lowest versions of other packages: {others}.", 100, break_on_hyphens=False)}
"""


def promised() -> Promises:
    """What the ``pyproject.toml`` of the distributions say. They agree, or this fails."""
    projects = [_project(ROOT / name) for name in (".", *MEMBERS)]
    (pythons,) = {_pythons(one) for one in projects}
    bounds: dict[str, set[str]] = {}
    for project in projects:
        extras: dict[str, list[str]] = project.get("optional-dependencies", {})
        asked = sum((extras.get(name, []) for name in EXTRAS), project["dependencies"])
        for bound in filter(None, map(_A_BOUND.match, asked)):
            bounds.setdefault(bound[1], set()).add(bound[2])
    assert all(len(found) == 1 for found in bounds.values()), bounds
    lowest = {name: found.pop() for name, found in bounds.items()}
    return Promises(pythons, lowest.pop("torch"), ".".join(map(str, NEEDED)), lowest)


def _project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def _pythons(project: dict[str, Any]) -> tuple[str, ...]:
    named = _A_PYTHON.findall("\n".join(project["classifiers"]))
    found = tuple(sorted(named, key=lambda version: int(version.partition(".")[2])))
    assert project["requires-python"] == f">={found[0]}", project["name"]
    return found
