"""Folders that a stranger made: read within bounds, or refused with a TapeError."""

from __future__ import annotations

import os
import random
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from calltape_analyzer import TapeError, open_tape
from calltape_analyzer.converting import (
    read_safetensors_folder,
    write_safetensors_folder,
)
from tests.analyzer.cli.commands import run
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
def test_a_file_that_is_not_regular_is_rejected(
    folder: Path, name: str, way: Callable[[Path], None]
) -> None:
    way(folder / name)
    error = refused(read_safetensors_folder, folder)
    assert str(folder) in str(error)
    if way in (pipe, link, nowhere, a_folder, device):
        assert "it is not a regular file" in str(error) or "there is no" in str(error)


def test_the_command_is_bounded(folder: Path) -> None:
    (folder / "call_00000000.json").write_text("[" + "1," * 30_000_000 + "1]")
    shown = run("convert", folder, "-o", folder.parent / "a.tape")
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
