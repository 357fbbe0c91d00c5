"""``calltape bundle``: one file for a bug report, in which nothing private is, and that runs."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import UsageError, bundle, open_tape, redact
from calltape_analyzer.bundling import pack
from calltape_analyzer.testing.assertion import Updates
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape
from tests.unpacked import readable

SECRET = "SECRETprompt"
CODE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, prompt="none"):
        if len(x) == 3:
            raise ValueError("cannot take 3 rows")
        return x + 1


def build_model():
    return Model()
"""


class Model(torch.nn.Module):
    def forward(self, x: Any, prompt: str = "none") -> Any:
        return x + 1


@pytest.fixture
def tape_path(tmp_path: Path) -> Path:
    calls: list[Any] = [
        Recorded(
            (torch.rand(rows, 7),), {"prompt": f"{SECRET} {rows}"}, outputs=torch.rand(rows, 7)
        )
        for rows in (2, 4, 5)
    ]
    error = ("builtins:ValueError", f"{SECRET} cannot take 3 rows")
    calls.insert(1, Recorded((torch.rand(3, 7),), {"prompt": SECRET}, error=error))
    return write_tape(tmp_path / f"{SECRET}.tape", calls, target=Model(), producer={"host": SECRET})


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(CODE)
    return path


@pytest.mark.integration
def test_a_bundle_runs_in_an_empty_folder(tape_path: Path, code: Path, tmp_path: Path) -> None:
    out = tmp_path / "bug.zip"
    result = run("bundle", tape_path, "--model-code", code, "-o", out)
    assert result.code == 0, result.err
    assert "model.py goes in as it is" in result.out
    assert stat.S_IMODE(os.stat(out).st_mode) == 0o600
    folder = tmp_path / "empty"
    folder.mkdir()
    with zipfile.ZipFile(out) as archive:
        assert set(archive.namelist()) == {
            "bug.tape", "reproduce.py", "report.md", "versions.json", "model.py"
        }  # fmt: skip
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        archive.extractall(folder)
    for file in folder.iterdir():
        assert SECRET.encode() not in readable(file.read_bytes()), file
        assert str(tmp_path).encode() not in readable(file.read_bytes()), file
    assert set(json.loads((folder / "versions.json").read_text())) == {"here", "recorded_with"}
    assert "ValueError" in (folder / "report.md").read_text()
    done = subprocess.run(
        [sys.executable, folder / "reproduce.py"], capture_output=True, text=True, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it raised builtins:ValueError" in done.stdout
    assert "1 of 1 recorded call" in done.stdout


def test_a_number_at_a_key_with_brackets_is_not_told(tmp_path: Path) -> None:
    """Neither of a tape that is redacted here, nor of one whose redaction kept it."""
    calls = [
        Recorded((torch.rand(2, 7),), {"prompt": {"k[0]": number}}) for number in (5551234, 5551299)
    ]
    path = write_tape(tmp_path / "a.tape", calls, target=Model())
    for name, options in (("a", {}), ("b", {"keep": ["*"]})):
        with open_tape(path) as tape:
            bundle(tape, tmp_path / f"{name}.zip", redaction=options)
        with zipfile.ZipFile(tmp_path / f"{name}.zip") as archive:
            for part in ("report.md", "reproduce.py"):
                assert b"55512" not in archive.read(part), (name, part)


def test_what_is_too_large_is_not_there(tape_path: Path, code: Path, tmp_path: Path) -> None:
    (tmp_path / "large.py").write_bytes(os.urandom(9 * 2**20))
    (tmp_path / "more.py").write_bytes(os.urandom(2 * 2**20))
    out = tmp_path / "bug.zip"
    parts = ("--model-code", tmp_path / "large.py", "--model-code", tmp_path / "more.py")
    result = run("bundle", tape_path, *parts, "-o", out)
    assert (result.code, result.out) == (1, "")
    assert "at most 10,485,760" in result.err
    assert "large.py 9,4" in result.err
    assert "Leave calls out" in result.err
    assert not [path for path in tmp_path.iterdir() if "bug.zip" in path.name]


def test_files_of_equal_names_are_kept_apart(tape_path: Path, code: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "model.py").write_text("")
    (tmp_path / "reproduce.py").write_text("")
    out = tmp_path / "bug.zip"
    with open_tape(tape_path) as tape:
        for given in ([code, tmp_path / "b" / "model.py"], [tmp_path / "reproduce.py"]):
            with pytest.raises(UsageError, match="would have the name"):
                bundle(tape, out, model_code=given)
    assert run("bundle", tape_path, "--model-code", tmp_path / "none.py", "-o", out).code == 1
    out.write_text("mine")
    result = run("bundle", tape_path, "--model-code", code, "-o", out)
    assert result.code == 1
    assert "--force" in result.err
    assert out.read_text() == "mine"


def test_equal_parts_make_equal_files(tape_path: Path, tmp_path: Path) -> None:
    made = []
    for name in ("a.zip", "b.zip"):
        pack(tmp_path / name, tape_path, {"reproduce.py": "x"}, {"model.py": b"y"})
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]


def bundled_tape(out: Path, folder: Path) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(out) as archive:
        return Path(archive.extract("bug.tape", folder))


def values(path: Path) -> list[Any]:
    with open_tape(path) as tape:
        return [call.inputs.args[0] for call in tape.calls]


def test_a_tape_that_is_redacted_goes_in_as_it_is(tape_path: Path, tmp_path: Path) -> None:
    """A value that stayed is one that somebody named."""
    given = tmp_path / "give.tape"
    assert run("redact", tape_path, "-o", given, "--keep", "x").code == 0
    result = run("bundle", given, "-o", tmp_path / "bug.zip")
    assert result.code == 0, result.err
    assert "the tape is redacted already: its calls go in as they are" in result.out
    copied = bundled_tape(tmp_path / "bug.zip", tmp_path / "a")
    for before, after in zip(values(given), values(copied), strict=True):
        assert torch.equal(before, after)
    with open_tape(given) as tape:
        again = bundle(tape, tmp_path / "more.zip", redaction={"shapes_only": ["x"]})
    assert "is redacted once more because options ask for it" in str(again)


def test_a_part_of_a_redacted_tape_goes_in_without_names_of_files(
    tape_path: Path, tmp_path: Path
) -> None:
    given = tmp_path / "give.tape"
    assert run("redact", tape_path, "-o", given, "--keep", "x").code == 0
    part = tmp_path / f"{SECRET}2.tape"
    assert run("filter", given, "-o", part, "--calls", "0..2").code == 0
    part.rename(tmp_path / f"{SECRET}3.tape")
    result = run(
        "bundle", tmp_path / f"{SECRET}3.tape", "--calls", "0..1", "-o", tmp_path / "bug.zip"
    )
    assert "its calls go in as they are" in result.out
    copied = bundled_tape(tmp_path / "bug.zip", tmp_path / "a")
    assert len(values(copied)) == 2
    assert SECRET.encode() not in readable(copied.read_bytes())


def test_a_tape_into_which_something_else_came_is_redacted(tape_path: Path, tmp_path: Path) -> None:
    given = tmp_path / "give.tape"
    with open_tape(tape_path) as tape:
        redact(tape.only(calls="0..1"), given)
    calls = [Recorded((torch.rand(2, 7),), {"prompt": SECRET})]
    other = write_tape(tmp_path / "other.tape", calls, target=Model(), tape_id=b"another id of 16")
    merged = tmp_path / "merged.tape"
    assert run("merge", given, other, "-o", merged).code == 0
    for paths in ([merged], [given, other]):
        out = tmp_path / "bug.zip"
        result = run("bundle", *paths, "-o", out, "--force")
        assert result.code == 0, result.err
        assert "already" not in result.out
        copied = bundled_tape(out, tmp_path / f"folder{len(list(tmp_path.iterdir()))}")
        assert SECRET.encode() not in readable(copied.read_bytes())


@pytest.mark.integration
def test_a_tape_that_may_not_show_its_failure_any_more(
    tape_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small.tape"
    count = "import sys, calltape_analyzer as c; sys.exit(len(c.open_tape(sys.argv[1])) > 0)"
    check = shlex.join([sys.executable, "-c", count])
    made = run("minimise", tape_path, "-o", small, "--check", check)
    assert made.code == 0, made.err
    result = run("bundle", small, "-o", tmp_path / "bug.zip")
    assert "made small to show a failure, and values that this needs may" in result.out
    given = tmp_path / "given.tape"
    assert run("redact", tape_path, "-o", given).code == 0
    made = run("minimise", given, "-o", small, "--check", check, "--force")
    assert made.code == 0, made.err
    result = run("bundle", small, "-o", tmp_path / "bug.zip", "--force")
    assert "its calls go in as they are" in result.out
    assert "made small" not in result.out


def test_what_the_script_needs_is_said(tape_path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("def make(): ...")
    out = tmp_path / "bug.zip"
    result = run("bundle", tape_path, "--model-code", other, "-o", out)
    assert (
        "no file of --model-code has a function build_model(): reproduce.py has one" in result.out
    )
    result = run("bundle", tape_path, "--model-code", other, "--model", "other:make", "-o", out,
                "--force")  # fmt: skip
    assert "build_model" not in result.out
    result = run("bundle", tape_path, "--model", "elsewhere:make", "-o", out, "--force")
    assert "reproduce.py imports elsewhere, which is not in the bundle" in result.out


class Refusing(torch.nn.Module):
    def forward(self, x: Any, prompt: str = "none") -> Any:
        raise RuntimeError(f"no {SECRET} here")


def test_new_outcomes_of_a_redacted_tape_are_redacted(tape_path: Path, tmp_path: Path) -> None:
    """`pytest --calltape-update` writes what a model says today."""
    given = tmp_path / "give.tape"
    assert run("redact", tape_path, "-o", given, "--keep", "x").code == 0
    updates = Updates()
    with open_tape(given) as tape:
        updates.replay(tape, Refusing())
    updates.finish(write=True)
    updates.close()
    assert SECRET.encode() in readable(given.read_bytes())
    with open_tape(given) as tape:
        assert tape.redacted == "part"
    result = run("bundle", given, "-o", tmp_path / "bug.zip")
    assert result.code == 0, result.err
    assert "already" not in result.out
    copied = bundled_tape(tmp_path / "bug.zip", tmp_path / "a")
    assert SECRET.encode() not in readable(copied.read_bytes())


def test_what_a_redaction_kept_is_said_and_later_words_do_not_go_in(
    tape_path: Path, tmp_path: Path
) -> None:
    given, part = tmp_path / "give.tape", tmp_path / "part.tape"
    assert run("redact", tape_path, "-o", given, "--keep", "prompt").code == 0
    assert run("filter", given, "-o", part, "--drop", f"{SECRET}_of_a_project").code == 0
    result = run("bundle", part, "-o", tmp_path / "bug.zip")
    assert "that redaction kept " in result.out
    assert "prompt" in result.out
    copied = bundled_tape(tmp_path / "bug.zip", tmp_path / "a")
    assert f"{SECRET}_of_a_project".encode() not in readable(copied.read_bytes())
    given.unlink()
    assert run("redact", tape_path, "-o", given).code == 0
    result = run("bundle", given, "-o", tmp_path / "bug.zip", "--force")
    assert "that redaction kept" not in result.out
