"""``calltape minimise``: its exit codes and its words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analyzer.cli.commands import run
from tests.analyzer.minimising.checked import Sum
from tests.analyzer.minimising.test_minimising import CHECKED, recorded

__all__ = ["Sum"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("tapes") / "whole.tape", calls=4, bad=2)


@pytest.mark.integration
def test_the_smallest_tape(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    ran = run("minimise", whole, "-o", out, "--fails", f"{CHECKED}:raises")
    assert ran.code == 0, ran.err
    assert "1 of 4 calls" in ran.out
    assert "fails: ValueError: # rows have a value of #" in ran.out
    again = run("minimise", whole, "-o", out, "--fails", f"{CHECKED}:raises")
    assert again.code == 1
    assert "--force" in again.err
    forced = run("minimise", whole, "-o", out, "--fails", f"{CHECKED}:raises", "--force", "--json")
    assert forced.code == 0
    assert json.loads(forced.out)["calls"] == 1


@pytest.mark.integration
def test_nothing_fails(whole: Path, tmp_path: Path) -> None:
    ran = run("minimise", whole, "-o", tmp_path / "small.tape", "--fails", f"{CHECKED}:never")
    assert ran.code == 1
    assert "nothing fails" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--fails", "no form"),
        ("--fails", "a:b", "--fails-export", "a:b"),
        ("--fails", "a:b", "--redact"),
    ],
)
def test_a_wrong_command_line(whole: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run("minimise", whole, "-o", tmp_path / "small.tape", *words).code == 2


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{CHECKED}:__name__", f"{CHECKED}:__name__ is a str, which cannot be called"),
        (f"{CHECKED}:no_such", f"{CHECKED} has no no_such"),
        (
            "no_such_module:check",
            "no_such_module:check cannot be imported: no module no_such_module in the "
            "current directory or on the Python path",
        ),
        ("os:getcwd", "os:getcwd does not take an open tape: too many positional arguments"),
    ],
)
def test_what_cannot_be_called_with_a_tape(
    whole: Path, tmp_path: Path, name: str, words: str
) -> None:
    """The error of such a call would look like a failure of the tape."""
    ran = run("minimise", whole, "-o", tmp_path / "small.tape", "--fails", name)
    assert ran.code == 2
    assert ran.err.startswith(f"calltape: {words}. ")
    assert len(ran.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def shown(printed: str) -> subprocess.CompletedProcess[str]:
    """The command that the report ends with, run by a shell as it stands."""
    (command,) = (one for one in printed.splitlines() if one.startswith("see it fail: "))
    commands = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        command.removeprefix("see it fail: "), shell=True, check=False, capture_output=True,
        text=True, env={**os.environ, "PATH": commands},
    )  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "said", "has_outcome"),
    [
        (("--fails", "raises"), "rows have a value of 9", True),
        (("--fails", "is_long"), "True", True),
        (("--fails-replay", "Refuses"), "ValueError", False),
        (("--fails-replay", "BadAtLongRows", "--reference", "Sum"), "differ", True),
        (("--fails-export", "HasAddress"), "data pointer", True),
    ],
)
def test_the_command_that_is_printed_shows_the_failure(
    whole: Path, tmp_path: Path, words: tuple[str, ...], said: str, has_outcome: bool
) -> None:
    out = tmp_path / "it's small.tape"
    named = [word if word.startswith("-") else f"{CHECKED}:{word}" for word in words]
    ran = run("minimise", whole, "-o", out, *named)
    assert ran.code == 0, ran.err
    found = shown(ran.out)
    assert found.returncode == 1
    assert said in found.stdout + found.stderr
    assert ("--expect success" in ran.out) is not has_outcome
    if words[0] != "--fails":
        source = tmp_path / "script.py"
        assert run("bundle", out, "--model", named[1], "-o", source).code == 0
        done = subprocess.run(
            [sys.executable, source], check=False, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        assert done.returncode == 1
        assert said in done.stdout + done.stderr
