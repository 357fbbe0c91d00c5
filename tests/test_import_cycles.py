"""No file of a distribution imports one that imports it, wherever in the file the import stands."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def imports_of(package: str, source: Path) -> dict[str, set[str]]:
    """The modules that each one imports. import-linter sees none in folders that are no packages,
    such as the one that Python starts with."""
    files = {
        ".".join((package, *path.relative_to(source).with_suffix("").parts)): path
        for path in source.rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
            elif isinstance(node, ast.Import):
                names |= {name.name for name in node.names}
        found[module] = names & files.keys()
    return found


@pytest.mark.parametrize("package", ["calltape_schema", "calltape_recorder", "calltape_analyzer"])
def test_imports_form_no_circle(package: str) -> None:
    source = ROOT / package.removeprefix("calltape_") / "src" / package
    try:
        order = list(TopologicalSorter(imports_of(package, source)).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
    assert len(order) > 20
