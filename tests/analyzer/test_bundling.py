"""``calltape bundle``: one file for a bug report, in which nothing private is, and that runs."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import UsageError, bundle, open_tape
from calltape_analyzer.bundling import _pack
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
    found = run("bundle", tape_path, "--model-code", code, "-o", out)
    assert found.code == 0, found.err
    assert "model.py goes in as it is" in found.out
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


def test_what_is_too_large_is_not_there(tape_path: Path, code: Path, tmp_path: Path) -> None:
    (tmp_path / "large.py").write_bytes(os.urandom(9 * 2**20))
    (tmp_path / "more.py").write_bytes(os.urandom(2 * 2**20))
    out = tmp_path / "bug.zip"
    parts = ("--model-code", tmp_path / "large.py", "--model-code", tmp_path / "more.py")
    found = run("bundle", tape_path, *parts, "-o", out)
    assert (found.code, found.out) == (1, "")
    assert "at most 10,485,760" in found.err
    assert "large.py 9,4" in found.err
    assert "Leave calls out" in found.err
    assert not [one for one in tmp_path.iterdir() if "bug.zip" in one.name]


def test_names_that_meet_and_files_that_are_none(
    tape_path: Path, code: Path, tmp_path: Path
) -> None:
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
    found = run("bundle", tape_path, "--model-code", code, "-o", out)
    assert found.code == 1
    assert "--force" in found.err
    assert out.read_text() == "mine"


def test_equal_parts_make_equal_files(tape_path: Path, tmp_path: Path) -> None:
    made = []
    for name in ("a.zip", "b.zip"):
        _pack(tmp_path / name, tape_path, {"reproduce.py": "x"}, {"model.py": b"y"})
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]
