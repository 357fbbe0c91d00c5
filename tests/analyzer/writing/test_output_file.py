"""One new file, or none: what is there stays as it is until the new one is whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from calltape_analyzer.writing.output_file import OutputFile, settle, write_file
from calltape_schema.errors import TapeError


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pipe_is_never_replaced(overwrite: bool, tmp_path: Path) -> None:
    """Nor is a device: `--force -o /dev/null` by root would take it from everybody."""
    pipe, beside = tmp_path / "pipe", tmp_path / "beside"
    os.mkfifo(pipe)
    beside.write_bytes(b"new")
    with pytest.raises(TapeError):
        OutputFile(pipe, overwrite=overwrite)
    with pytest.raises(TapeError):
        settle(str(beside), str(pipe), overwrite=overwrite)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["beside", "pipe"]


def test_a_link_to_a_device_is_none_either(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(TapeError, match="no regular file") as caught:
        write_file(tmp_path / "link", b"new", overwrite=True)
    assert caught.value.kind == "io"
    assert "new file" in str(caught.value)


def test_a_file_is_replaced_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(TapeError, match="there already"):
        write_file(path, b"new")
    write_file(path, b"new", overwrite=True)
    assert path.read_bytes() == b"new"
