"""Promise: what ``bundle`` and ``minimise`` write does nothing but run the model, and prints
nothing that a terminal obeys, whatever the tape says."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from calltape_analyzer import Fact
from calltape_analyzer.foreign_errors import ErrorMeaning
from tests.analyzer.cli.commands import run
from tests.forging.strangers import commanding, escaping, forged_failure
from tests.security.sandbox import Event, watched
from tests.security.vulnerable import VULNERABLE

pytestmark = pytest.mark.integration

MODEL = """
import tempfile
import urllib.request  # the classes that the tape names are loaded

import torch


class Passes(torch.nn.Module):
    def forward(self, *args, **kwargs):
        return args[0]


def build_model():
    return Passes()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "model.py").write_text(MODEL)
    monkeypatch.chdir(made)
    return made


def as_script(tape: Path, folder: Path) -> Path:
    script = folder / "script.py"
    done = run("bundle", tape, "--model", "model:build_model", "-o", script, "--force")
    assert done.code == 0, done.err
    return script


def as_export(tape: Path, folder: Path) -> Path:
    script = folder / "script.py"
    words = ("--model", "model:build_model", "--to", "torch", "-o", script, "--force")
    done = run("bundle", tape, *words)
    assert done.code == 0, done.err
    return script


def as_zip(tape: Path, folder: Path) -> Path:
    bug = folder.parent / "bug.zip"
    words = ("--model-code", folder / "model.py", "-o", bug, "--force")
    done = run("bundle", tape, *words)
    assert done.code == 0, done.err
    with zipfile.ZipFile(bug) as archive:
        archive.extractall(folder)
    return folder / "reproduce.py"


WRITTEN = pytest.mark.parametrize("write", [as_script, as_export, as_zip])


def facts(kinds: Iterable[type] = (Fact, ErrorMeaning)) -> Iterator[Event]:
    """What a fork of an export answers with if its runs fail: facts, which no tape names."""
    for kind in kinds:
        yield "pickle.find_class", str((kind.__module__, kind.__qualname__))
        yield from facts(kind.__subclasses__())


@WRITTEN
def test_a_script_does_nothing_that_the_tape_says(
    write: Callable[[Path, Path], Path], folder: Path
) -> None:
    harmless = write(forged_failure(folder / "harmless.tape", []), folder)
    allowed = (*watched([harmless], folder, allowed=None).events, *facts())
    marker = folder / "RAN_A_COMMAND"
    watch = watched(
        [write(commanding(folder / "a.tape", "touch", str(marker)), folder)], folder,
        allowed=allowed,
    )  # fmt: skip
    assert not marker.exists()
    assert watch.findings == []
    tape = escaping(folder / "b.tape")
    if write is as_zip:  # no redacted tape has such a name of a class
        with pytest.raises(AssertionError, match="nothing was written"):
            write(tape, folder)
        return
    watch = watched([write(tape, folder)], folder, allowed=allowed)
    assert watch.findings == []
    assert "owned" in watch.output, "without text of the tape nothing is shown"


def test_a_traceback_has_nothing_raw(folder: Path) -> None:
    """An exception that nobody handles is printed by Python."""
    script = as_script(escaping(folder / "a.tape"), folder)
    failing = 'raise RuntimeError("\\x1b[31m")'
    text = script.read_text().replace(
        "    model = build_model()\n    with", f"    {failing}\n    with"
    )
    assert failing in text
    script.write_text(text)
    watch = watched([script], folder, allowed=None)
    assert watch.code == 1
    assert "RuntimeError: \\x1b[31m" in watch.output
    assert watch.escapes == ""


# The sandbox itself: what it must report.


def test_the_sandbox_reports_a_vulnerable_script(folder: Path) -> None:
    marker = folder / "RAN_A_COMMAND"
    commanding(folder / "a.tape", "touch", str(marker))
    (folder / "script.py").write_text(VULNERABLE)
    allowed = watched(["-c", "import torch, calltape_analyzer"], folder, allowed=None).events
    watch = watched([folder / "script.py"], folder, allowed=allowed)
    assert [event for event, _ in watch.events] == ["subprocess.Popen"], watch.output
    assert not marker.exists(), "it is reported, and does not happen"


@pytest.mark.parametrize(
    ("code", "event"),
    [
        ("import os; os.system('true')", "os.system"),
        ("import subprocess as s, sys; s.run([sys.executable, '-c', ''])", "subprocess.Popen"),
        ("import os; os.fork() or os._exit(0)", "os.fork"),
        ("import os; os.posix_spawn('/bin/true', ['true'], {})", "os.posix_spawn"),
        ("open('../beside', 'w')", "open"),
        ("import os; os.open('../beside', os.O_CREAT | os.O_WRONLY)", "open"),
        ("import os; os.remove('../beside')", "os.remove"),
        ("import os; os.rename('a', '../beside')", "os.rename"),
        ("import socket; socket.socket()", "socket.__new__"),
        ("import pickle; pickle.loads(b'cos\\nsystem\\n.')", "pickle.find_class"),
    ],
)
def test_the_sandbox_reports(code: str, event: str, folder: Path) -> None:
    watch = watched(["-c", code], folder)
    assert event in [one for one, _ in watch.events]
    assert watch.code != 0
    assert not (folder.parent / "beside").exists()


def test_the_sandbox_reports_what_children_do(folder: Path) -> None:
    (folder / "child.py").write_text("import sys\nif sys.argv[1:]: open('../beside', 'w')")
    code = "import subprocess as s, sys; s.run([sys.executable, 'child.py', *sys.argv[1:]])"
    (folder / "parent.py").write_text(code)
    watch = watched(["parent.py", "now"], folder, allowed=None)
    assert (folder.parent / "beside").exists()
    (folder.parent / "beside").unlink()
    parent = [one for one in watch.events if one[0] == "subprocess.Popen"]
    watch = watched(["parent.py", "now"], folder, allowed=parent)
    assert [event for event, _ in watch.events] == ["open"]
    assert not (folder.parent / "beside").exists()


def test_the_sandbox_reports_escapes_and_allows_the_rest(folder: Path) -> None:
    assert watched(["-c", "print('\\x1b[31mred\\u202e')"], folder).escapes == "\x1b\u202e"
    watch = watched(["-c", "open('mine', 'w').write('x'); print('fine\\n\\tä')"], folder)
    assert (watch.code, watch.findings) == (0, [])
