"""The scripts of completion, in the shells themselves: bash in a terminal, zsh and fish if they are
there."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from calltape_analyzer.cli.shells import SCRIPTS, Shell
from tests.analyzer.cli.models import Model
from tests.analyzer.tapes import write_tape

pytestmark = pytest.mark.integration


@pytest.fixture
def tapes(tmp_path: Path) -> Path:
    calls = [((torch.zeros(2 + i, 8),), {"mask": torch.ones(2 + i, 5)}) for i in range(30)]
    (tmp_path / "with space").mkdir()
    for name in ("llm.tape", "with space/it's.tape"):
        write_tape(tmp_path / name, calls, target=Model())
    for shell, script in SCRIPTS.items():
        (tmp_path / f".{shell.value}").write_text(script)
    return tmp_path


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PS1": "% ", "TERM": "dumb"}


class Terminal:
    """A shell in a pseudo terminal."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def type(self, keys: str, until: str) -> str:
        """What the terminal shows after these keys, until it shows a text."""
        os.write(self._handle, keys.encode())
        shown, end = "", time.monotonic() + 60
        while until not in shown and time.monotonic() < end:
            if select.select([self._handle], [], [], 0.1)[0]:
                shown += os.read(self._handle, 65536).decode(errors="replace")
        assert until in shown, shown
        return shown


@contextmanager
def bash_in_a_terminal(folder: Path) -> Iterator[Terminal]:
    child, handle = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment())
    try:
        yield Terminal(handle)
    finally:
        os.close(handle)
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_tab_in_bash(tapes: Path) -> None:
    with bash_in_a_terminal(tapes) as bash:
        bash.type(". ./.bash; echo loa''ded\n", "loaded\r\n% ")
        bash.type("calltape vari\t", "calltape variants ")
        bash.type("ll\t", "llm.tape ")
        bash.type("--ig\t", "--ignore ")
        bash.type("ma\t", "mask ")
        bash.type("--calls=3,2\t\t", "20")
        bash.type("\x15calltape ls wi\t", "with\\ space/")
        bash.type("\t", "it\\'s.tape ")
        bash.type("\n", "float32[2,8]")


def test_answers_in_zsh(tapes: Path) -> None:
    shell = shutil.which("zsh")
    if shell is None:
        pytest.skip("there is no zsh")
    code = """
compdef() { }
compadd() { print -r -- "$@" "${(P@)@[-1]}" }
_files() { print -r -- _files "$@" }
. ./.zsh
words=(calltape show llm.tape 2); CURRENT=4; _calltape
words=(calltape ls ''); CURRENT=3; _calltape
"""
    ran = subprocess.run(
        [shell, "-f", "-c", code],
        cwd=tapes, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stderr == ""
    assert "2 20 21" in ran.stdout
    assert "_files -g *(.tape|.tape.zst|.tape.gz)" in ran.stdout


def test_answers_in_fish(tapes: Path) -> None:
    shell = shutil.which("fish")
    if shell is None:
        pytest.skip("there is no fish")
    for line, answer in (
        ("calltape vari", "variants\t"),
        ("calltape show llm.tape 2", "2\n20\n21"),
        ("calltape ls with\\ space/", "with space/it's.tape"),
    ):
        ran = subprocess.run(
            [shell, "-N", "-c", "source ./.fish; complete -C $argv[1]", "--", line],
            cwd=tapes, env=environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ran.stderr == ""
        assert ran.stdout.startswith(answer)


def test_every_shell_has_a_script() -> None:
    assert set(SCRIPTS) == set(Shell)
