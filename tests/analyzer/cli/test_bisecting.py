"""``calltape replay --bisect``: the commands of docs/bisecting.md find the commit that broke a
model in a repository, and its exit codes are those of ``git bisect run``."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import record
from tests.analyzer.cli.commands import process, run
from tests.analyzer.cli.models import MODULE
from tests.analyzer.tape.changes import flip, member_list
from tests.analyzer.tapes import Recorded, write_tape

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/bisecting.md").read_text()

MODEL = """
import time

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        {line}
        return x * 2


def model():
    return Model()
"""
BROKEN = {
    "Another value": "x = x + (x.shape[0] == 5)",
    "An exception": "assert x.shape[0] != 5",
    "Slowness": "time.sleep(0.7 * (x.shape[0] == 5))",
}


def commands(section: str) -> list[str]:
    """The commands in a section of the page."""
    part = re.search(rf"^## {section}\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    assert part is not None, section
    return re.findall(r"^\$ (.*)$", part[1], re.MULTILINE)


def tape_of(path: Path, line: str) -> None:
    """A tape of what the model does with this line in it."""
    scope: dict[str, object] = {"__name__": "house"}
    exec(MODEL.format(line=line), scope)
    model = scope["Model"]()  # type: ignore[operator]
    with record(model, path):
        for rows in (4, 5):
            try:
                model(torch.ones(rows, 3))
            except AssertionError:
                continue


class Repository:
    """A repository with a model; ``git`` and ``calltape`` are on its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        scripts = folder.parent / "bin"
        scripts.mkdir()
        command = scripts / "calltape"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m calltape_analyzer "$@"\n')
        command.chmod(0o755)
        paths = [str(Path(entry).resolve()) for entry in sys.path if entry]
        self.environment = {
            **os.environ,
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
        }  # fmt: skip
        folder.mkdir()
        self.run("git init -q -b main")

    def run(self, command: str) -> str:
        done = subprocess.run(
            shlex.split(command), cwd=self.folder, env=self.environment, check=False,
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def commit(self, text: str, message: str) -> None:
        (self.folder / "house.py").write_text(text)
        self.run("git add house.py")
        self.run(f"git commit -q --allow-empty -m '{message}'")


@pytest.mark.integration
@pytest.mark.skipif(not shutil.which("git"), reason="no git here")
@pytest.mark.parametrize("section", BROKEN)
def test_the_page_finds_the_commit(section: str, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    fine, wrong = MODEL.format(line="pass"), MODEL.format(line=BROKEN[section])
    repository.commit(fine, "one")
    repository.run("git tag v1")
    repository.commit("import no_such_module\n", "cannot be tested")
    repository.commit(fine + "\n\n", "four")
    repository.commit(wrong, "the culprit")
    repository.commit(wrong + "\n\n", "seven")
    tape_of(repository.folder / "bug.tape", "pass")
    tape_of(repository.folder / "crash.tape", BROKEN["An exception"])
    said = "".join(map(repository.run, commands(section)))
    first = re.search(r"^(\w+) is the first bad commit", said, re.MULTILINE)
    assert first is not None, said
    assert repository.run(f"git log -1 --format=%s {first[1]}").strip() == "the culprit"


def test_the_page_has_a_section_for_each() -> None:
    for section in BROKEN:
        assert [one.split()[:3] for one in commands(section)] == [
            ["git", "bisect", "start"], ["git", "bisect", "run"], ["git", "bisect", "reset"]
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("classifier", (), 0),
        ("other", (), 1),
        ("classifier", ("--slower-than", "60s"), 0),
        ("classifier", ("--slower-than", "0.000001ms"), 1),
        ("failing", (), 125),  # it cannot be made
        ("absent", (), 125),
        ("text", (), 125),
        ("classifier", ("--calls", "99"), 128),
        ("classifier", ("--slower-than", "soon"), 128),
        ("no form", (), 128),
    ],
)
def test_codes(name: str, options: tuple[str, ...], code: int, classifier_tape: Path) -> None:
    arguments = ("replay", classifier_tape, "--model", f"{MODULE}:{name}", *options)
    assert run(*arguments, "--bisect").code == code


def test_a_model_that_ends_the_process_is_no_good_commit(
    folder: Path, classifier_tape: Path
) -> None:
    source = (folder / f"{MODULE}.py").read_text()
    (folder / f"{MODULE}.py").write_text(f"raise SystemExit(0)\n{source}")
    arguments = ("replay", classifier_tape, "--model", f"{MODULE}:classifier")
    assert run(*arguments, "--bisect").code == 125
    assert run(*arguments).code == 1


def test_without_it_codes_are_as_ever(classifier_tape: Path) -> None:
    base = ("replay", classifier_tape, "--model")
    assert run(*base, f"{MODULE}:failing").code == 1
    assert run(*base, "no form").code == 2
    assert run(*base, f"{MODULE}:classifier", "--slower-than", "soon").code == 2


def test_damage_decides_nothing(classifier_tape: Path, folder: Path) -> None:
    shutil.copy(classifier_tape, folder / "torn.tape")
    blob = [one for one in member_list(classifier_tape) if one.name.startswith("blobs/")][-1]
    flip(folder / "torn.tape", blob.start + blob.size - 1)
    arguments = ("replay", folder / "torn.tape", "--model", f"{MODULE}:classifier")
    assert run(*arguments).code == 3
    code, _, err = run(*arguments, "--bisect")
    assert code == 0
    assert "damaged" in err or "checksum" in err


@pytest.mark.parametrize(("name", "code"), [("classifier", 0), ("other", 1)])
def test_calls_that_are_whole_decide(
    name: str, code: int, classifier_tape: Path, folder: Path
) -> None:
    """Of the damaged call, the record is there and its tensors are not."""
    data = bytearray(classifier_tape.read_bytes())
    with open_tape(classifier_tape) as tape:
        tensor = tape.find(1).inputs.args[0].numpy().tobytes()
    data[data.index(tensor)] ^= 0xFF
    (folder / "torn.tape").write_bytes(data)
    arguments = ("replay", folder / "torn.tape", "--model", f"{MODULE}:{name}")
    assert run(*arguments).code == (code or 3)
    found = run(*arguments, "--bisect")
    assert found.code == code
    assert "the calls there are left out, or could not be tried" in found.out
    assert "checksum" in found.err
    only = run(*arguments, "--calls", 1, "--bisect")
    assert only.code == 125, "nothing is left to test it with"


def test_a_call_that_cannot_be_read_is_no_bad_commit(folder: Path) -> None:
    tape = write_tape(folder / "x.tape", [Recorded(args=(torch.ones(2, 4),))])
    arguments = ("replay", tape, "--model", f"{MODULE}:classifier", "--bisect")
    assert run(*arguments).code == 125  # nothing to compare with
    assert run(*arguments, "--expect", "success").code == 0


def test_a_program_that_is_not_there_may_be_in_another_commit(
    classifier_tape: Path, folder: Path
) -> None:
    assert run("replay", classifier_tape, folder / "no.onnx", "--bisect").code == 125


def test_a_tape_that_is_not_there(folder: Path) -> None:
    (folder / "text.tape").write_text("no tape")
    for name in ("no.tape", "text.tape"):
        found = run("replay", folder / name, "--model", f"{MODULE}:classifier", "--bisect")
        assert found.code == 128
        assert "no commit can be tested" in found.err


@pytest.mark.integration
def test_a_mistyped_option_ends_the_bisection(classifier_tape: Path) -> None:
    arguments = ("replay", str(classifier_tape), "--model", "a:b", "--bisect")
    assert process(*arguments, "--no-such-option").returncode == 128
    assert process(*arguments[:-1], "--no-such-option").returncode == 2
