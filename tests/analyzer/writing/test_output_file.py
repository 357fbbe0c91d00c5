"""One new file, or none: what is there stays as it is until the new one is whole."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from calltape_analyzer.writing.output_file import (
    OutputFile,
    TemporaryFolder,
    copy_tape,
    move_into_place,
    write_file,
)
from calltape_schema.errors import TapeError
from tests.recorder.processes import in_a_fork


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pipe_is_never_replaced(overwrite: bool, tmp_path: Path) -> None:
    """Nor is a device: `--force -o /dev/null` by root would take it from everybody."""
    pipe, beside = tmp_path / "pipe", tmp_path / "beside"
    os.mkfifo(pipe)
    beside.write_bytes(b"new")
    with pytest.raises(TapeError):
        OutputFile(pipe, overwrite=overwrite)
    with pytest.raises(TapeError):
        move_into_place(str(beside), str(pipe), overwrite=overwrite)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside", "pipe"]


def test_a_link_to_a_device_is_none_either(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(TapeError, match="not a regular file") as caught:
        write_file(tmp_path / "link", b"new", overwrite=True)
    assert caught.value.kind == "io"
    assert "new file" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for source in (tmp_path / "none", tmp_path):
        with pytest.raises(TapeError, match="cannot read it") as caught:
            copy_tape(str(source), tmp_path / "a.tape")
        assert (caught.value.kind, caught.value.path) == ("io", str(source))
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(TapeError, match="there already"):
        write_file(path, b"new")
    write_file(path, b"new", overwrite=True)
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no qualified names of code before 3.11")
@pytest.mark.parametrize(
    "name",
    [
        "OutputFile.__init__",
        "OutputFile._open",
        "OutputFile.discard",
        "write_file",
        "Temporary.remove",
        "Temporary.delete",
    ],
)
def test_an_interrupt_at_any_step_leaves_nothing(tmp_path: Path, name: str) -> None:
    """Also between the making of the temporary file and the block that would discard it."""

    def leaves_nothing() -> bool:
        for step in itertools.count():
            is_over = interrupted(name, step, work)
            gc.collect()
            if is_over:
                return step > 10
            assert set(tmp_path.iterdir()) <= {target}, step
            target.unlink(missing_ok=True)
        return False

    def work() -> None:
        write_file(target, b"x", overwrite=True)
        with contextlib.suppress(ZeroDivisionError), OutputFile(target, overwrite=True) as out:
            out.append(b"y" * (1 // 0))

    target = tmp_path / "a.out"
    in_a_fork(leaves_nothing)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no qualified names of code before 3.11")
@pytest.mark.parametrize(
    "name",
    [
        "TemporaryFolder.__init__",
        "Temporary.__init__",
        "Temporary.remove",
        "Temporary.delete",
        "use",
    ],
)
def test_an_interrupt_at_any_step_leaves_no_folder(tmp_path: Path, name: str) -> None:
    def use() -> None:
        with TemporaryFolder(tmp_path / "folder") as folder:
            (folder / "a").write_bytes(b"x")

    def leaves_nothing() -> bool:
        for step in itertools.count():
            is_over = interrupted(use.__qualname__ if name == "use" else name, step, use)
            gc.collect()
            assert not list(tmp_path.iterdir()), step
            if is_over:
                return step > 10
        return False

    in_a_fork(leaves_nothing)


def interrupted(name: str, step: int, work: Callable[[], None]) -> bool:
    """Interrupts a function at one of the steps of the interpreter; True if it has fewer."""
    left = [step]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_qualname != name:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return left[0] >= 0
