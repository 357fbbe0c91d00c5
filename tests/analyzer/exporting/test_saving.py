"""Programs on disk: what was saved is what is loaded, and a damaged directory is a TapeError."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import NoVariant, TapeError, export, load_programs
from calltape_analyzer.errors import UsageError

from .helping import Call, assert_as_module, call, made, taped
from .test_arguments import ARGUMENTS, CLASSES, Batch, OfBatch, Returns, t
from .test_attempts import Branching, Untraced

MANIFEST = "manifest.json"


FAST = ("a dict in any order of keys", "a cache", "members of *args", "an int", "an enum")


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.integration) for n in ARGUMENTS]
)
def test_saved_programs_take_what_they_took(name: str, tmp_path: Path) -> None:
    cls, calls, unseen = ARGUMENTS[name]
    module = cls()
    tape = taped(tmp_path, module, calls, classes=CLASSES)
    programs = export(tape, module)
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", classes=CLASSES)
    assert list(loaded) == list(programs)
    assert_as_module(loaded, module, [*calls, *unseen])
    assert loaded.verify(tape).ok


@pytest.mark.parametrize("kind", ["dict", "dataclass", "tuple", "sizes", "enum", "keys", "view"])
def test_saved_programs_return_what_they_returned(kind: str, tmp_path: Path) -> None:
    module = Returns(kind)
    made(tmp_path, module, [call(t(n, 3)) for n in (4, 6)], classes=CLASSES).save(
        tmp_path / "saved"
    )
    assert_as_module(load_programs(tmp_path / "saved", classes=CLASSES), module, [call(t(5, 3))])


def test_conditions_and_what_is_missing_are_kept(tmp_path: Path) -> None:
    module = Branching()
    programs = made(tmp_path, module, [call(t(n, 3)) for n in (2, 3, 7, 9)])
    programs.missing["other"] = "because"
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved")
    assert loaded.missing == {"other": "because"}
    for name, program in programs.items():
        assert loaded[name].conditions == program.conditions
        assert loaded[name].notes == program.notes
    assert_as_module(loaded, module, [call(t(4, 3)), call(t(20, 3))])


def test_sizes_that_a_program_is_kept_to_are_kept(tmp_path: Path) -> None:
    module = Untraced()
    export(taped(tmp_path, module, [call(t(n, 3)) for n in (2, 5)]), module).save(
        tmp_path / "saved"
    )
    loaded = load_programs(tmp_path / "saved")
    assert_as_module(loaded, module, [call(t(2, 3)), call(t(5, 3))])
    for n in (1, 3, 4, 6, 9):
        with pytest.raises(NoVariant):
            loaded(t(n, 3))


def test_nothing_recorded_is_in_a_saved_program(tmp_path: Path) -> None:
    module = OfBatch()
    secret = torch.arange(12.0).reshape(4, 3) + 0.123456789
    calls = [call(Batch(secret, secret * 2)), call(Batch(t(6, 3), t(6, 3)))]
    made(tmp_path, module, calls, classes=CLASSES).save(tmp_path / "saved")
    parts = [bytes(x.numpy().tobytes()) for x in (secret, secret * 2)]
    for path in (tmp_path / "saved").iterdir():
        contents = [path.read_bytes()]
        if path.suffix == ".pt2":
            with zipfile.ZipFile(path) as archive:
                contents += [archive.read(name) for name in archive.namelist()]
        assert not any(part[:16] in content for part in parts for content in contents)


def test_only_directories_of_programs_are_written_to(tmp_path: Path) -> None:
    module = Branching()
    programs = export(taped(tmp_path, module, [call(t(n, 3)) for n in (3, 4)]), module)
    with pytest.raises(UsageError, match="not empty"):
        programs.save(tmp_path)
    programs.save(tmp_path / "saved")
    programs.save(tmp_path / "saved")
    assert load_programs(tmp_path / "saved").keys() == programs.keys()


def test_programs_of_before_are_not_left_beside_new_ones(tmp_path: Path) -> None:
    module = Branching()
    programs = export(taped(tmp_path, module, [call(t(n, 3)) for n in (3, 4)]), module)
    programs.save(tmp_path / "saved")
    (tmp_path / "saved" / "07-other.pt2").write_bytes(b"")
    programs.save(tmp_path / "saved")
    assert len(list((tmp_path / "saved").glob("*.pt2"))) == len(programs)


# --- damage --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a merged model, with completions, constants and conditions."""
    from .test_merging import STEPS, Attending, ToyCache

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
def test_every_damage_of_a_manifest_is_a_tape_error(saved: Path, monkeypatch: Any) -> None:
    whole = json.loads((saved / MANIFEST).read_text())
    # The program itself is as it was: loading it once is enough.
    monkeypatch.setattr("calltape_analyzer.exporting.saving._engine", lambda path: None)
    failed: dict[str, str] = {}
    for at in list(paths_of(whole)):
        for other in OTHERS:
            document = copy.deepcopy(whole)
            place = document
            for key in at[:-1]:
                place = place[key]
            place[at[-1]] = other
            failed |= _failing(saved, json.dumps(document), f"{at} = {other!r}")
        document = copy.deepcopy(whole)
        place = document
        for key in at[:-1]:
            place = place[key]
        del place[at[-1]]
        failed |= _failing(saved, json.dumps(document), f"without {at}")
    (saved / MANIFEST).write_text(json.dumps(whole))
    shown = list(failed.items())[:40]
    assert not failed, "\n".join(f"{what}: {error}" for what, error in shown)


def test_every_beginning_of_a_manifest_is_a_tape_error(saved: Path) -> None:
    whole = (saved / MANIFEST).read_text()
    failed: dict[str, str] = {}
    for length in range(0, len(whole), max(len(whole) // 150, 1)):
        failed |= _failing(saved, whole[:length], f"{length} characters")
    (saved / MANIFEST).write_text(whole)
    assert not failed


def _failing(folder: Path, text: str, what: str) -> dict[str, str]:
    (folder / MANIFEST).write_text(text)
    try:
        load_programs(folder)
    except TapeError:
        return {}
    except Exception as error:
        return {what: f"{type(error).__name__}: {error}"}
    return {}


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", "\x00", '{"format": "calltape-programs"}', "[" * 100_000]
)
def test_what_is_no_manifest_is_a_tape_error(text: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(TapeError):
        load_programs(tmp_path)


def test_manifest_that_is_no_text_is_a_tape_error(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(TapeError, match=MANIFEST):
        load_programs(tmp_path)


@pytest.mark.parametrize("where", ["nowhere", "empty", "file"])
def test_directory_without_programs_is_not_found(where: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(TapeError) as caught:
        load_programs(tmp_path / where)
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
        load_programs(tmp_path / "saved")


def test_another_version_is_told_apart_from_damage(saved: Path, tmp_path: Path) -> None:
    manifest = json.loads((saved / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(TapeError) as caught:
        load_programs(tmp_path)
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
        load_programs(tmp_path / "saved")
    assert caught.value.kind == ("not_found" if what == "missing" else "damaged")
    assert caught.value.path == str(program)


# --- another process -----------------------------------------------------------------------------

OTHER = """
import dataclasses, sys, torch
from calltape_analyzer import load_programs

@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    weight: torch.Tensor | None = None
    scale: float = 1.0
    steps: int = 1

programs = load_programs(sys.argv[1], classes={sys.argv[2]: Batch})
x, weight, expected = torch.load(sys.argv[3])
torch.testing.assert_close(programs(Batch(x, weight)), expected)
assert "transformers" not in sys.modules
"""


@pytest.mark.integration
def test_another_process_runs_saved_programs(tmp_path: Path) -> None:
    module = OfBatch()
    calls: list[Call] = [call(Batch(t(n, 3), t(n, 3))) for n in (4, 6)]
    made(tmp_path, module, calls, classes=CLASSES).save(tmp_path / "saved")
    x, weight = t(5, 3), t(5, 3)
    with torch.no_grad():
        torch.save((x, weight, module(Batch(x, weight))), tmp_path / "values.pt")
    (tmp_path / "other.py").write_text(OTHER)
    name = f"{Batch.__module__}:{Batch.__qualname__}"
    subprocess.run(
        [sys.executable, "other.py", "saved", name, "values.pt"], cwd=tmp_path, check=True
    )
