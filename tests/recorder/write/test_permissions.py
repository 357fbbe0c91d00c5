"""Who may read what is written, and whose control files are followed."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import First, FlightRecorder, Recorder, TapeError, control, record
from calltape_recorder.control import ControlFile
from calltape_recorder.launch.launcher import prepare
from calltape_recorder.options import parse_options
from tests.recorder.models import Identity
from tests.recorder.processes import in_a_fork

ROWS = torch.ones(3)


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct, autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): mode(path) for path in folder.rglob("*")}


def all_kinds(folder: Path, **options: Any) -> None:
    """Segments, write-ahead, and a fork's tape."""
    model = Identity()
    seen: dict[str, int] = {}

    class Looks(torch.nn.Module):
        def forward(self, value: Any) -> Any:
            seen.update(modes(folder))
            return model(value)

    looks = Looks()
    path = folder / "deep" / "er" / "t.tape"
    with record(looks, path, write_ahead=True, segment_bytes=1, **options) as recorder:
        looks(ROWS)
        recorder.flush()
        looks(ROWS)
        in_a_fork(lambda: looks(ROWS) is not None)
    assert any(".ahead-" in name for name in seen)
    (folder / "seen.json").write_text(json.dumps(seen))


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    all_kinds(tmp_path)
    seen = json.loads((tmp_path / "seen.json").read_bytes())
    found = {**seen, **modes(tmp_path)}
    del found["seen.json"]
    tapes = {name: bits for name, bits in found.items() if name.endswith(".tape")}
    assert any("-00001" in name for name in tapes)
    assert any("-p" in name for name in tapes)
    assert set(tapes.values()) == {0o600}
    assert {bits for name, bits in found.items() if name not in tapes} == {0o700}


def test_unless_asked_otherwise(tmp_path: Path) -> None:
    all_kinds(tmp_path, file_mode=0o640)
    found = modes(tmp_path)
    assert found.pop("deep") == found.pop("deep/er") == 0o750
    del found["seen.json"]
    assert set(found.values()) == {0o640}


def test_directories_that_are_there_keep_their_permissions(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    with record(Identity(), f"{folder}/") as recorder:
        pass
    assert mode(folder) == 0o755
    assert mode(Path(recorder.path)) == 0o600


def test_the_launcher_makes_directories_likewise(tmp_path: Path) -> None:
    prepare({"target": "serve:model", "tape": str(tmp_path / "a" / "b")}, {})
    assert modes(tmp_path) == {"a": 0o700, "a/b": 0o700}
    settings = {"target": "serve:model", "tape": str(tmp_path / "c"), "file_mode": "644"}
    prepare(settings, {})
    assert mode(tmp_path / "c") == 0o755


def test_permissions_in_text() -> None:
    for text in ("640", "0640", "0o640"):
        assert parse_options({"file_mode": text}) == {"file_mode": 0o640}
    for wrong in ("rw-r-----", "64", "888", 640):
        with pytest.raises(TapeError, match="permissions, such as 640"):
            parse_options({"file_mode": wrong})


@pytest.mark.parametrize("wrong", [0o060, 0o400, 0o1600, -1, "600", True, None])
def test_permissions_that_are_none(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(TapeError, match="file_mode"):
        Recorder(tmp_path / "t.tape", file_mode=wrong)


# --- control files --------------------------------------------------------------------------------


class Fake:
    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.told.append(name)


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


@pytest.mark.parametrize("bits", [0o620, 0o602, 0o666])
def test_a_control_file_that_others_may_write_is_refused(
    tmp_path: Path, bits: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(folder_of(tmp_path, 0o700))
    path.chmod(bits)
    model = Identity()
    with record(model, tmp_path / "t.tape", control=path) as recorder:
        model(ROWS)
        recorder._each_second()
        stats = recorder.stats()
        assert not stats.paused
        assert stats.control is not None
        assert "others can write to it" in stats.control
        # Once it is the owner's alone it is followed, although it says what it said.
        path.chmod(0o600)
        recorder._each_second()
        assert recorder.stats().paused
        assert recorder.stats().control is None
    said = [entry for entry in caplog.records if "is rejected" in entry.message]
    assert len(said) == 1
    assert said[0].levelno == logging.WARNING


@pytest.mark.parametrize(
    ("bits", "is_followed"),
    [(0o700, True), (0o755, True), (0o1777, True), (0o770, False), (0o707, False)],
)  # fmt: skip
def test_nor_one_that_others_may_put_another_in_the_place_of(
    tmp_path: Path, bits: int, is_followed: bool
) -> None:
    file, fake = ControlFile(written(folder_of(tmp_path, bits))), Fake()
    file.poll(fake)
    assert fake.told == (["pause"] if is_followed else [])
    assert (file.trouble is None) == is_followed


@pytest.mark.parametrize(
    ("bits", "is_followed"), [(0o755, True), (0o1777, True), (0o777, False), (0o770, False)]
)  # fmt: skip
def test_nor_one_whose_directory_others_may_replace(
    tmp_path: Path, bits: int, is_followed: bool
) -> None:
    above = folder_of(tmp_path, 0o700)
    inner = above / "one" / "two"
    inner.parent.mkdir(mode=0o700)
    inner.mkdir(mode=0o700)
    path = written(inner)
    above.chmod(bits)
    file, fake = ControlFile(path), Fake()
    file.poll(fake)
    assert fake.told == (["pause"] if is_followed else [])
    assert is_followed or f"others can write to {above}" in str(file.trouble)


def test_nor_what_a_link_leads_to_in_such_a_directory(tmp_path: Path) -> None:
    link = folder_of(tmp_path, 0o700) / "link.json"
    away = tmp_path / "away"
    away.mkdir()
    away.chmod(0o777)
    link.symlink_to(written(away))
    file, fake = ControlFile(link), Fake()
    file.poll(fake)
    assert not fake.told
    assert "its directory" in str(file.trouble)


@pytest.mark.parametrize("which", ["file", "directory"])
def test_nor_one_of_another_user(
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
    file, fake = ControlFile(path), Fake()
    file.poll(fake)
    assert not fake.told
    assert "belongs to user" in str(file.trouble)


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
    assert control.foreign_hand(str(path), path.stat()) is None


def test_a_flight_recorder_obeys_only_its_owner(tmp_path: Path) -> None:
    path = written(folder_of(tmp_path, 0o777), "{}")
    model = Identity()
    options: dict[str, Any] = {"keep": First(0), "flight_recorder": FlightRecorder()}
    with record(model, tmp_path / "t.tape", control=path, **options) as recorder:
        model(ROWS)
        written(path.parent, '{"dump": 1}')
        recorder._each_second()
    assert recorder.stats().kept == 0
