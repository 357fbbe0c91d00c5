"""How many words the pages have, against what each subject may have.

Code blocks, what a tool generates (the reference, the table of workarounds) and the description of
the format are not counted.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

__all__ = ["MAX_COLUMNS", "SUBJECTS", "TOTAL", "long_lines", "pages", "words_of"]

ROOT = Path(__file__).resolve().parents[2]
TOTAL, MAX_COLUMNS = 30_000, 120
SUBJECTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "the first ten minutes": (
        3_400,
        (
            "README.md", "docs/start.md", "docs/ideas.md", "docs/index.md", "SECURITY.md",
            "CHANGELOG.md", "docs/versions.md",
        ),
    ),
    "exporting": (
        3_200,
        ("docs/exporting.md", "docs/export-*.md", "docs/targets.md", "docs/comparison.md"),
    ),
    "production": (
        4_200, ("docs/production.md", "docs/recording.md", "docs/vllm.md", "docs/costs.md")
    ),
    "look and cut": (1_400, ("docs/reading.md", "docs/viewer.md", "docs/editing.md")),
    "bugs": (
        1_400, ("docs/sharing.md", "docs/minimising.md", "docs/bisecting.md", "docs/testing.md")
    ),
    "privacy": (1_900, ("docs/privacy.md", "docs/classes.md")),
    "fleet": (1_500, ("docs/surveys.md", "docs/tables.md", "docs/remote.md")),
    "architecture": (2_800, ("docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md")),
    "decisions": (8_000, ("docs/decisions/*.md",)),
    "zoo": (900, ("docs/zoo.md",)),
    "conformance suite": (1_200, ("fixtures/README.md",)),
    "beside the code": (
        700,
        (
            "schema/README.md", "recorder/README.md", "analyzer/README.md", "viewer/*/README.md",
            "examples/*/README.md", "tests/*/README.md",
        ),
    ),
}  # fmt: skip
"""The limit and the pages of each subject."""
NOT_COUNTED = ("schema/FORMAT.md", "docs/reference/*.md", "analyzer/src/**/torch_fixes/README.md")

_CODE = re.compile(r"^( *)(```|~~~).*?^\1\2$", re.DOTALL | re.MULTILINE)
_WORD = re.compile(r"[^\s|]*\w[^\s|]*")


def pages(patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def words_of(path: Path) -> int:
    return len(_WORD.findall(_CODE.sub("", path.read_text(encoding="utf-8"))))


def long_lines(path: Path) -> list[int]:
    """The numbers of the lines that are too long, from 1."""
    text = _CODE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text(encoding="utf-8"))
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > MAX_COLUMNS and not line.lstrip().startswith("|")
    ]


def every_page() -> list[Path]:
    """The pages that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.splitlines()]
