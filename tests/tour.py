"""``python -m tests.tour PYTHON`` follows the README, and the pages that it leads to first, with
another Python, each in a new folder: with one that has the built distributions and nothing else,
say. It needs no package itself.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.docs.page import Page

__all__ = ["PAGES"]

_ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/start.md", "docs/reading.md", "docs/exporting.md", "docs/targets.md")


def _take(python: Path) -> int:
    failed = False
    for name in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                Page(_ROOT / name).follow(Path(folder), python)
            except AssertionError as error:
                failed = True
                print(f"FAILED {name}", error, sep="\n", flush=True)
            else:
                print(f"ok {name}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(_take(Path(sys.argv[1]).absolute()))
