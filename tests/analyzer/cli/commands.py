"""Runs the ``calltape`` command, in this process or in one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from calltape_analyzer.cli.verbs import app

COMMAND = [sys.executable, "-m", "calltape_analyzer"]


AT_END = (
    "calltape: answered from the summary at the end of the tape; --scan compares it "
    "with the records\n"
)
"""What a command says that read no record."""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: Any) -> Ran:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def script_of(*arguments: Any) -> str:
    """The script that ``bundle`` writes for a tape."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.py"
        ran = run("bundle", *arguments, "-o", file)
        assert (ran.code, ran.out, ran.err) == (0, f"wrote {file}\n", ""), ran.err
        return file.read_text()


def process(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


WITHOUT_TORCH = """
import json, sys
from calltape_analyzer.cli.verbs import app
for command in json.loads(sys.argv[1]):
    print("$", *command, flush=True)
    try:
        app(command)
    except SystemExit as end:
        assert not end.code, (command, end.code)
    heavy = {"torch", "numpy", "transformers", "onnx"} & set(sys.modules)
    assert not heavy, (command, heavy)
"""


def without_torch(commands: list[list[str]]) -> list[str]:
    """What each command prints, all in one process, in which none of them may import torch."""
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps(commands)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    printed = [block.partition("\n")[2] for block in ("\n" + result.stdout).split("\n$ ")[1:]]
    assert all(printed), result.stdout
    return printed
