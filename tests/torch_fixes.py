"""Switches off each workaround for torch, runs the tests of exports, and writes the table of
``exporting/torch_fixes/README.md``: ``python -m tests.torch_fixes [NAME ...]``.

Test files that name the workaround run first, then all fast tests, then those of integration; what
comes later runs only if nothing failed.
``python -m pytest -p tests.torch_fixes --without NAME`` runs tests of your choice.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from contextlib import nullcontext
from importlib import import_module
from importlib.metadata import version
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any

import pytest

__all__ = ["FIXES", "TESTS", "table"]

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests/analyzer/exporting"
FOLDER = ROOT / "analyzer/src/calltape_analyzer/exporting/torch_fixes"
FIXES = sorted({one.stem for one in FOLDER.glob("*.py")} - {"__init__", "patching"})

_PAGE = FOLDER / "README.md"
_MOST = 3
_HEAD = f"""# Workarounds for torch

One file for each fault or gap of torch that an export meets. `python -m tests.torch_fixes` switches
each off, runs the tests of exports, and writes this table (torch {version("torch").split("+")[0]}),
with at most {_MOST} tests per workaround. Delete a workaround that no test needs.

| file | what it is about | tests that fail without it |
| --- | --- | --- |
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without", choices=FIXES, help="the workaround for torch to switch off")


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    # Before anything imports the names that are replaced.
    if name := early_config.known_args_namespace.without:
        _switch_off(import_module(f"calltape_analyzer.exporting.torch_fixes.{name}"))


def _switch_off(fix: Any) -> None:
    """Puts what does nothing in the place of what changes torch or the model."""
    instead = {
        "OpenOperators": nullcontext,
        "SymbolicSet": set,
        "require_assertions": lambda exported: None,
        "known_max": max,
        "known_min": min,
        "never_empty": lambda wanted: nullcontext(fix.NotEmpty()),
        "settle_assertions": lambda *_: False,
    }
    found = {one: instead[one] for one in fix.__all__ if one in instead}
    for one in fix.__all__:
        if isgeneratorfunction(getattr(vars(fix)[one], "__wrapped__", None)):  # a context manager
            found.setdefault(one, lambda *_, **__: nullcontext())
    assert found, f"{fix.__name__} has nothing that can be switched off"
    vars(fix).update(found)


def table() -> dict[str, str]:
    """By workaround, the tests that fail without it."""
    row = re.compile(r"^\| `(\w+)\.py` \| .* \| (.*) \|$", re.MULTILINE)
    return dict(row.findall(_PAGE.read_text("utf-8")))


def _row(name: str, tests: str) -> str:
    document = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text("utf-8"))) or ""
    subject = " ".join(document.partition("\n\n")[0].split()).replace("``", "`")
    return f"| `{name}.py` | {subject} | {tests} |\n"


def _failing(name: str) -> list[str]:
    """The tests that fail when a workaround is off."""
    every = sorted(TESTS.glob("test_*.py"))
    near = [one for one in every if name in one.stem + one.read_text("utf-8")]
    for files, tier in ((near, "not slow"), (every, "not integration"), (every, "integration")):
        if not files:
            continue
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
                *("-p", "tests.torch_fixes", "--without", name, f"--maxfail={_MOST}"),
                *("-m", f"{tier} and not slow and not chaos and not cuda", *map(str, files)),
            ],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if found := re.findall(r"^(?:FAILED|ERROR) \S*/([\w.:]+)", done.stdout, re.MULTILINE):
            return [*dict.fromkeys(found)]  # without the cases of a test
        if done.returncode:
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torch_fixes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=FIXES)
    for name in parser.parse_args().names:
        known = table()
        known[name] = ", ".join(f"`{one}`" for one in _failing(name)) or "none"
        print(f"{name}: {known[name]}", flush=True)
        rows = (_row(one, known[one]) for one in FIXES if one in known)
        _PAGE.write_text(_HEAD + "".join(rows), "utf-8")


if __name__ == "__main__":
    main()
