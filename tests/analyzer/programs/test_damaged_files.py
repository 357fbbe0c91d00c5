"""Saved programs whose files were damaged, or replaced by others."""

from __future__ import annotations

import base64
import copy
import json
import random
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    Tape,
    TapeError,
    check,
    load_programs,
    open_tape,
)
from tests.analyzer.exported import made

MANIFEST = "manifest.json"


@pytest.fixture(scope="module")
def traffic(saved: Path) -> Tape:
    """The calls that the saved programs are for."""
    return open_tape(saved.parent / "calls.tape")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a merged model, with completions, constants and conditions."""
    from tests.analyzer.exporting.attending import STEPS, Attending, ToyCache

    folder = tmp_path_factory.mktemp("programs")
    made(folder, Attending(), STEPS, classes=[ToyCache]).save(folder / "saved")
    return folder / "saved"


def paths_of(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items: Any = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document[:4])
    for key, value in items:
        yield (*at, key)
        yield from paths_of(value, (*at, key))


OTHERS: tuple[Any, ...] = (None, True, -1, 10**30, 1.5, "text", "", [], ["a"], [[]], {}, {"a": 1})


@pytest.mark.integration
def test_every_damage_of_a_manifest_is_a_tape_error(saved: Path, traffic: Tape) -> None:
    whole = json.loads((saved / MANIFEST).read_text())
    failed: dict[str, str] = {}
    for at in list(paths_of(whole)):
        for other in OTHERS:
            document = copy.deepcopy(whole)
            place = document
            for key in at[:-1]:
                place = place[key]
            place[at[-1]] = other
            failed |= _failing(saved, json.dumps(document), traffic, f"{at} = {other!r}")
        document = copy.deepcopy(whole)
        place = document
        for key in at[:-1]:
            place = place[key]
        del place[at[-1]]
        failed |= _failing(saved, json.dumps(document), traffic, f"without {at}")
    (saved / MANIFEST).write_text(json.dumps(whole))
    shown = list(failed.items())[:40]
    assert not failed, "\n".join(f"{what}: {error}" for what, error in shown)


def test_every_beginning_of_a_manifest_is_a_tape_error(saved: Path, traffic: Tape) -> None:
    whole = (saved / MANIFEST).read_text()
    failed: dict[str, str] = {}
    for length in range(0, len(whole), max(len(whole) // 150, 1)):
        failed |= _failing(saved, whole[:length], traffic, f"{length} characters")
    (saved / MANIFEST).write_text(whole)
    assert not failed


def test_damage_of_what_is_packed_is_a_tape_error(saved: Path, traffic: Tape) -> None:
    whole = json.loads((saved / MANIFEST).read_text())
    chance = random.Random(0)
    packed = [
        at
        for at in paths_of(whole)
        if at[-1] in ("structure", "scalars", "key", "key_constants", "constants")
    ]
    packed = [at for at in packed if isinstance(_at(whole, at), str)]
    assert len(packed) >= 8
    failed: dict[str, str] = {}
    for at in packed * 25:
        document = copy.deepcopy(whole)
        data = bytearray(base64.b64decode(_at(document, at)))
        data[chance.randrange(len(data))] = chance.randrange(256)
        _at(document, at[:-1])[at[-1]] = base64.b64encode(data).decode()
        failed |= _failing(saved, json.dumps(document), traffic, f"{at} = {bytes(data)!r}")
    (saved / MANIFEST).write_text(json.dumps(whole))
    assert not failed, "\n".join(f"{what}: {error}" for what, error in failed.items())


def _at(document: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        document = document[key]
    return document


def _failing(folder: Path, text: str, traffic: Tape, what: str) -> dict[str, str]:
    (folder / MANIFEST).write_text(text)
    try:
        check(traffic, folder)
    except TapeError as error:
        return {} if str(error).isprintable() else {what: repr(str(error))}
    except Exception as error:
        return {what: f"{type(error).__name__}: {error}"}
    return {}


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", "\x00", '{"format": "calltape-programs"}', "[" * 100_000]
)
def test_what_is_no_manifest_is_a_tape_error(text: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(TapeError):
        load_programs(tmp_path, trusted=True)


def test_fields_that_are_missing_take_no_memory(tmp_path: Path) -> None:
    """The error of pydantic for each missing field holds a copy of all that is there."""
    values = "[" + "[]," * 100_000 + "[]]"
    text = f'{{"format": "calltape-programs", "version": 1, "other": {values}}}'
    (tmp_path / MANIFEST).write_text(text)
    tracemalloc.start()
    try:
        with pytest.raises(TapeError, match="signature is missing"):
            load_programs(tmp_path, trusted=True)
        assert tracemalloc.get_traced_memory()[1] < 30 * 2**20
    finally:
        tracemalloc.stop()


def test_manifest_that_is_no_text_is_a_tape_error(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(TapeError, match=MANIFEST):
        load_programs(tmp_path, trusted=True)


@pytest.mark.parametrize("where", ["nowhere", "empty", "file"])
def test_directory_without_programs_is_not_found(where: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(TapeError) as caught:
        load_programs(tmp_path / where, trusted=True)
    assert caught.value.kind in ("not_found", "damaged")


@pytest.mark.parametrize(
    "file", ["../secret.pt2", "/etc/passwd", "..", ".", "", "a/b.pt2", "x\x00y"]
)
def test_files_outside_of_the_directory_are_never_opened(
    file: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(saved, tmp_path / "saved")
    manifest = json.loads((saved / MANIFEST).read_text())
    shutil.copy(saved / manifest["programs"][0]["file"], tmp_path / "secret.pt2")
    manifest["programs"][0]["file"] = file
    (tmp_path / "saved" / MANIFEST).write_text(json.dumps(manifest))
    monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(TapeError):
        load_programs(tmp_path / "saved", trusted=True)


def test_another_version_is_told_apart_from_damage(saved: Path, tmp_path: Path) -> None:
    manifest = json.loads((saved / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(TapeError) as caught:
        load_programs(tmp_path, trusted=True)
    assert caught.value.kind == "version"


@pytest.mark.parametrize("what", ["missing", "empty", "truncated", "text"])
def test_damaged_program_is_a_tape_error(what: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "saved")
    (program,) = (tmp_path / "saved").glob("*.pt2")
    whole = program.read_bytes()
    program.unlink()
    if what != "missing":
        program.write_bytes({"empty": b"", "truncated": whole[:2000], "text": b"no zip"}[what])
    with pytest.raises(TapeError) as caught:
        load_programs(tmp_path / "saved", trusted=True)
    assert caught.value.kind == ("not_found" if what == "missing" else "damaged")
    assert caught.value.path == str(program)
