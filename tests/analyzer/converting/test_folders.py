"""Folders of safetensors, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from calltape_analyzer import TapeError, UsageError, open_tape
from calltape_analyzer.converting import (
    read_safetensors_folder,
    write_safetensors_folder,
)
from calltape_schema.end import Coverage
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import facts_of
from tests.fixture_files import FIXTURES, WITH_CALLS


def values_of(call: Any) -> tuple[str, list[bytes | None]]:
    """The record of a call, and the bytes of its leaves: they may stand in another order."""
    facts = facts_of(call).model_copy(update={"blob": None})
    sides = [("inputs", call.record.inputs), ("outputs", call.record.outputs)]
    found = [
        call.stored(side, leaf)
        for side, tree in sides if tree is not None
        for leaf in range(len(tree.facts()))
    ]  # fmt: skip
    return repr(facts), [None if one is None else bytes(one) for one in found]


@pytest.mark.parametrize("path", WITH_CALLS, ids=lambda path: path.stem)
def test_every_golden_tape_goes_there_and_back(path: Path, tmp_path: Path) -> None:
    with open_tape(path, verify=True) as tape:
        assert write_safetensors_folder(tape, tmp_path / "folder") == len(tape)
        if not len(tape):
            with pytest.raises(UsageError, match="no files of calls"):
                read_safetensors_folder(tmp_path / "folder", tmp_path / "back.tape")
            return
        read_safetensors_folder(tmp_path / "folder", tmp_path / "back.tape")
        with open_tape(tmp_path / "back.tape", verify=True) as back:
            assert back.damage == []
            assert [values_of(c) for c in back.calls] == [values_of(c) for c in tape.calls]
            assert back.target == tape.target
            assert back.manifest.tape == tape.manifest.tape
            steps = [step.verb for step in back.manifest.history or ()]
            assert steps[-1] == "convert"


def test_the_tensors_are_readable_by_safetensors(tmp_path: Path) -> None:
    with open_tape(FIXTURES / "v1/structures.tape") as tape:
        write_safetensors_folder(tape, tmp_path / "folder")
        first = load_file(tmp_path / "folder/call_00000000.safetensors")
        assert torch.equal(first["kwargs.input_ids"], tape[0].inputs.kwargs["input_ids"])


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with open_tape(FIXTURES / "v1/structures.tape") as tape:
        write_safetensors_folder(tape, tmp_path / "folder")
    file = tmp_path / "folder/call_00000000.safetensors"
    found = load_file(file)
    del found["kwargs.input_ids"]
    save_file(found, file)
    with pytest.raises(TapeError, match=r"lacks: kwargs\.input_ids") as caught:
        read_safetensors_folder(tmp_path / "folder", tmp_path / "a.tape")
    assert caught.value.kind == "invalid"
    assert "copy the folder again" in caught.value.advice


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    with open_tape(FIXTURES / "v1/structures.tape") as tape:
        write_safetensors_folder(tape, tmp_path / "folder")
    found = [tmp_path / "folder", *(tmp_path / "folder").iterdir()]
    assert len(found) > 2
    for path in found:
        expected = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == expected, path


def test_a_number_is_read_from_a_file_name_with_dots(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file({"x": torch.ones(2)}, folder / "model.0001.safetensors")
    save_file({"other": torch.ones(3)}, folder / "model.safetensors")
    assert read_safetensors_folder(folder, tmp_path / "a.tape") == 1
    with open_tape(tmp_path / "a.tape") as tape:
        assert list(tape.find("1").inputs.kwargs) == ["x"]


def test_tensors_without_a_description_become_keyword_arguments(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    save_file({"x": x, "outputs.y": x + 1}, tmp_path / "sample_0007.safetensors")
    save_file({"x": x[:1]}, tmp_path / "sample_0010.safetensors")
    assert read_safetensors_folder(tmp_path, tmp_path / "a.tape") == 2
    with open_tape(tmp_path / "a.tape", verify=True) as tape:
        assert [call.number for call in tape.calls] == [7, 10]
        assert torch.equal(tape[0].inputs.kwargs["x"], x)
        assert torch.equal(tape[0].outputs["y"], x + 1)
        assert tape[1].record.outputs is None
        # nobody knows what else there was
        unknown = {"unknown (not in the files that the tape was made of)": 9}
        assert tape.coverage == Coverage(seen=11, kept=2, dropped=unknown, at_least=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("call_00000000.json", "{"),
        ("call_00000000.json", "[1]"),
        ("call_00000000.json", "[" * 100_000),
        ("call_00000000.json", '{"$bytes": "x"}'),
        ("call_00000000.json", '{"inputs": {"structure": 1, "leaves": []}}'),
        ("call_00000000.safetensors", "nothing"),
        ("call_00000000.safetensors", "\x08" + "\0" * 7 + "{}      "),
        ("tape.json", "{}"),
    ],
)
def test_a_folder_of_a_stranger_is_rejected_and_leaves_no_tape(
    tmp_path: Path, name: str, content: str
) -> None:
    folder = tmp_path / "folder"
    with open_tape(FIXTURES / "v1/structures.tape") as tape:
        write_safetensors_folder(tape, folder)
    (folder / name).write_text(content)
    with pytest.raises(TapeError):
        read_safetensors_folder(folder, tmp_path / "a.tape")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_command_goes_there_and_back(tmp_path: Path) -> None:
    source = FIXTURES / "v1/structures.tape"
    assert run("convert", source, "-o", tmp_path / "f").code == 0
    back = tmp_path / "back.tape"
    assert run("convert", tmp_path / "f", "-o", back).code == 0
    with open_tape(source) as tape, open_tape(back) as made:
        told = [[repr(facts_of(call)) for call in one] for one in (made, tape)]
        assert told[0] == told[1]
    assert run("convert", tmp_path / "none", "-o", back).code == 1
    again = run("convert", tmp_path / "f", "-o", back)
    assert again.code != 0
    assert "or pass --force" in again.err
    assert run("convert", tmp_path / "f", "-o", back, "--force").code == 0
    there = run("convert", back, "-o", tmp_path / "f")
    assert there.code != 0
    assert "name another place" in there.err.lower()
    assert "force" not in there.err


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("a.tape", ("--calls", "0")),
        ("a.tape.gz", ("--variant", "0")),
        ("a.tape", ("--target", "Model")),
        ("folder", ("--force",)),
    ],
)
def test_an_option_without_use_is_rejected(
    tmp_path: Path, out: str, words: tuple[str, ...]
) -> None:
    source = FIXTURES / "v1/structures.tape" if out == "folder" else tmp_path
    result = run("convert", source, *words, "-o", tmp_path / out)
    assert result.code == 2
    what = "folder" if out == "folder" else "tape"
    assert f"{words[0]} has no effect on a new {what}" in result.err
    assert not list(tmp_path.iterdir())


def test_a_tape_is_made_of_one_folder(tmp_path: Path) -> None:
    result = run("convert", tmp_path, tmp_path, "-o", tmp_path / "a.tape")
    assert result.code == 2
    assert "a tape is made of one folder" in result.err
