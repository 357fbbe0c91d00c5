"""Programs on disk: what was saved is what is loaded, and a damaged directory is a TapeError."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    ExportOptions,
    NoVariant,
    Programs,
    TapeError,
    export,
    load_programs,
)
from calltape_analyzer.errors import UsageError
from calltape_analyzer.facts import Other
from calltape_analyzer.programs.reasons import UntriedSize
from tests.analyzer.exported import Call, assert_as_module, call, made, taped
from tests.analyzer.exporting.models import (
    ARGUMENTS,
    CLASSES,
    Batch,
    Branching,
    Constants,
    OfBatch,
    Returns,
    Untraced,
    t,
)

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
    loaded = load_programs(tmp_path / "saved", classes=CLASSES, trusted=True)
    assert list(loaded) == list(programs)
    assert_as_module(loaded, module, [*calls, *unseen])
    assert loaded.verify(tape).ok


@pytest.mark.parametrize("kind", ["dict", "dataclass", "tuple", "sizes", "enum", "keys", "view"])
def test_saved_programs_return_what_they_returned(kind: str, tmp_path: Path) -> None:
    module = Returns(kind)
    made(tmp_path, module, [call(t(n, 3)) for n in (4, 6)], classes=CLASSES).save(
        tmp_path / "saved"
    )
    assert_as_module(
        load_programs(tmp_path / "saved", classes=CLASSES, trusted=True), module, [call(t(5, 3))]
    )


def test_what_was_tried_is_kept(tmp_path: Path) -> None:
    module = Branching()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (2, 3, 7, 9)])
    programs = export(tape, module, options=ExportOptions(max_memory=0))
    assert len(programs.attempts) > 1
    assert any(attempt.untried for attempt in programs.attempts)
    assert any(attempt.remark for attempt in programs.attempts)
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert repr(loaded.attempts) == repr(programs.attempts)
    for ours, theirs in zip(loaded.attempts, programs.attempts, strict=True):
        assert ours.model_dump_json() == theirs.model_dump_json()
        assert (ours.ok, ours.perfect) == (theirs.ok, theirs.perfect)
    assert loaded.verify(tape).notes == programs.verify().notes
    loaded.save(tmp_path / "again")
    again = load_programs(tmp_path / "again", trusted=True)
    assert repr(again.attempts) == repr(programs.attempts)


@pytest.mark.integration
def test_long_and_broken_texts_of_attempts_are_saved_cut(tmp_path: Path) -> None:
    programs = made(tmp_path, Branching(), [call(t(n, 3)) for n in (2, 3)])
    programs.attempts[0].error = Other("e" * 20_000)
    programs.attempts[0].untried.append(UntriedSize("\ud800" + "u" * 20_000, Other("")))
    programs.save(tmp_path / "saved")
    found = load_programs(tmp_path / "saved", trusted=True).attempts[0]
    assert found.error == Other("e" * 10_000)
    assert found.untried[-1].sizes.startswith("\\ud800uuu")
    assert len(found.untried[-1].sizes) == 10_000


UNKNOWN = {"code": "of a later version", "text": ""}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", float("nan")),
        ("tried", 2**63),
        ("strategy", "by magic"),
        ("sample", {"code": "sampled", "call": 0, "sizes": "w" * 10_001}),
        ("error", {"code": "of_call", "call": 0, "why": {"code": "other", "text": 7}}),
        ("untried", [{"code": "untried_size", "sizes": "", "why": UNKNOWN}] * 10_001),
    ],
)
def test_attempts_of_a_stranger_are_bounded(tmp_path: Path, field: str, value: Any) -> None:
    made(tmp_path, Branching(), [call(t(n, 3)) for n in (2, 3)]).save(tmp_path / "saved")
    path = tmp_path / "saved" / MANIFEST
    document = json.loads(path.read_text())
    document["attempts"][0][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(TapeError, match="breaks the format"):
        load_programs(tmp_path / "saved", trusted=True)


def test_more_facts_than_any_export_has_are_not_read(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"notes": [' + "{}, " * 500_000 + "{}]}")
    with pytest.raises(TapeError, match="more than 500,000 maps") as limited:
        load_programs(tmp_path, trusted=True)
    assert limited.value.kind == "limit"


@pytest.mark.integration
def test_conditions_and_what_is_missing_are_kept(tmp_path: Path) -> None:
    module = Branching()
    programs = made(tmp_path, module, [call(t(n, 3)) for n in (2, 3, 7, 9)])
    programs.missing["other"] = Other("because")
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert loaded.missing == {"other": Other("because")}
    for name, program in programs.items():
        assert loaded[name].conditions == program.conditions
        assert loaded[name].notes == program.notes
    assert_as_module(loaded, module, [call(t(4, 3)), call(t(20, 3))])


@pytest.mark.integration
def test_sizes_that_a_program_is_kept_to_are_kept(tmp_path: Path) -> None:
    module = Untraced()
    export(taped(tmp_path, module, [call(t(n, 3)) for n in (2, 5)]), module).save(
        tmp_path / "saved"
    )
    loaded = load_programs(tmp_path / "saved", trusted=True)
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


def test_text_that_was_passed_is_not_among_the_shapes(tmp_path: Path) -> None:
    module = Constants()
    calls = [call(t(n, 3), mode="SECRETMODE") for n in (4, 6)]
    made(tmp_path, module, calls).save(tmp_path / "saved")
    # A name of a variant is made of it where several are told apart by it; here is one.
    assert "SECRETMODE" not in (tmp_path / "saved" / "shapes.json").read_text()
    assert "SECRETMODE" not in "".join(path.name for path in (tmp_path / "saved").iterdir())


# --- what is there already ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Two programs, which are quick to save."""
    folder = tmp_path_factory.mktemp("plain")
    module = Branching()
    return export(taped(folder, module, [call(t(n, 3)) for n in (3, 4, 8)]), module)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.is_symlink()}


@pytest.mark.integration
def test_saving_again_replaces_what_was_saved(plain: Programs, tmp_path: Path) -> None:
    saved = tmp_path / "made" / "saved"
    for _ in range(2):
        plain.save(saved)
        assert len(list(saved.glob("*.pt2"))) == len(plain)
        assert load_programs(saved, trusted=True).keys() == plain.keys()
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]
    listed = json.loads((saved / MANIFEST).read_text())["files"]
    assert sorted(found["name"] for found in listed) == sorted(contents(saved).keys() - {MANIFEST})


def test_only_the_owner_may_read_what_is_saved(plain: Programs, tmp_path: Path) -> None:
    plain.save(tmp_path / "saved")
    assert (tmp_path / "saved").stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "saved").iterdir()} == {0o600}
    (tmp_path / "empty").mkdir(mode=0o755)
    plain.save(tmp_path / "empty")
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "empty").iterdir()} == {0o600}


def changed(saved: Path) -> None:
    with next(saved.glob("*.pt2")).open("ab") as file:
        file.write(b" ")


def linked(saved: Path) -> None:
    program = next(saved.glob("*.pt2"))
    program.rename(saved.parent / "elsewhere.pt2")
    program.symlink_to(saved.parent / "elsewhere.pt2")


def with_manifest_elsewhere(saved: Path) -> None:
    (saved / MANIFEST).rename(saved.parent / MANIFEST)
    (saved / MANIFEST).symlink_to(saved.parent / MANIFEST)


OTHER_CONTENTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a program of somebody": (lambda f: (f / "07-other.pt2").write_bytes(b""), "07-other.pt2"),
    "notes": (lambda f: (f / "notes.txt").write_text("mine"), "notes.txt"),
    "a directory": (lambda f: (f / "weights").mkdir(), "weights"),
    "a program that was changed": (changed, "00-"),
    "a link for a program": (linked, "00-"),
    "shapes that were changed": (lambda f: (f / "shapes.json").write_text("[]"), "shapes.json"),
    "another manifest": (lambda f: (f / MANIFEST).write_text('{"packages": []}'), MANIFEST),
    "a link for the manifest": (with_manifest_elsewhere, MANIFEST),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "00-"),
    "what a killed save left": (lambda f: (f / ".calltape-saving-1").mkdir(), "was killed"),
    "a name for a terminal": (lambda f: (f / "\x1b[2J").write_text(""), "x1b"),
}


@pytest.mark.parametrize("what", OTHER_CONTENTS)
def test_what_no_save_wrote_is_left_alone(what: str, plain: Programs, tmp_path: Path) -> None:
    change, named = OTHER_CONTENTS[what]
    plain.save(tmp_path / "saved")
    change(tmp_path / "saved")
    before = contents(tmp_path)
    with pytest.raises(UsageError) as caught:
        plain.save(tmp_path / "saved")
    assert named in str(caught.value)
    assert ("no manifest.json names" in str(caught.value)) == (what == "no manifest")
    assert str(caught.value).isprintable()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("what", ["others", "file", "link", "broken link", "link to programs"])
def test_only_directories_of_programs_are_written_to(
    what: str, plain: Programs, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    (tmp_path / "other").mkdir()
    if what == "others":
        target.mkdir()
        (target / "00-mine.pt2").write_text("mine")
    elif what == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / ("nowhere" if what == "broken link" else "other"))
    if what == "link to programs":
        plain.save(tmp_path / "other")
    before = contents(tmp_path)
    with pytest.raises(UsageError):
        plain.save(target)
    assert contents(tmp_path) == before


class Killed(BaseException):
    """Nothing catches it, and nothing is cleaned up after it."""


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> bool:
    """Ends an action before its n-th change of a name; whether it came that far."""
    steps = iter(range(step + 1))
    held: Any = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 calls what it has there
    with monkeypatch.context() as patch:
        for name in ("replace", "rename", "unlink", "mkdir", "chmod", "rmdir"):
            own = getattr(os, name)

            def step_of(*args: Any, own: Any = own, **kwargs: Any) -> Any:
                if next(steps, None) is None:
                    raise Killed
                return own(*args, **kwargs)

            patch.setattr(os, name, step_of)
            if hasattr(held, name):
                patch.setattr(held, name, staticmethod(step_of))
        unlink = "calltape_analyzer.writing.output_file.Temporary.delete"
        patch.setattr(unlink, staticmethod(lambda *_: None))
        try:
            action()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("earlier", ["nothing", "an empty directory", "programs"])
def test_a_save_that_is_killed_leaves_what_was_there(
    earlier: str, plain: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether files are there, whole and of one save, is known before torch reads them.
    monkeypatch.setattr(
        "calltape_analyzer.programs.exported_model.load_exported_program", lambda *_, **__: 0
    )
    old = Programs([next(iter(plain.values()))], plain.sorter)
    step = 0
    while True:
        saved = tmp_path / str(step) / "saved"
        saved.parent.mkdir()
        if earlier == "programs":
            old.save(saved)
        elif earlier == "an empty directory":
            saved.mkdir()
        was_killed = killed_at(step, monkeypatch, lambda folder=saved: plain.save(folder))
        if not was_killed:
            break
        if earlier == "programs" or (saved / MANIFEST).exists():
            loaded = load_programs(saved, trusted=True)
            assert loaded.keys() in (old.keys(), plain.keys()), step
            # Nothing of ours stands there that a later save would not know again.
            for left in saved.glob(".calltape-saving-*"):
                shutil.rmtree(left)
            plain.save(saved)
        assert {p.name for p in saved.parent.iterdir()} <= {"saved", *staged(saved.parent)}
        step += 1
    assert step > (8 if earlier == "programs" else 4)
    assert load_programs(saved, trusted=True).keys() == plain.keys()


def staged(folder: Path) -> set[str]:
    return {path.name for path in folder.glob(".calltape-saving-*")}


def test_a_save_that_fails_leaves_what_was_there(
    plain: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.save(tmp_path / "saved")
    before = contents(tmp_path)

    def full(*_: Any) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file")

    monkeypatch.setattr(torch.export, "save", full)
    with pytest.raises(TapeError, match="cannot be saved") as caught:
        plain.save(tmp_path / "saved")
    assert caught.value.kind == "io"
    assert contents(tmp_path) == before


def test_programs_are_not_saved_over_the_files_that_they_are_read_from(
    saved_onnx: Path,
) -> None:
    loaded = load_programs(saved_onnx)
    before = contents(saved_onnx)
    with pytest.raises(UsageError, match="read from it"):
        loaded.save(saved_onnx)
    assert contents(saved_onnx) == before


@pytest.fixture
def saved_onnx(plain: Programs, tmp_path: Path) -> Path:
    """A directory that says that it has ONNX models, which are not opened here."""
    plain.save(tmp_path / "onnx")
    text = (tmp_path / "onnx" / MANIFEST).read_text()
    (tmp_path / "onnx" / MANIFEST).write_text(text.replace(".pt2", ".onnx"))
    for path in (tmp_path / "onnx").glob("*.pt2"):
        path.rename(path.with_suffix(".onnx"))
    return tmp_path / "onnx"


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

programs = load_programs(sys.argv[1], classes={sys.argv[2]: Batch}, trusted=True)
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


# --- classes of one's own ------------------------------------------------------------------------


@dataclasses.dataclass
class Kept:
    keys: torch.Tensor


class Keeping(torch.nn.Module):
    """Returns an object of a class of one's own, which the next call takes."""

    def forward(self, x, cache=None, use_cache=False):
        keys = x if cache is None else torch.cat([cache.keys, x], 1)
        return {"y": keys.sum(1), "cache": Kept(keys) if use_cache else None}


def kept(folder: Path) -> Path:
    calls = [call(t(1, 4, 3), use_cache=True), call(t(2, 5, 3), use_cache=True)]
    calls += [call(t(b, 1, 3), Kept(t(b, n, 3)), use_cache=True) for b, n in ((1, 4), (2, 5))]
    module = Keeping().eval()
    tape = taped(folder, module, calls, classes=[Kept])
    export(tape, module, options=ExportOptions(merge="never")).save(folder / "saved")
    return folder / "saved"


@pytest.mark.integration
def test_a_placeholder_for_an_unknown_class_is_named(tmp_path: Path) -> None:
    saved = kept(tmp_path)
    programs = load_programs(saved, trusted=True)
    cache = programs(t(1, 4, 3), use_cache=True)["cache"]
    said = (
        f"cache is a Placeholder for {__name__}:Kept, which was not known when the programs were "
        "loaded; load_programs(..., classes=[Kept])"
    )
    for ask in (programs, programs.inputs_for):
        with pytest.raises(NoVariant) as refused:
            ask(t(1, 1, 3), cache, use_cache=True)
        assert said in map(str, refused.value.reasons.values())
        assert refused.value.advice == "give load_programs the classes of your own"
    with pytest.raises(NoVariant) as refused:
        programs(t(1, 1, 3), [cache], use_cache=True)
    assert said.replace("cache is", "cache holds", 1) in map(str, refused.value.reasons.values())
    knowing = load_programs(saved, classes=[Kept], trusted=True)
    cache = knowing(t(1, 4, 3), use_cache=True)["cache"]
    assert knowing(t(1, 1, 3), cache, use_cache=True)["cache"].keys.shape == (1, 5, 3)
    with pytest.raises(NoVariant, match="cache is a list, not a Kept"):
        knowing(t(1, 1, 3), [cache], use_cache=True)


@pytest.mark.integration
def test_all_missing_arguments_are_named(tmp_path: Path) -> None:
    programs = load_programs(kept(tmp_path), classes=[Kept], trusted=True)
    with pytest.raises(NoVariant) as refused:
        programs(t(1, 4, 3))
    assert set(map(str, refused.value.reasons.values())) == {
        "cache and use_cache are missing",
        "use_cache is False, not True",
    }
