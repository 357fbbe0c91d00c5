"""The ``calltape`` command in a process of its own: imports, pipes and terminals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analyzer.cli.commands import COMMAND, process, without_torch
from tests.analyzer.tapes import Recorded, write_tape


def test_torch_is_not_imported(tape_file: Path) -> None:
    path = str(tape_file)
    commands = [
        ["info", path],
        ["ls", path],
        ["shapes", path, "--names"],
        ["shapes", path, "--python"],
        ["show", path, "0"],
    ]
    assert len(without_torch(commands)) == len(commands)


def test_a_pipe_that_closes(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [Recorded(args=("x" * 30,) * 40)] * 500)
    command = [*COMMAND, "ls", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == -signal.SIGPIPE


def test_an_ascii_terminal(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [(("漢",), {})])
    result = process("ls", path, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert result.returncode == 0, result.stderr
    assert "\\u6f22" in result.stdout


def test_the_installed_command(tape_file: Path) -> None:
    script = Path(sys.executable).parent / "calltape"
    if not script.exists():
        pytest.skip("the command is not installed here")
    result = subprocess.run(
        [script, "info", tape_file], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")
def test_on_a_terminal_tables_fit(tape_file: Path) -> None:
    leader, follower = os.openpty()
    env = {**os.environ, "COLUMNS": "50", "TERM": "xterm"}
    with subprocess.Popen(
        [*COMMAND, "shapes", str(tape_file)], stdout=follower, env=env
    ) as running:
        os.close(follower)
        shown = b""
        while True:
            try:
                data = os.read(leader, 4096)
            except OSError:  # Linux says so when the other end is gone
                break
            if not data:
                break
            shown += data
        assert running.wait() == 0
    os.close(leader)
    assert b"dynamic" in shown
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", shown).decode()
    assert max(map(len, plain.splitlines())) <= 50
