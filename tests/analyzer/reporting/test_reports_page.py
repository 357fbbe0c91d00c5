"""The page docs/reports.md is true: its commands and snippets run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.analyzer.cli.commands import run
from tests.analyzer.reporting.traffic import Llm, record

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reports.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.integration
def test_commands_and_snippets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    record(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks("sh")).splitlines():
        command, *words = shlex.split(line)
        if command == "calltape":
            assert run(*words).code == 0, line
    for block in blocks("python"):
        exec(compile(block, "docs/reports.md", "exec"), {"model": Llm()})
    made = {file.name for file in tmp_path.iterdir() if file.is_file()}
    assert {"llm.html", "all.html", "week.html", "lengths.png", "replayed.html"} <= made
