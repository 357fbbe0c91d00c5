"""Folders that a stranger made: read within bounds, or refused with a TapeError."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, open_tape
from calltape_analyzer.converting import (
    read_flashinfer_dumps,
    read_safetensors_folder,
    write_safetensors_folder,
)
from tests.analyzer.cli.commands import run
from tests.analyzer.converting.test_folders import dump
from tests.fixture_files import FIXTURES

MOST = 250 * 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_tape(FIXTURES / "v1/structures.tape") as tape:
        write_safetensors_folder(tape, tmp_path / "folder")
    return tmp_path / "folder"


def refused(read: Callable[..., int], folder: Path) -> TapeError:
    """The error of a folder that is refused, with little memory."""
    out = folder.parent / "a.tape"
    tracemalloc.start()
    try:
        with pytest.raises(TapeError) as caught:
            read(folder, out)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    assert not out.exists()
    return caught.value


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link(path: Path) -> None:
    outside = path.parent.parent / f"outside_{path.name}"
    shutil.move(path, outside)
    path.symlink_to(outside)


def nowhere(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.parent / "gone")


def a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def hole(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2**40)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def many_values(path: Path) -> None:
    path.write_text('{"a": [' + "[]," * 4_000_000 + "1]}")


def long_number(path: Path) -> None:
    path.write_text('{"a": ' + "9" * 100_000 + "}")


def surrogates(path: Path) -> None:
    path.write_bytes(b'{"\xff\xfe": "\\ud800"}')


WAYS = [
    pipe, link, nowhere, a_folder, device, hole, empty, many_values, long_number, surrogates
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", ["tape.json", "call_00000000.json", "call_00000000.safetensors"])
def test_a_file_that_is_none(folder: Path, name: str, way: Callable[[Path], None]) -> None:
    way(folder / name)
    error = refused(read_safetensors_folder, folder)
    assert str(folder) in str(error)
    if way in (pipe, link, nowhere, a_folder, device):
        assert "it is no file" in str(error) or "there is no" in str(error)


def test_the_command_is_bounded(folder: Path) -> None:
    (folder / "call_00000000.json").write_text("[" + "1," * 30_000_000 + "1]")
    shown = run("convert", folder, "--from", "safetensors", "-o", folder.parent / "a.tape")
    assert shown.code == 1
    assert "Traceback" not in shown.err


def test_changed_bytes_end_in_one_error(folder: Path, tmp_path: Path) -> None:
    """Whatever is changed: it is read, or refused with a TapeError."""
    rng, read = random.Random(7), 0
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))
    values = [b"null", b"-1", b"1e999", b"{}", b"[]", b'"x"', b"18446744073709551616", b"true"]
    for number in range(150):
        path = rng.choice(files)
        before = path.read_bytes()
        data = bytearray(before)
        for _ in range(rng.randint(1, 3)):
            if path.suffix == ".json" and rng.random() < 0.8:
                place = rng.choice(list(re.finditer(rb'-?\d+|"[^"]*"|true|false', data)))
                data[place.start() : place.end()] = rng.choice(values)
            else:
                data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            read_safetensors_folder(folder, tmp_path / f"{number}.tape")
            read += 1
        except TapeError:
            pass
        path.write_bytes(before)
    assert 0 < read < 150


# FlashInfer's dumps: the next three tests go with their reader.


def _named(way: Callable[[Path], None] | str) -> str:
    return way if isinstance(way, str) else way.__name__


@pytest.mark.parametrize("way", [*WAYS, "16 bytes", "a legacy file"], ids=_named)
@pytest.mark.parametrize("name", ["metadata.jsonl", "inputs.pt", "outputs.pt"])
def test_a_dump_that_is_none(tmp_path: Path, name: str, way: Callable[[Path], None] | str) -> None:
    own = dump(tmp_path / "d", 1, {"arg_0": torch.ones(3)}, {"result": torch.ones(3)})
    if way == "16 bytes":
        (own / name).write_bytes(b"\x80\x02}q\x00" + bytes(11))
    elif way == "a legacy file":
        torch.save({"arg_0": torch.ones(3)}, own / name, _use_new_zipfile_serialization=False)
    elif not isinstance(way, str):
        way(own / name)
    error = refused(read_flashinfer_dumps, tmp_path / "d")
    assert str(own) in str(error) or (way, name) == (nowhere, "metadata.jsonl")


def test_tensors_that_take_more_than_their_file(tmp_path: Path) -> None:
    view = torch.ones(20_000).as_strided((10_000, 10_000), (1, 1))
    dump(tmp_path / "d", 1, {"arg_0": view}, None)
    assert refused(read_flashinfer_dumps, tmp_path / "d").kind == "limit"
    own = dump(tmp_path / "e", 1, {"arg_0": torch.zeros(20_000_000)}, None)
    with zipfile.ZipFile(own / "inputs.pt") as parts:
        contents = {name: parts.read(name) for name in parts.namelist()}
    with zipfile.ZipFile(own / "inputs.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in contents.items():
            packed.writestr(name, content)
    del contents
    assert (own / "inputs.pt").stat().st_size < 200_000
    assert "packed" in str(refused(read_flashinfer_dumps, tmp_path / "e"))


@pytest.mark.parametrize("name", ["nn", "torch.nn", "ops", "float33", "", "__doc__", "save"])
def test_names_of_dtypes_are_looked_up_in_a_table(tmp_path: Path, name: str) -> None:
    described = {"arg_0": {"type": "torch.dtype", "value": name}}
    dump(tmp_path / "d", 1, {}, None, described=described)
    read_flashinfer_dumps(tmp_path / "d", tmp_path / "a.tape")
    with open_tape(tmp_path / "a.tape") as tape:
        assert json.dumps(repr(tape[0].inputs.args[0])).count("Placeholder") == 1
