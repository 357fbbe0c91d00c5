"""Options and paths that are refused, and files that stay as they were."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from calltape_recorder import Recorder, TapeError, record
from tests.recorder.models import Add


def test_a_failed_attach_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "t.tape"
    path.write_text("precious")
    with pytest.raises(TapeError):
        record(Add(), path, overwrite=True, method="missing")
    assert path.read_text() == "precious"


def test_a_path_that_leads_elsewhere_by_now_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "t.tape"
    recorder = Recorder(path)
    path.unlink()
    path.write_text("precious")
    recorder.discard()
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    "options",
    [
        {"values": "some"}, {"values": None}, {"via": "air"}, {"max_calls": -1},
        {"max_calls": 1.5}, {"max_calls": "3"}, {"max_calls": True}, {"max_calls": 2**64},
        {"max_queue_bytes": -1}, {"max_queue_bytes": 1e9}, {"max_queue_bytes": None},
        {"outputs": None}, {"outputs": "yes"}, {"overwrite": 1}, {"method": None}, {"method": ""},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("how", [Recorder, functools.partial(record, Add())])
def test_options_that_do_not_exist(tmp_path: Path, options: dict[str, Any], how: Any) -> None:
    with pytest.raises(TapeError) as caught:
        how(tmp_path / "t.tape", **options)
    assert caught.value.kind == "usage"
    assert "documentation" not in str(caught.value)
    assert not (tmp_path / "t.tape").exists()


@pytest.mark.parametrize("path", ["a\0b", None, 3.5])
def test_paths_that_are_none(path: Any) -> None:
    for how in (Recorder, functools.partial(record, Add())):
        with pytest.raises(TapeError) as caught:
            how(path)
        assert caught.value.kind == "usage"


def test_an_existing_path_is_refused_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "t.tape"
    Recorder(path).close()
    before = path.read_bytes()
    with pytest.raises(TapeError) as caught:
        Recorder(path)
    assert caught.value.kind == "exists"
    assert "overwrite=True" in str(caught.value)
    assert path.read_bytes() == before
    Recorder(path, overwrite=True).close()
    assert path.read_bytes() != before


def test_overwriting_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "t.tape").symlink_to(tmp_path / "target")
    with pytest.raises(TapeError, match="already"):
        Recorder(tmp_path / "t.tape")
    Recorder(tmp_path / "t.tape", overwrite=True).close()
    assert (tmp_path / "target").read_text() == "precious"


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TapeError) as caught:
        Recorder(tmp_path / "file" / "t.tape")
    assert caught.value.kind in ("io", "exists")
