"""A tape in a file of the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from calltape_recorder import record
from calltape_recorder.write import disk_file
from calltape_recorder.write.disk_file import TapeFile
from calltape_schema.writer import TapeWriter
from tests.raising import raises
from tests.recorder.models import Add
from tests.schema.container.tapes import MANIFEST, new_call, tape


def test_a_tape_is_whole_if_the_disk_takes_a_few_bytes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tape"
    sink = TapeFile(str(path), False, 0o600)
    monkeypatch.setattr(
        disk_file,
        "pwritev",
        lambda file, parts, offset: os.pwritev(file, [bytes(parts[0])[:37]], offset),
    )
    writer = TapeWriter(sink, MANIFEST)
    writer.append([new_call(0, [1]), new_call(1)])
    monkeypatch.setattr(disk_file, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="no more bytes"):
        sink.write_at(sink.size, [b"more"])
    sink.close()
    assert path.read_bytes() == tape([new_call(0, [1]), new_call(1)], seals=False)


def test_a_file_in_the_place_of_a_directory_is_not_a_name_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with raises("io", "Not a directory"):
        record(Add(), f"{tmp_path}/file/tapes/")


@pytest.mark.parametrize("error", ["ENOSPC", "EACCES", "EROFS"])
@pytest.mark.parametrize("step", ["mkdir", "open", "pwritev"])
def test_a_tape_that_cannot_begin_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: str
) -> None:
    """The only one that record() raises for the sake of the disk."""
    number = getattr(errno, error)
    real = os.open

    def refuses(*_: Any, **__: Any) -> int:
        raise OSError(number, os.strerror(number))

    def opened(path: Any, *args: Any, **options: Any) -> int:
        return refuses() if str(path).endswith(".tape") else real(path, *args, **options)

    owner = disk_file if step == "pwritev" else disk_file.os
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, opened if step == "open" else refuses)
        with raises("io", os.strerror(number)):
            record(Add(), f"{tmp_path}/tapes/")
    assert not list(tmp_path.rglob("*.tape"))
