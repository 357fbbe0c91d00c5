"""Runs the notebook of this folder, and writes it with what its cells print.

``python examples/execute_plain_data.py`` after a change of it. What changes from run to run (times,
paths, ids) is not written, so that a second run changes nothing.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_name("looking_at_a_tape.ipynb")

_CHANGING = (
    (re.compile(r"/[\w/.-]*/(?=embedder\.)"), ""),
    (re.compile(r"\b[\d.,]+ ms\b"), "… ms"),
    (re.compile(r"[\d.,]+ (?=bytes)"), "… "),
    (re.compile(r"\bin [\d.]+ s\b"), "in … s"),
    (re.compile(r"\b\d+ s: "), "… s: "),
    (re.compile(r"(?<=bytes</th><td>)[\d,]+"), "…"),
)


def executed(path: Path) -> Any:
    """The notebook after all its cells ran, in a kernel of its own."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            _settle(output)
    return notebook


def _settle(output: Any) -> None:
    """Takes away what another run would print differently."""
    output.get("metadata", {}).clear()
    output.pop("transient", None)
    for kind, text in output.get("data", {}).items():
        if kind.startswith("text/"):
            for changing, instead in _CHANGING:
                text = changing.sub(instead, text)
            output["data"][kind] = text


def main() -> None:
    notebook = executed(NOTEBOOK)
    nbformat.write(notebook, NOTEBOOK)
    print(f"wrote {NOTEBOOK.name}: {len(notebook.cells)} cells", file=sys.stderr)


if __name__ == "__main__":
    main()
