"""``calltape minimise``: its exit codes and its words."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analyzer.cli.commands import run
from tests.analyzer.minimising.summed import recorded

CHECK = """
import sys
from calltape_analyzer import open_tape

with open_tape(sys.argv[1]) as tape:
    for call in tape.calls:
        rows, columns = call.record.inputs.facts()[0].shape
        if columns > 40:
            raise ValueError(f"{rows} rows have {columns} columns")
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("tapes") / "whole.tape", calls=4, bad=2)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "check.py").write_text(CHECK)
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    return shlex.join([sys.executable, str(tmp_path / "check.py")]) + " {}"


@pytest.mark.integration
def test_minimise_prints_a_command_that_shows_the_failure(
    whole: Path, tmp_path: Path, check: str
) -> None:
    out = tmp_path / "it's small.tape"
    ran = run("minimise", whole, "-o", out, "--check", check)
    assert ran.code == 0, ran.err
    assert "1 of 4 calls" in ran.out
    assert "fails: ValueError: # rows have # columns" in ran.out
    (shown,) = (line for line in ran.out.splitlines() if line.startswith("see it fail: "))
    command = shown.removeprefix("see it fail: ")
    again = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
    assert again.returncode == 1
    assert "ValueError: 1 rows have 41 columns" in again.stderr
    there = run("minimise", whole, "-o", out, "--check", check)
    assert there.code == 1
    assert "--force" in there.err
    forced = run("minimise", out, "-o", tmp_path / "b.tape", "--check", check, "--json")
    assert forced.code == 0
    assert json.loads(forced.out)["calls"] == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("true", "nothing fails with this tape"),
        ("no-such-command", "the check cannot be run: exit code 127; "),
        ("false", "the check also fails with no calls: exit code 1. Run it by hand"),
    ],
)
def test_a_command_that_is_no_check_is_rejected_in_one_line(
    whole: Path, tmp_path: Path, command: str, words: str
) -> None:
    ran = run("minimise", whole, "-o", tmp_path / "small.tape", "--check", command)
    assert ran.code == 1
    assert words in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [(), ("--check", "a", "--reference", "a:b")])
def test_minimise_needs_one_check(whole: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run("minimise", whole, "-o", tmp_path / "small.tape", *words).code == 2
