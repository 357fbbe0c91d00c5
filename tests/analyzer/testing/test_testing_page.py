"""docs/testing.md is true: its example runs in a project, and a failure says what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.analyzer.testing.projects import ROOT, Project

PAGE = (ROOT / "docs/testing.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.integration
def test_the_example_and_its_failure(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.tape()
    project.write("tests/test_house.py", block("python"))
    assert project.run().code == 0
    changed = (project.folder / "house.py").read_text().replace("at=None", "at=4")
    project.write("house.py", changed.replace("extra=0.0", "extra=1.0"))
    ran = project.run("-k", "house.tape-0")
    assert ran.code == 1
    said = re.sub(r"^E +(AssertionError: )?", "", ran.text, flags=re.M)
    for line in block("text").splitlines():
        assert line.strip() in said, line


def test_each_argument_of_the_mark_is_on_the_page() -> None:
    from calltape_analyzer.testing.chosen_tapes import _OPTIONS

    for name in _OPTIONS:
        assert f"`{name}=" in PAGE, name
