"""Files that change while they are read, that are many, and that are no files."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Limits, TapeError, open_tape
from calltape_analyzer.reading import tape_file
from calltape_analyzer.reading.tape_file import Descriptors, TapeFile, local_file
from calltape_recorder import Recorder
from calltape_schema.storage import Window
from tests.analyzer.tapes import Recorded, write_tape


def tensor_calls(count: int, first: int = 0) -> list[Recorded]:
    return [Recorded(args=(torch.full((4,), n),), number=n) for n in range(first, first + count)]


def values(tape: Any) -> list[int]:
    return [int(call.inputs.args[0][0]) for call in tape]


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Descriptors]:
    own = Descriptors(most=2)
    monkeypatch.setattr(tape_file, "descriptors", own)
    yield own
    assert not len(own), "a file was not closed"


@pytest.fixture
def many(tmp_path: Path) -> Path:
    for n in range(8):
        path = tmp_path / f"{n}.tape"
        write_tape(path, tensor_calls(2, 10 * n), tape_id=bytes([n]) * 16)
    return tmp_path


def reopened(descriptors: Descriptors) -> None:
    """Closes all that are open, as other files would in their place."""
    while descriptors.close_oldest():
        pass


# Many files.


def test_more_files_than_descriptors_are_read(many: Path, few_descriptors: Descriptors) -> None:
    with open_tape(many) as tape:
        assert len(few_descriptors) <= 2
        assert values(tape) == [10 * n + i for n in range(8) for i in range(2)]
        assert len(few_descriptors) <= 2
        assert not tape.damage


def test_no_descriptor_left_is_an_error_and_no_damage(
    many: Path, few_descriptors: Descriptors, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with open_tape(many) as tape:
        reopened(few_descriptors)
        with monkeypatch.context() as patch:
            patch.setattr(tape_file.os, "open", refuse)
            for read in (lambda: values(tape), lambda: tape[0].record, tape.verify):
                with pytest.raises(TapeError, match="Too many open files") as caught:
                    read()
                assert caught.value.kind == "io"
                assert "ulimit -n" in str(caught.value)
            with pytest.raises(TapeError, match="Too many open files"):
                open_tape(many)
        assert not tape.damage
        assert len(values(tape)) == 16


@pytest.mark.parametrize("name", ["{}.tape", "{}.ahead-0.tape"])
def test_files_open_under_a_low_limit(tmp_path: Path, name: str) -> None:
    """1,100 segments under ``ulimit -n 1024`` were 82 damaged files."""
    count = 60
    for n in range(count):
        path = tmp_path / name.format(n)
        write_tape(path, tensor_calls(1, n), tape_id=n.to_bytes(16, "big"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = max(map(int, os.listdir("/proc/self/fd"))) + 16
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))
    try:
        with open_tape(tmp_path) as tape:
            assert sorted(values(tape)) == list(range(count))
            assert not tape.damage
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_descriptor_in_use_is_not_closed(many: Path) -> None:
    own = Descriptors(most=1)
    first, second = (TapeFile(str(many / name)) for name in ("0.tape", "1.tape"))
    try:

        def meanwhile(number: int) -> bytes:
            own.use(second, lambda other: os.pread(other, 10, 0))
            own.close(first)
            return os.pread(number, 10, 0)

        assert own.use(first, meanwhile) == (many / "0.tape").read_bytes()[:10]
        assert len(own) == 1
    finally:
        own.close(second)
        first.close()
        second.close()
    assert not len(own)


def test_threads_read_their_own_files(many: Path, few_descriptors: Descriptors) -> None:
    with open_tape(many) as tape:
        wrong: list[Any] = []

        def read() -> None:
            for _ in range(20):
                found = values(tape)
                if found != [10 * n + i for n in range(8) for i in range(2)]:
                    wrong.append(found)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


# Files that change.


def test_another_file_in_its_place_is_noticed(many: Path, few_descriptors: Descriptors) -> None:
    with open_tape(many / "0.tape") as tape:
        tape.calls.scan()
        shutil.copy(many / "1.tape", many / "other")
        os.replace(many / "other", many / "0.tape")
        reopened(few_descriptors)
        with pytest.raises(TapeError, match="another file has taken its place") as caught:
            tape[0].record  # noqa: B018
        assert caught.value.kind == "damaged"
        assert values(tape) == []
        assert tape.damage


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_file_written_over_in_place_is_noticed(
    tmp_path: Path, few_descriptors: Descriptors, is_sealed: bool
) -> None:
    path = write_tape(tmp_path / "a.tape", tensor_calls(2), sealed=is_sealed, tape_id=b"a" * 16)
    other = write_tape(tmp_path / "b.tape", tensor_calls(3, 5), tape_id=b"b" * 16)
    with open_tape(path, scan=True) as tape:
        path.write_bytes(other.read_bytes())
        os.utime(path, ns=(1, 1))
        reopened(few_descriptors)
        assert values(tape) == []
        assert "another file" in tape.damage[0].reason


def test_a_file_that_grows_is_read_on(tmp_path: Path, few_descriptors: Descriptors) -> None:
    whole = write_tape(tmp_path / "a.tape", tensor_calls(3)).read_bytes()
    path = write_tape(tmp_path / "b.tape", tensor_calls(2), sealed=False)
    with open_tape(path) as tape:
        path.write_bytes(whole)
        reopened(few_descriptors)
        assert values(tape) == [0, 1]
        assert not tape.damage


def test_a_file_that_is_cut_costs_its_calls(tmp_path: Path) -> None:
    """A mapped file ended the process with SIGBUS."""
    given = [Recorded(args=(torch.zeros(3000),), number=n) for n in range(3)]
    path = write_tape(tmp_path / "a.tape", given)
    with open_tape(path, scan=True) as tape:
        os.truncate(path, 20_000)
        assert [call.number for call in tape] == [0]
        assert all("shorter now" in error.reason for error in tape.damage)
        tape[0].inputs  # noqa: B018


def test_a_file_that_is_removed_costs_its_calls(many: Path, few_descriptors: Descriptors) -> None:
    with open_tape(many, scan=True) as tape:
        reopened(few_descriptors)
        (many / "3.tape").unlink()
        assert len(values(tape)) == 14
        assert {error.reason for error in tape.damage} == {
            "the file changed since it was opened: it was removed"
        }


def ahead(path: Path, number: int, size: int = 4) -> Path:
    call = Recorded(args=(torch.full((size,), number),), number=number, outputs_missing="under way")
    return write_tape(path, [call], sealed=False)


@pytest.mark.parametrize("held", [0, 2**20])
def test_a_call_ahead_is_the_one_that_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(tape_file, "MAX_HELD", held)
    path = ahead(tmp_path / "a.ahead-0.tape", 1)
    with open_tape(path) as tape:
        ahead(path, 2)
        assert values(tape) == [1]
        assert [call.number for call in tape.under_way] == [1]
        assert not tape.damage
    file = local_file(str(path))
    file.close()
    with pytest.raises(TapeError, match="was closed"):
        file.read_at(0, 1)


def test_a_hole_is_not_copied(tmp_path: Path) -> None:
    path = ahead(tmp_path / "a.ahead-0.tape", 1)
    os.truncate(path, 2**40)
    with pytest.raises(TapeError, match="larger than") as caught:
        open_tape(path)
    assert caught.value.kind == "limit"


@pytest.mark.parametrize("most_held", [0, 2**20])
def test_a_call_that_ends_while_it_is_copied_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_held: int
) -> None:
    """The call ends, and the next one is written, between two reads."""
    path = ahead(tmp_path / "a.ahead-0.tape", 1, size=4000)
    later = ahead(tmp_path / "b.tape", 2, size=9000).read_bytes()
    temporary, read_at = tempfile.TemporaryFile, tape_file.TapeFile.read_at

    class Slow:
        def __init__(self, **options: Any) -> None:
            self.file = temporary(**options)

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: bytes) -> int:
            done = self.file.write(data[:700])
            path.write_bytes(later)
            return done + self.file.write(data[700:])

    def reading(self: Any, offset: int, size: int) -> bytes:
        first = read_at(self, offset, 700)
        path.write_bytes(later)
        return first + read_at(self, offset + 700, size - 700)

    monkeypatch.setattr(tape_file, "MAX_HELD", most_held)
    monkeypatch.setattr(tempfile, "TemporaryFile", Slow)
    if most_held:
        monkeypatch.setattr(tape_file.TapeFile, "read_at", reading)
    with open_tape(path) as tape:
        assert [call.number for call in tape] == [2]
        assert not tape.damage


def test_a_small_write_ahead_file_needs_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ahead(tmp_path / "a.ahead-0.tape", 1, size=4000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no such folder"))
    with open_tape(path) as tape:
        assert [call.number for call in tape] == [1]
    monkeypatch.setattr(tape_file, "MAX_HELD", 0)
    with pytest.raises(TapeError, match="no temporary file can be made: No such file") as caught:
        open_tape(path)
    assert caught.value.kind == "io"


@pytest.mark.integration
def test_what_memory_is_granted_is_no_bound_of_a_write_ahead_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ahead(tmp_path / "a.ahead-0.tape", 1, size=400_000)
    monkeypatch.setattr(tape_file, "MAX_HELD", 0)
    with Limits(nbytes=1000), open_tape(path) as tape:
        assert [call.number for call in tape.calls] == [1]


@pytest.mark.integration
def test_a_live_directory_kills_nobody(tmp_path: Path) -> None:
    """Write-ahead files are cut and written while they are read."""
    model = torch.nn.Identity()
    recorder = Recorder(tmp_path / "a.tape", write_ahead=True).attach(model)
    done = threading.Event()

    def serve() -> None:
        n = 0
        while not done.is_set() and n < 3000:  # each round reads all of them
            n += 1
            model(torch.zeros(1 + n % 700, 9))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for _ in range(15):
            with open_tape(tmp_path) as tape:
                assert not tape.damage
                for call in tape:
                    call.inputs  # noqa: B018
                assert not tape.damage
                numbers = [call.number for call in tape.calls]
                assert len(set(numbers)) == len(numbers)
    finally:
        done.set()
        thread.join()
        recorder.close()


# What is no file.


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "not a regular file"),
        (lambda path: os.symlink(path, path), "Too many levels of symbolic links"),
        (lambda path: os.symlink("/nowhere/at/all", path), "no such file"),
        (lambda path: os.symlink("/dev/zero", path), "not a regular file"),
    ],
)
def test_what_is_no_file_is_said(many: Path, make: Callable[[str], Any], reason: str) -> None:
    make(str(many / "x.tape"))
    with open_tape(many) as tape:
        assert len(tape) == 16
        (error,) = tape.damage
        assert reason in error.reason
        assert error.path == str(many / "x.tape")


def test_a_pipe_that_takes_the_place_of_a_file_does_not_hang(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = many / "x.tape"
    os.mkfifo(path)
    real, regular = os.stat, os.stat(many / "0.tape")
    monkeypatch.setattr(
        tape_file.os, "stat", lambda name: regular if name == str(path) else real(name)
    )
    with pytest.raises(TapeError, match="not a regular file"):
        open_tape(path)


@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_may_not_be_read_is_said(
    many: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tape_file.os, "open" if what == "file" else "scandir", refuse)
    with pytest.raises(TapeError, match="Permission denied") as caught:
        open_tape(many)
    assert caught.value.kind == "io"


def test_a_file_of_write_ahead_that_is_just_made_is_no_damage(many: Path) -> None:
    (many / "a.ahead-0.tape").touch()
    with open_tape(many) as tape:
        assert len(tape) == 16
        assert not tape.damage
    with pytest.raises(TapeError, match="empty"):
        open_tape(many / "a.ahead-0.tape")


# Reading.


def test_a_hole_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of some KiB may claim terabytes of zeros behind its last call, or before one."""
    path = tmp_path / "sparse.tape"
    write_tape(path, tensor_calls(3), sealed=False)
    whole = path.read_bytes()
    os.truncate(path, 2**40)
    with path.open("r+b") as file:
        file.seek(2**40)
        file.write(whole)
    if path.stat().st_blocks * 512 > 2**20:
        pytest.skip("this file system has no holes")
    reads: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda f, n, at: reads.append(n) or pread(f, n, at))
    with open_tape(path) as tape:
        assert values(tape) == [0, 1, 2]
        assert len(tape.damage) >= 1, "what lies behind the hole is said"
    assert sum(reads) < 2**24


def test_a_window_reads_what_the_file_has(tmp_path: Path) -> None:
    data = os.urandom(700_000)
    (tmp_path / "a").write_bytes(data)
    file = TapeFile(str(tmp_path / "a"))
    window = Window(file)
    places = [(0, 512), (512, 9), (4000, 500), (600_000, 99_999), (699_990, 512), (10, 5)]
    places += [(start, 512) for start in range(0, 700_000, 3777)]
    places += [(699_999, 1), (700_000, 4), (900_000, 1), (0, 700_000)]
    for offset, size in places:
        expected = data[offset : offset + size]
        assert window.read(offset, size) == file.read_at(offset, size) == expected
        assert file.copy(offset, size) == expected
    assert file.crc32(1000, 650_000) == zlib.crc32(data[1000:651_000])
    file.close()
