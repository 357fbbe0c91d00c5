"""Who may read what is written, and whose control files are followed."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import First, FlightRecorder, TapeError, control, record
from calltape_recorder.control import ControlFile
from calltape_recorder.launch.launcher import prepare
from calltape_recorder.options import parse_options
from tests.recorder.controlled import Fake
from tests.recorder.models import Identity
from tests.recorder.processes import in_a_fork
from tests.recorder.waiting import looked

ROWS = torch.ones(3)


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): mode(path) for path in folder.rglob("*")}


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("options", "files", "folders"), [({}, 0o600, 0o700), ({"file_mode": 0o640}, 0o640, 0o750)]
)
def test_files_are_the_owners_alone_unless_asked_otherwise(
    tmp_path: Path, options: dict[str, Any], files: int, folders: int
) -> None:
    """Segments, write-ahead, and a fork's tape, and the folders that are made for them."""
    found: dict[str, int] = {}

    class Looks(torch.nn.Module):
        def forward(self, value: Any) -> Any:
            found.update(modes(tmp_path))
            return value

    looks, path = Looks(), tmp_path / "deep" / "er" / "t.tape"
    with record(looks, path, write_ahead=True, segment_bytes=1, **options) as recorder:
        looks(ROWS)
        recorder.flush()
        looks(ROWS)
        in_a_fork(lambda: looks(ROWS) is not None)
    found.update(modes(tmp_path))
    assert found.pop("deep") == found.pop("deep/er") == folders
    for part in (".ahead-", "-00001", "-p"):
        assert any(part in name for name in found)
    assert set(found.values()) == {files}


@pytest.mark.usefixtures("umask")
def test_directories_that_are_there_keep_their_permissions(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    with record(Identity(), f"{folder}/") as recorder:
        pass
    assert (mode(folder), mode(Path(recorder.path))) == (0o755, 0o600)


@pytest.mark.usefixtures("umask")
def test_the_launcher_makes_directories_likewise(tmp_path: Path) -> None:
    prepare({"target": "serve:model", "tape": str(tmp_path / "a" / "b")}, {})
    assert modes(tmp_path) == {"a": 0o700, "a/b": 0o700}
    settings = {"target": "serve:model", "tape": str(tmp_path / "c"), "file_mode": "644"}
    prepare(settings, {})
    assert mode(tmp_path / "c") == 0o755


def test_permissions_are_parsed_from_text() -> None:
    for text in ("640", "0640", "0o640"):
        assert parse_options({"file_mode": text}) == {"file_mode": 0o640}
    for wrong in ("rw-r-----", "64", "888", 640):
        with pytest.raises(TapeError, match="permissions, such as 640"):
            parse_options({"file_mode": wrong})


# --- control files --------------------------------------------------------------------------------


def written(folder: Path, text: str = '{"paused": true}') -> Path:
    path = folder / "control.json"
    path.write_text(text)
    path.chmod(0o600)
    return path


def folder_of(tmp_path: Path, bits: int) -> Path:
    folder = tmp_path / "desk"
    folder.mkdir()
    folder.chmod(bits)
    return folder


def polled(path: Path) -> tuple[list[Any], str]:
    """What a recorder is told of a control file, and what is wrong with it."""
    file, fake = ControlFile(path), Fake()
    file.poll(fake)
    assert bool(fake.told) == (file.trouble is None)
    return fake.told, str(file.trouble)


@pytest.mark.usefixtures("looks_always")
@pytest.mark.parametrize("bits", [0o620, 0o602, 0o666])
def test_a_control_file_that_others_may_write_is_refused(
    tmp_path: Path, bits: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(folder_of(tmp_path, 0o700))
    path.chmod(bits)
    model = Identity()
    with record(model, tmp_path / "t.tape", control=path) as recorder:
        model(ROWS)
        assert looked(recorder)
        stats = recorder.stats()
        assert not stats.paused
        assert stats.control is not None
        assert "others can write to it" in stats.control
        # Once it is the owner's alone it is followed, although it says what it said.
        path.chmod(0o600)
        assert looked(recorder)
        assert recorder.stats().paused
        assert recorder.stats().control is None
    said = [entry for entry in caplog.records if "is rejected" in entry.message]
    assert [entry.levelno for entry in said] == [logging.WARNING]


@pytest.mark.parametrize(
    ("above", "bits", "is_followed"),
    [
        (0o700, 0o700, True), (0o700, 0o755, True), (0o700, 0o1777, True), (0o700, 0o770, False),
        (0o700, 0o707, False), (0o755, 0o700, True), (0o1777, 0o700, True), (0o777, 0o700, False),
        (0o770, 0o700, False),
    ],
)  # fmt: skip
def test_a_control_file_that_others_could_replace_is_not_obeyed(
    tmp_path: Path, above: int, bits: int, is_followed: bool
) -> None:
    """By its directory, or by one above that."""
    desk = folder_of(tmp_path, 0o700)
    (desk / "one").mkdir(mode=0o700)
    path = written(folder_of(desk / "one", bits))
    desk.chmod(above)
    told, trouble = polled(path)
    assert told == (["pause"] if is_followed else [])
    assert is_followed or "others can write to " in trouble


def test_a_link_into_a_directory_of_others_is_not_obeyed(tmp_path: Path) -> None:
    link = folder_of(tmp_path, 0o700) / "link.json"
    (tmp_path / "away").mkdir()
    link.symlink_to(written(folder_of(tmp_path / "away", 0o777)))
    assert polled(link)[0] == []
    assert "its directory" in polled(link)[1]


@pytest.mark.parametrize("which", ["file", "directory"])
def test_a_control_file_of_another_user_is_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    folder = folder_of(tmp_path, 0o755)
    path = written(folder)
    path.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(path if which == "file" else folder, 12345, -1)
    else:  # the other way round: who looks is another user
        us = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    assert "belongs to user" in polled(path)[1]


def test_a_file_that_is_refused_and_goes_is_no_trouble(tmp_path: Path) -> None:
    path = written(folder_of(tmp_path, 0o700))
    path.chmod(0o666)
    file = ControlFile(path)
    assert file.trouble
    path.unlink()
    file.poll(Fake())
    assert file.trouble is None


def test_where_there_are_no_users_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(folder_of(tmp_path, 0o777))
    monkeypatch.delattr(os, "geteuid")
    assert control.why_untrusted(str(path), path.stat()) is None


@pytest.mark.usefixtures("looks_always")
def test_a_flight_recorder_obeys_only_its_owner(tmp_path: Path) -> None:
    path = written(folder_of(tmp_path, 0o777), "{}")
    model = Identity()
    options: dict[str, Any] = {"keep": First(0), "flight_recorder": FlightRecorder()}
    with record(model, tmp_path / "t.tape", control=path, **options) as recorder:
        model(ROWS)
        written(path.parent, '{"dump": 1}')
        assert looked(recorder)
    assert recorder.stats().kept == 0
