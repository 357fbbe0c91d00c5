"""Files of strangers: nothing in them runs before somebody says that it may."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, TapeError, check, export, load_programs, open_tape, replay
from calltape_analyzer.errors import UsageError
from calltape_analyzer.programs.exported_model import ConditionError
from calltape_analyzer.programs.manifest import MANIFEST
from calltape_analyzer.programs.onnx_model import (
    CHECKS,
    COMPLEX_OUTPUTS,
    check_assertions,
    complex_outputs,
)
from calltape_analyzer.programs.untrusted_files import digest_of
from calltape_recorder import record
from tests.analyzer.cli.commands import run
from tests.analyzer.evil import KINDS, evil


class Adding(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


@pytest.fixture(scope="module")
def tape_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tape") / "a.tape"
    model = Adding()
    with record(model, path):
        for n in (2, 3, 5):
            model(torch.ones(n, 3), torch.ones(n, 3))
    return path


@pytest.fixture(scope="module")
def good(tape_file: Path) -> Path:
    """Programs that were saved by ``calltape``."""
    folder = tape_file.parent / "good"
    with open_tape(tape_file) as tape:
        export(tape, Adding()).save(folder)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def bad(
    request: pytest.FixtureRequest, good: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same directory, with a program that runs a command; the manifest knows its bytes."""
    folder = tmp_path_factory.mktemp("bad") / "programs"
    shutil.copytree(good, folder)
    (program,) = folder.glob("*.pt2")
    evil(program, folder.parent / "marker", request.param)
    manifest = json.loads((folder / MANIFEST).read_text())
    size, digest = digest_of(program)
    for found in manifest["files"]:
        if found["name"] == program.name:
            found.update(size=size, sha256=digest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def marker_of(bad: Path) -> Path:
    return bad.parent / "marker"


def program_of(folder: Path) -> Path:
    return next(folder.glob("*.pt2"))


READERS: dict[str, Callable[[Tape, Path], Any]] = {
    "check of a file": lambda tape, folder: check(tape, program_of(folder)),
    "check of a name": lambda tape, folder: check(tape, str(program_of(folder))),
    "replay of a file": lambda tape, folder: replay(tape, program_of(folder)),
    "replay of a directory": lambda tape, folder: replay(tape, folder),
    "load_programs": lambda _, folder: load_programs(folder),
    "load_programs and verify": lambda tape, folder: load_programs(folder).verify(tape),
}


@pytest.mark.parametrize("reader", READERS)
def test_nothing_of_a_stranger_runs(reader: str, bad: Path, tape_file: Path) -> None:
    with open_tape(tape_file) as tape, pytest.raises(UsageError, match="is code") as caught:
        READERS[reader](tape, bad)
    assert "trusted=True" in str(caught.value)
    assert caught.value.path == str(program_of(bad))
    assert not marker_of(bad).exists()


@pytest.mark.parametrize(("options", "of"), [(["--dry-run"], "file"), ([], "file"), ([], "dir")])
def test_the_prompt_says_why_in_one_line(
    options: list[str], of: str, bad: Path, tape_file: Path
) -> None:
    code, out, err = run("replay", tape_file, program_of(bad) if of == "file" else bad, *options)
    assert (code, out) == (1, "")
    assert err.startswith(f"calltape: {program_of(bad)}: a .pt2 is code")
    assert "--trust" in err
    assert err.count("\n") == 1
    assert not marker_of(bad).exists()


def test_check_of_a_directory_needs_no_trust(bad: Path, tape_file: Path) -> None:
    code, out, err = run("replay", tape_file, bad, "--dry-run")
    assert (code, err) == (0, "")
    assert "3 of 3 recorded calls would be accepted" in out
    assert not marker_of(bad).exists()


def test_these_programs_do_run_a_command_once_they_are_trusted(
    bad: Path, tape_file: Path, tmp_path: Path
) -> None:
    """Without this, the tests above would prove nothing."""
    folder = tmp_path / "programs"
    shutil.copytree(bad, folder)
    with pytest.raises(TapeError, match="torch cannot load it"):
        load_programs(folder, trusted=True)
    assert marker_of(bad).exists()
    marker_of(bad).unlink()


def test_trusted_programs_are_loaded(good: Path, tape_file: Path) -> None:
    with open_tape(tape_file) as tape:
        assert replay(tape, good, trusted=True).ok
        assert replay(tape, program_of(good), trusted=True).ok
        assert check(tape, program_of(good), trusted=True).ok
        assert load_programs(good, trusted=True).verify(tape).ok
    assert run("replay", tape_file, good, "--trust").code == 0
    assert run("replay", tape_file, program_of(good), "--dry-run", "--trust").code == 0


WITHOUT_TORCH = """
import sys
from calltape_analyzer.cli.verbs import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    code = end.code
assert "torch" not in sys.modules
sys.exit(code)
"""


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_check_of_saved_programs_imports_no_torch(
    option: list[str], good: Path, tape_file: Path
) -> None:
    command = [
        sys.executable,
        "-c",
        WITHOUT_TORCH,
        "replay",
        str(tape_file),
        str(good),
        "--dry-run",
    ]
    command += option
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "3 of 3 recorded calls would be accepted" in result.stdout


def test_check_says_what_running_says(good: Path, tape_file: Path, tmp_path: Path) -> None:
    model = Adding()
    with record(model, tmp_path / "b.tape"):
        for n in (2, 9):
            model(torch.ones(n, 3), torch.ones(n, 3))
        model(torch.ones(4, 2), torch.ones(4, 2))
    with open_tape(tmp_path / "b.tape") as tape:
        said = check(tape, good)
        ran = replay(tape, good, trusted=True)
    assert [row.ok for row in said.rows] == [row.ok for row in ran] == [True, True, False]


@pytest.mark.parametrize("how", ["missing", "link", "pipe", "directory"])
def test_a_program_is_a_file_of_its_directory(how: str, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    shutil.copytree(good, folder)
    program = program_of(folder)
    program.rename(tmp_path / "elsewhere.pt2")
    if how == "link":
        program.symlink_to(tmp_path / "elsewhere.pt2")
    elif how == "pipe":
        os.mkfifo(program)
    elif how == "directory":
        program.mkdir()
    with pytest.raises(TapeError) as caught:
        load_programs(folder, trusted=True)
    assert caught.value.path == str(program)


@pytest.mark.parametrize("how", ["link", "pipe", "large"])
def test_a_manifest_is_a_file_of_bounded_size(how: str, tmp_path: Path, tape_file: Path) -> None:
    if how == "link":
        (tmp_path / MANIFEST).symlink_to("/dev/zero")
    elif how == "pipe":
        os.mkfifo(tmp_path / MANIFEST)
    else:
        with (tmp_path / MANIFEST).open("wb") as file:
            file.truncate(2**40)  # takes no room on the disk
    with open_tape(tape_file) as tape, pytest.raises(TapeError):
        check(tape, tmp_path)


# Data beside an ONNX model.


def onnx_model(location: str | None, where: str = "initializer") -> Any:
    """A model with a tensor whose data are said to be at ``location``."""
    from onnx import TensorProto, helper

    kept = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 1.0, 1.0])
    if location is not None:
        kept.ClearField("float_data")
        kept.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("length", "12")):
            entry = kept.external_data.add()
            entry.key, entry.value = key, value
    info = helper.make_tensor_value_info
    inputs = [info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    output = info("out", TensorProto.FLOAT, None)
    adding = helper.make_node("Add", ["x", "y"], ["out"])
    if where == "initializer":
        graph = helper.make_graph([adding], "g", inputs, [output], [kept])
    elif where == "attribute":
        constant = helper.make_node("Constant", [], ["w"], value=kept)
        graph = helper.make_graph([constant, adding], "g", inputs, [output])
    else:
        inner = helper.make_graph([], "inner", [], [info("w", TensorProto.FLOAT, [3])], [kept])
        other = helper.make_graph([], "other", [], [info("w", TensorProto.FLOAT, [3])], [kept])
        branch = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=other)
        graph = helper.make_graph([branch, adding], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old runtimes read any file that they are told to: none is asked."""
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: pytest.fail("opened"))


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("where", ["initializer", "attribute", "subgraph"])
@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "a/../../secret", "link", "inside/link", "C:\\x",
                 "..\\secret", "", ".", "pipe", "circle", "circle/x", "round", "x" * 5000, "\x00"]
)  # fmt: skip
def test_data_outside_of_the_folder_are_refused(
    location: str, where: str, tape_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(bytes(12))
    folder = tmp_path / "model"
    (folder / "inside").mkdir(parents=True)
    (folder / "link").symlink_to("../secret")
    (folder / "inside" / "link").symlink_to("../../secret")
    (folder / "circle").symlink_to("circle")
    (folder / "round").symlink_to("inside/back")
    (folder / "inside" / "back").symlink_to("../round")
    os.mkfifo(folder / "pipe")
    proto = onnx_model(location, where)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with open_tape(tape_file) as tape:
        for target in (folder / "m.onnx", str(folder / "m.onnx"), proto.SerializeToString(), proto):
            with pytest.raises(TapeError) as caught:
                replay(tape, target)
            assert caught.value.kind == "invalid"
        with pytest.raises(TapeError):
            check(tape, folder / "m.onnx")


def test_data_in_the_folder_are_read(tape_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "data").write_bytes(torch.zeros(3).numpy().tobytes())
    (tmp_path / "m.onnx").write_bytes(onnx_model("data").SerializeToString())
    with open_tape(tape_file) as tape:
        assert replay(tape, tmp_path / "m.onnx").ok
        assert check(tape, tmp_path / "m.onnx").ok


@pytest.mark.parametrize("name", ["model.pt", "model.zip", "model.onnx"])
def test_a_file_that_is_no_model_names_what_is_taken(name: str, tmp_path: Path) -> None:
    from calltape_analyzer.programs.untrusted_files import load_onnx_proto

    path = tmp_path / name
    path.write_bytes(b"PK\x03\x04 no model")
    with pytest.raises(TapeError, match=r"Pass an intact \.onnx or \.pt2 file") as caught:
        load_onnx_proto(path)
    assert "tape" not in str(caught.value).replace("calltape", "").replace(str(path), "")


def test_a_pt2_is_one_whatever_the_case_of_its_name() -> None:
    from calltape_analyzer.programs.untrusted_files import is_pt2

    assert is_pt2("MODEL.PT2")
    assert not is_pt2("model.pt")


@pytest.mark.parametrize("text", ["[", "{}", "[" * 100_000, "7", "[[1]]"])
def test_metadata_of_a_stranger_says_nothing(text: str) -> None:
    assert complex_outputs({COMPLEX_OUTPUTS: text}) == frozenset()
    with pytest.raises(ConditionError):
        check_assertions([True, False], {CHECKS: text})
