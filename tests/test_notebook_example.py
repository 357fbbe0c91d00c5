"""The notebook of examples/ runs, and prints what is written in it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "execute_notebook.py"

pytestmark = pytest.mark.integration


def runner() -> Any:
    spec = importlib.util.spec_from_file_location("execute_notebook", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(notebook: Any) -> list[tuple[str, str]]:
    """What each cell shows: the kinds of its outputs, and the words of its tables. Numbers of
    floats differ from machine to machine."""
    return [
        (
            " ".join(sorted(output.data)),
            re.sub(r"<[^>]*>|\d\.\de[+-]\d\d", " ", str(output.data.get("text/html"))),
        )
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "execute_result"
    ]


def test_the_notebook_prints_what_is_written() -> None:
    module = runner()
    written = nbformat.read(module.NOTEBOOK, as_version=4)
    found = module.executed(module.NOTEBOOK)
    assert printed(found) == printed(written)
    assert "script" not in str(printed(written))
