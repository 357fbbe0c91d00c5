"""Directories of many tapes: read recursively, told apart by target, each call once."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, UsageError, open_tape, opening, recordings, survey
from calltape_analyzer.reading import files
from calltape_analyzer.reading.files import files_of, short_paths
from tests.analyzer.tapes import Recorded, write_tape

LINEAR, RELU = torch.nn.Linear(1, 1), torch.nn.ReLU()


def calls(numbers: Any) -> list[Recorded]:
    return [Recorded(args=(torch.zeros(n + 1, 3),), number=n) for n in numbers]


def ident(number: int) -> bytes:
    return bytes([number] * 16)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two servers: one of two models, one of one; six files."""
    root = tmp_path / "runs"
    (root / "a" / "deep" / "er").mkdir(parents=True)
    (root / "b").mkdir()
    made: list[tuple[str, list[int], Any, bool]] = [
        ("a/x.tape", [0, 2, 4], LINEAR, True),
        ("a/deep/er/y.tape", [1, 3], RELU, True),
        ("b/x.tape", [1, 3, 5], LINEAR, False),
    ]
    for at, (name, some, target, is_sealed) in enumerate(made):
        write_tape(
            root / name, calls(some), target=target, tape_id=ident(at + 1),
            sealed=is_sealed, table=is_sealed,
        )  # fmt: skip
    return root


def names(root: Path) -> list[str]:
    return [os.path.relpath(path, root) for path in files_of(root)]


def test_directories_below_are_read(runs: Path) -> None:
    assert names(runs) == ["a/deep/er/y.tape", "a/x.tape", "b/x.tape"]


def test_hidden_and_temporary_files_are_not_taken(runs: Path) -> None:
    for name in (".x.tape", "x.tape.zst.tmp", "x.tape.gz.tmp", "notes.txt"):
        (runs / name).write_bytes(b"half")
    (runs / ".cache").mkdir()
    shutil.copy(runs / "a" / "x.tape", runs / ".cache" / "x.tape")
    assert names(runs) == ["a/deep/er/y.tape", "a/x.tape", "b/x.tape"]


def test_links_in_a_circle_end_and_links_count_once(runs: Path) -> None:
    (runs / "a" / "up").symlink_to(runs)
    (runs / "a" / "self").symlink_to(runs / "a" / "self")
    (runs / "again").symlink_to(runs / "b")
    (runs / "z.tape").symlink_to(runs / "b" / "x.tape")
    assert len(names(runs)) == 3


def test_a_directory_that_cannot_be_read_is_said(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: str) -> Any:
        if os.path.basename(path) == "deep":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(files.os, "scandir", scandir)
    with open_tape(runs) as tape:
        (error,) = tape.damage
        assert (error.kind, error.path) == ("io", str(runs / "a" / "deep"))
        assert "Permission denied" in error.reason
        assert len(tape) == 6


def test_a_name_that_is_not_there_is_a_mistake(runs: Path) -> None:
    """Beside others, too: an answer without it would pass for the whole."""
    wrong = runs / "b" / "mistyped.tape"
    for given in (wrong, [runs / "b" / "x.tape", wrong], [wrong, runs]):
        for function in (open_tape, survey, recordings):
            with pytest.raises(TapeError, match=r"mistyped\.tape: no such file") as caught:
                function(given)
            assert caught.value.kind == "not_found"


def test_too_many_entries_are_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_ENTRIES", 5)
    with pytest.raises(TapeError, match="more than 5 files and directories") as caught:
        files_of(runs)
    assert caught.value.kind == "limit"


def test_ten_thousand_files_are_found(tmp_path: Path) -> None:
    for number in range(10_000):
        folder = tmp_path / str(number // 1000)
        folder.mkdir(exist_ok=True)
        (folder / f"{number:05d}.tape").touch()
    assert len(files_of(tmp_path)) == 10_000


@pytest.mark.parametrize("pattern", ["**", "*", "*/*"])
def test_directories_of_a_pattern_are_read(runs: Path, pattern: str) -> None:
    assert sorted(os.path.relpath(path, runs) for path in files_of(str(runs / pattern))) == [
        "a/deep/er/y.tape", "a/x.tape", "b/x.tape",
    ]  # fmt: skip


def test_targets_are_told_apart(runs: Path) -> None:
    with pytest.raises(TapeError, match="different models") as caught:
        open_tape(runs)
    assert "Linear.forward (x.tape)" in str(caught.value)
    assert "target=" in str(caught.value)
    with open_tape(runs, target="Linear") as tape:
        assert [os.path.relpath(path, runs) for path in tape.paths] == ["a/x.tape", "b/x.tape"]
        assert len(tape) == 6
        whole = tape.target
    assert whole is not None
    with open_tape(runs, target=f"{whole.type}.{whole.method}") as tape:
        assert len(tape) == 6
    with open_tape(runs, target="ReLU") as tape:
        assert len(tape) == 2


@pytest.mark.parametrize(
    ("wanted", "reason"), [("Llama", "no tape here"), ("forward", "2 targets have 'forward'")]
)
def test_a_wrong_target_lists_what_there_is(runs: Path, wanted: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        open_tape(runs, target=wanted)
    assert "Linear.forward" in str(caught.value)
    assert "ReLU.forward" in str(caught.value)


def test_other_targets_are_not_scanned(runs: Path) -> None:
    """An unsealed file of another model costs its manifest only."""
    damaged = bytearray((runs / "b" / "x.tape").read_bytes())
    damaged[-600:-500] = b"\xff" * 100
    (runs / "b" / "x.tape").write_bytes(damaged)
    with open_tape(runs, target="ReLU") as tape:
        assert tape.verify() == []


def test_recordings_are_listed(runs: Path) -> None:
    (runs / "broken.tape").write_bytes(b"no tape at all" * 100)
    found = recordings(runs)
    assert len(found) == 3
    assert [(one.calls, len(one.paths), one.sealed, one.damage) for one in found.recordings] == [
        (2, 1, True, 0), (3, 1, True, 0), (3, 1, False, 0),
    ]  # fmt: skip
    assert found.targets == (
        "torch.nn.modules.activation:ReLU.forward", "torch.nn.modules.linear:Linear.forward",
    )  # fmt: skip
    (last,) = [recording for recording in found.recordings if not recording.sealed]
    assert last.unsealed == (str(runs / "b" / "x.tape"),)
    assert last.host == str(runs / "b")
    assert last.last_ns is not None
    assert last.first_ns is not None
    assert last.last_ns - last.first_ns == 4_001_500_000
    assert len(found.damage) == 1
    assert "broken.tape" in found.damage[0]


def test_a_recording_that_began_earlier_comes_first(tmp_path: Path) -> None:
    early = write_tape(tmp_path / "z.tape", calls([0]), tape_id=ident(1))
    late = write_tape(tmp_path / "a.tape", calls([0]), tape_id=ident(2), start_ns=2 * 10**18)
    with open_tape(tmp_path) as tape:
        assert tape.paths == (str(early), str(late))


# Copies.


def test_copies_in_other_directories_count_once(runs: Path) -> None:
    shutil.copytree(runs / "a", runs / "backup")
    with open_tape(runs, target="Linear") as tape:
        assert len(tape) == 6
        (error,) = tape.damage
        assert error.path == str(runs / "backup" / "x.tape")
        assert f"a copy of {runs / 'a' / 'x.tape'}, and its 3 calls count once" in error.reason
        assert tape.coverage.kept == 6


def test_a_compressed_file_beside_the_same_file_is_no_damage(runs: Path) -> None:
    """A recorder that is killed before it removed what it compressed leaves both."""
    path = runs / "a" / "x.tape"
    path.with_name("x.tape.gz").write_bytes(gzip.compress(path.read_bytes()))
    with open_tape(path.parent, target="Linear") as tape:
        assert len(tape) == 3
        assert tape.coverage.kept == 3
        assert tape.damage == []
        assert tape.paths == (str(path),)


def test_a_compressed_copy_elsewhere_counts_once(runs: Path) -> None:
    path = runs / "a" / "x.tape"
    (runs / "old.tape.gz").write_bytes(gzip.compress(path.read_bytes()))
    with open_tape(runs, target="Linear") as tape:
        assert len(tape) == 6
        assert "old.tape.gz" in str(tape.damage[0])
        assert len(tape.damage) == 1


def test_a_copy_of_a_part_counts_once(runs: Path) -> None:
    """Somebody copied a file while it was written."""
    path = runs / "a" / "x.tape"
    (runs / "part.tape").write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with open_tape(runs, target="Linear") as tape:
        assert sorted(call.number for call in tape.calls) == [0, 1, 2, 3, 4, 5]
        assert "part.tape" in str(tape.damage[0])


def test_a_compressed_copy_with_other_calls_is_damage(runs: Path) -> None:
    path = runs / "a" / "x.tape"
    other = write_tape(runs / "o", calls([0, 2, 6]), target=LINEAR, tape_id=ident(1))
    path.with_name("x.tape.gz").write_bytes(gzip.compress(other.read_bytes()))
    with open_tape(path.parent, target="Linear") as tape:
        assert [call.number for call in tape.calls] == [0, 2, 4, 6]
        assert len(tape.damage) == 1


def test_a_file_that_was_compressed_since_is_found(runs: Path) -> None:
    path = runs / "a" / "x.tape"
    path.with_name("x.tape.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    with open_tape(path) as tape:
        assert len(tape) == 3
        assert tape.paths == (f"{path}.gz",)


def test_a_file_that_is_compressed_while_the_directory_is_read(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name was read, and the compressed one too; then the recorder removed it."""
    path = runs / "a" / "x.tape"
    packed = path.with_name("x.tape.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    both = files_of(path.parent)
    path.unlink()
    monkeypatch.setattr(opening, "files_of", lambda *_: both)
    with open_tape(path.parent, target="Linear") as tape:
        assert tape.damage == []
        assert tape.paths == (str(packed),)
        assert len(tape) == 3


# Places.


def test_short_paths_are_unique() -> None:
    assert short_paths(["runs/a/x.tape", "runs/b/y.tape"]) == {
        "runs/a/x.tape": "x.tape", "runs/b/y.tape": "y.tape",
    }  # fmt: skip
    assert short_paths(["runs/a/x.tape", "runs/b/x.tape"]) == {
        "runs/a/x.tape": "a/x.tape", "runs/b/x.tape": "b/x.tape",
    }  # fmt: skip
    assert short_paths(["x.tape", "/y/x.tape"]) == {"x.tape": "x.tape", "/y/x.tape": "/y/x.tape"}
