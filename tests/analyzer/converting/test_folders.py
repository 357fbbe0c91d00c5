"""Folders of safetensors, both ways, and FlashInfer's dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from calltape_analyzer import TapeError, UsageError, open_tape
from calltape_analyzer.converting import (
    read_flashinfer_dumps,
    read_safetensors_folder,
    write_safetensors_folder,
)
from calltape_schema.endings import Coverage
from tests.analyzer.cli.commands import run
from tests.analyzer.converting.permissions import check_private
from tests.fixture_files import FIXTURES

GOLDEN = sorted((FIXTURES / "v1").glob("*.tape"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
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
            assert [repr(c.record) for c in back.calls] == [repr(c.record) for c in tape.calls]
            assert back.target == tape.target
            assert back.manifest.tape == tape.manifest.tape
            steps = [step.verb for step in back.manifest.history or ()]
            assert steps[-1] == "convert"


def test_the_tensors_are_readable_by_safetensors(tmp_path: Path) -> None:
    with open_tape(FIXTURES / "v1/structures.tape") as tape:
        write_safetensors_folder(tape, tmp_path / "folder")
        first = load_file(tmp_path / "folder/call_00000000.safetensors")
        assert torch.equal(first["kwargs.input_ids"], tape[0].inputs.kwargs["input_ids"])


def test_a_tensor_that_is_missing(tmp_path: Path) -> None:
    with open_tape(FIXTURES / "v1/structures.tape") as tape:
        write_safetensors_folder(tape, tmp_path / "folder")
    file = tmp_path / "folder/call_00000000.safetensors"
    found = load_file(file)
    del found["kwargs.input_ids"]
    save_file(found, file)
    with pytest.raises(TapeError, match=r"not: kwargs\.input_ids") as caught:
        read_safetensors_folder(tmp_path / "folder", tmp_path / "a.tape")
    assert caught.value.kind == "invalid"
    assert "copy the folder again" in caught.value.advice


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    with open_tape(FIXTURES / "v1/structures.tape") as tape:
        write_safetensors_folder(tape, tmp_path / "folder")
    check_private(tmp_path / "folder")


def test_dots_in_the_name_of_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file({"x": torch.ones(2)}, folder / "model.0001.safetensors")
    save_file({"other": torch.ones(3)}, folder / "model.safetensors")
    assert read_safetensors_folder(folder, tmp_path / "a.tape") == 1
    with open_tape(tmp_path / "a.tape") as tape:
        assert list(tape.find("1").inputs.kwargs) == ["x"]


def test_tensors_without_a_description(tmp_path: Path) -> None:
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
def test_folders_of_strangers(tmp_path: Path, name: str, content: str) -> None:
    folder = tmp_path / "folder"
    with open_tape(FIXTURES / "v1/structures.tape") as tape:
        write_safetensors_folder(tape, folder)
    (folder / name).write_text(content)
    with pytest.raises(TapeError):
        read_safetensors_folder(folder, tmp_path / "a.tape")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def dump(
    folder: Path, at: int, args: dict[str, Any], outputs: dict[str, Any] | None, *,
    described: dict[str, Any] | None = None, results: dict[str, Any] | None = None,
    form: str = "torch", function: str = "decode", **more: Any,
) -> Path:  # fmt: skip
    """One dump, as FlashInfer 0.6 writes it."""
    timestamp = f"20260131_12000{at}_123"
    own = folder / f"{timestamp}_pid7_{function}_call{at:04d}"
    own.mkdir(parents=True)
    for side, tensors in (("inputs", args), ("outputs", outputs)):
        if tensors and form == "torch":
            torch.save(tensors, own / f"{side}.pt")
        elif tensors:
            save_file(tensors, own / f"{side}.safetensors")
    metadata = {
        "function_name": function, "module": "flashinfer.decode", "call_sequence": at,
        "timestamp": timestamp, "input_metadata": described or {}, "output_metadata": {},
        "function_signature": "(q: torch.Tensor, kv: 'list[int]' = None, *, scale: float = 1.0)",
        "execution_status": "inputs_saved", **more,
    }  # fmt: skip
    lines = [metadata]
    if outputs is not None:
        done = {"execution_status": "completed", "output_metadata": results or {}}
        lines.append({**metadata, **done})
    (own / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return own


@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_flashinfer_dumps_become_a_tape(tmp_path: Path, form: str) -> None:
    q, k = torch.randn(2, 4), torch.randn(3, 4)
    tensor = {"type": "torch.Tensor", "tensor_key": "arg_1__0"}
    pages = {"type": "list", "length": 2, "items": [tensor, 5], "truncated": False}
    described = {
        "arg_1": pages,
        "kwarg_scale": 0.5,
        "kwarg_dtype": {"type": "torch.dtype", "value": "torch.bfloat16"},
        "kwarg_other": {"type": "Plan", "repr": "<Plan>"},
    }
    given = {"arg_0": q, "arg_1__0": k}
    dump(tmp_path / "d", 2, given, {"result": q + 1}, described=described, form=form)
    dump(
        tmp_path / "d", 1, {"arg_0": q}, {"result_0": q, "result_1": k}, form=form,
        described={"arg_1": None},
    )  # fmt: skip
    dump(tmp_path / "d", 3, {"arg_0": q}, None, form=form)
    assert read_flashinfer_dumps(tmp_path / "d", tmp_path / "a.tape") == 3
    with open_tape(tmp_path / "a.tape", verify=True) as tape:
        assert tape.damage == []
        assert tape.target is not None
        assert tape.target.type == "flashinfer.decode:decode"
        assert list(tape.signature.names) == ["q", "kv", "scale"]
        first, second, third = tape.calls
        assert torch.equal(first.inputs.args[0], q)
        assert first.inputs.args[1] is None
        assert all(map(torch.equal, first.outputs, (q, k)))
        args, kwargs = second.inputs
        assert torch.equal(args[1][0], k)
        assert args[1][1] == 5
        assert (kwargs["scale"], kwargs["dtype"]) == (0.5, torch.bfloat16)
        assert type(kwargs["other"]).__name__ == "Placeholder"
        assert torch.equal(second.outputs, q + 1)
        assert third.record.outputs is None
        assert first.time < second.time < third.time


def test_dumps_of_several_functions(tmp_path: Path) -> None:
    q = torch.zeros(2)
    for at, name in enumerate(("decode", "prefill")):
        dump(tmp_path / "d", at, {"arg_0": q}, {"result": q}, function=name)
    with pytest.raises(UsageError, match="2 functions: decode, prefill"):
        read_flashinfer_dumps(tmp_path / "d", tmp_path / "a.tape")
    found = run(
        "convert", tmp_path / "d", "--from", "flashinfer", "--function", "prefill",
        "-o", tmp_path / "a.tape",
    )  # fmt: skip
    assert (found.code, found.err) == (0, "")
    assert "1 call" in found.out


def test_a_folder_without_dumps_says_which_one_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="FLASHINFER_DUMP_DIR"):
        read_flashinfer_dumps(tmp_path, tmp_path / "a.tape")
    dump(tmp_path / "d", 0, {"arg_0": torch.zeros(2)}, None, function="decode")
    with pytest.raises(UsageError, match=r"no dump of prefill.*There are dumps of decode"):
        read_flashinfer_dumps(tmp_path / "d", tmp_path / "a.tape", function="prefill")


class Evil:
    def __reduce__(self) -> Any:
        return (Path("evil").touch, ())


def test_dumps_of_strangers_run_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = dump(tmp_path / "d", 1, {"arg_0": torch.zeros(2)}, None)
    for content in (Evil(), {"arg_0": "text"}, [1]):
        torch.save(content, own / "inputs.pt")
        with pytest.raises(TapeError):
            read_flashinfer_dumps(tmp_path / "d", tmp_path / "a.tape")
    (own / "inputs.pt").write_bytes(b"garbage")
    with pytest.raises(TapeError):
        read_flashinfer_dumps(tmp_path / "d", tmp_path / "a.tape")
    for line in ("", "{", "[]", '{"input_metadata": {"arg_1": 3}}', '{"input_metadata": 3}',
                 '{"input_metadata": {"arg_0": {"type": "torch.Tensor"}}}'):  # fmt: skip
        (own / "inputs.pt").unlink(missing_ok=True)
        (own / "metadata.jsonl").write_text(line)
        with pytest.raises(TapeError):
            read_flashinfer_dumps(tmp_path / "d", tmp_path / "a.tape")
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "a.tape").exists()


def test_the_command_goes_there_and_back(tmp_path: Path) -> None:
    source = FIXTURES / "v1/structures.tape"
    assert run("convert", source, "--to", "safetensors", "-o", tmp_path / "f").code == 0
    back = tmp_path / "back.tape"
    assert run("convert", tmp_path / "f", "--from", "safetensors", "-o", back).code == 0
    with open_tape(source) as tape, open_tape(back) as made:
        assert [repr(c.record) for c in made] == [repr(c.record) for c in tape]
    assert run("convert", tmp_path / "none", "--from", "safetensors", "-o", back).code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--from", "safetensors", "--calls", "0"),
        ("--from", "safetensors", "--variant", "0"),
        ("--from", "safetensors", "--target", "Model"),
        ("--from", "safetensors", "--function", "attention"),
        ("--from", "safetensors", "--model", "model.onnx"),
        ("--from", "flashinfer", "--batched"),
        ("--from", "flashinfer", "--calls", "0"),
        ("--to", "safetensors", "--batched"),
        ("--to", "safetensors", "--model", "model.onnx"),
        ("--to", "onnx", "--function", "attention"),
    ],
)
def test_an_option_without_use_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    source = FIXTURES / "v1/structures.tape" if words[0] == "--to" else tmp_path
    found = run("convert", source, *words, "-o", tmp_path / "out")
    assert found.code == 2
    assert f"{words[2]} has no use with {' '.join(words[:2])}" in found.err
    assert not list(tmp_path.iterdir())
