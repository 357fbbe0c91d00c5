"""Tapes in object stores, over the real protocol of S3, and in memory."""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, filter_tape, open_tape
from calltape_analyzer.reading import files, remote
from calltape_analyzer.reading.files import files_of
from calltape_recorder import Recorder
from tests.analyzer.cli.commands import run
from tests.analyzer.remote.conftest import Bucket
from tests.analyzer.tapes import write_tape

CALLS = [((torch.full((2 + n % 7, 3), float(n)),), {}) for n in range(300)]
MOST_REQUESTS, MOST_BYTES = 10, 5 * 2**20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tape(tmp_path_factory.mktemp("store") / "a.tape", CALLS)


@pytest.fixture(scope="module")
def many_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed tape as the benchmark has it, of fewer calls: 996 shapes of two arguments."""
    path = tmp_path_factory.mktemp("store") / "many.tape"
    model = torch.nn.Identity()
    sizes = [(batch, length) for batch in (1, 2, 4, 8) for length in range(1, 250)]
    sent = [torch.zeros(size, dtype=torch.int64) for size in sizes]
    recorder = Recorder(path, values="none").attach(model)
    for call in range(20_000):
        model(sent[call * 7919 % len(sent)])
        if call % 1000 == 999:
            recorder.flush()
    recorder.close()
    return path


@pytest.mark.integration
def test_shapes_of_a_sealed_tape_take_few_requests(bucket: Bucket, many_calls: Path) -> None:
    url = bucket.put("runs/many.tape", many_calls)
    code, out, err = run("variants", url, "-v")
    assert code == 0, err
    assert "--scan" in err
    assert len(bucket.traffic) <= MOST_REQUESTS
    assert bucket.traffic.nbytes <= MOST_BYTES
    assert bucket.traffic.nbytes < many_calls.stat().st_size / 3
    assert out == run("variants", str(many_calls))[1]


@pytest.mark.integration
def test_the_command_needs_as_few_requests(bucket: Bucket, many_calls: Path) -> None:
    url = bucket.put("many.tape", many_calls)
    command = [sys.executable, "-m", "calltape_analyzer", "variants", url]
    environment = {**os.environ, **bucket.environment}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250)
    assert ran.returncode == 0, ran.stderr
    assert len(bucket.traffic) <= MOST_REQUESTS
    assert ran.stdout == run("variants", str(many_calls))[1]


@pytest.mark.integration
def test_many_sealed_tapes_take_two_requests_each(bucket: Bucket, tmp_path: Path) -> None:
    tapes = (
        write_tape(tmp_path / "x.tape", CALLS[:20], tape_id=bytes([n]) * 16) for n in range(60)
    )
    files = {f"{bucket.name}/runs/{n}.tape": tape.read_bytes() for n, tape in enumerate(tapes)}
    bucket.system.pipe(files)
    bucket.traffic.clear()
    with open_tape(f"{bucket.url}/runs") as tape:
        assert tape.infer_dynamic_shapes()
        assert len(tape) == 60 * 20
    assert 60 < len(bucket.traffic) <= 130


COMMANDS = [
    ("info",), ("info", "--json"), ("info", "--quick"), ("ls",), ("show", "3"),
    ("variants", "--scan"), ("variants",), ("explain", "input"),
]  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_says_the_same(bucket: Bucket, path: Path, command: tuple[str, ...]) -> None:
    url = bucket.put("a.tape", path)
    name, *rest = command
    if name in ("show", "explain"):
        remote, local = (run(name, where, *rest) for where in (url, str(path)))
    else:
        remote, local = (run(name, *rest, where) for where in (url, str(path)))
    folder = url.rpartition("/")[0]  # which stands for the host
    said = remote[1].replace(url, "PATH").replace(f'"{folder}"', '"HOST"')
    assert said == local[1].replace(str(path), "PATH").replace(f'"{path.parent}"', '"HOST"')
    assert remote[0] == local[0], remote[2]


@pytest.mark.integration
def test_a_remote_tape_is_an_input_of_others(bucket: Bucket, path: Path, tmp_path: Path) -> None:
    with open_tape(bucket.put("a.tape", path)) as tape:
        filter_tape(tape.only(calls="3..5"), tmp_path / "cut.tape")
    with open_tape(tmp_path / "cut.tape") as cut:
        assert [call.number for call in cut] == [3, 4, 5]
    assert run("diff", bucket.put("b.tape", path), str(path))[0] == 0


@pytest.mark.integration
def test_directories_and_patterns_in_a_bucket_name_its_tapes(
    bucket: Bucket, path: Path, tmp_path: Path
) -> None:
    for n in range(4):
        own = write_tape(tmp_path / "x.tape", CALLS[:2], tape_id=bytes([n]) * 16)
        bucket.put(f"day{n % 2}/host/{n}.tape", own)
    bucket.put("day1/notes.txt", b"no tape")
    bucket.put("day1/a*b.tape.gz", gzip.compress(path.read_bytes()))
    for given, names in {
        "": ["day0/host/0.tape", "day0/host/2.tape", "day1/a*b.tape.gz", "day1/host/1.tape",
             "day1/host/3.tape"],
        "/day0": ["day0/host/0.tape", "day0/host/2.tape"],
        "/day0/": ["day0/host/0.tape", "day0/host/2.tape"],
        "/*/host/[01].tape": ["day0/host/0.tape", "day1/host/1.tape"],
        "/day1/*.gz": ["day1/a*b.tape.gz"],
        "/day1/a*b.tape.gz": ["day1/a*b.tape.gz"],
        "/day?/**/3.tape": ["day1/host/3.tape"],
    }.items():  # fmt: skip
        assert files_of(bucket.url + given) == [f"{bucket.url}/{name}" for name in names], given
    with open_tape(bucket.url) as tape:
        assert len(tape) == 308
        assert not tape.damage
    for missing in ("/nothing", "/nothing*", "/day1/notes*/x"):
        with pytest.raises(TapeError) as caught:
            files_of(bucket.url + missing)
        assert caught.value.kind == "not_found"
    with pytest.raises(TapeError) as caught:
        open_tape("s3://no-such-bucket-1/a.tape")
    assert caught.value.kind == "not_found"


def test_a_new_file_is_seen(bucket: Bucket, path: Path) -> None:
    bucket.put("d/a.tape", path)
    assert len(files_of(f"{bucket.url}/d")) == 1
    bucket.put("d/b.tape", path)
    assert len(files_of(f"{bucket.url}/d")) == 2
    assert len(files_of(f"{bucket.url}/d/*")) == 2


@pytest.mark.integration
def test_a_list_of_too_many_names_is_refused(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(13):
        bucket.put(f"{n}.tape", b"x")
    monkeypatch.setattr(files, "MOST_NAMES", 5)
    for url in (bucket.url, f"{bucket.url}/*.tape"):
        with pytest.raises(TapeError, match="more than 5 files") as caught:
            files_of(url)
        assert caught.value.kind == "limit"


@pytest.mark.integration
def test_an_object_that_changes_is_the_same_error(
    bucket: Bucket, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tape(tmp_path / "b.tape", CALLS[:200])
    url = bucket.put("a.tape", path)
    with open_tape(url) as tape:
        bucket.put("a.tape", other)
        with pytest.raises(TapeError, match="the file changed since it was opened") as caught:
            list(tape)
        assert caught.value.kind == "damaged"
    monkeypatch.setattr(remote, "MOST_CACHED", 0)
    with open_tape(url) as tape:
        tape.calls.scan()
        bucket.put("a.tape", path)
        with pytest.raises(TapeError, match="the file changed since it was opened"):
            tape[150].record  # noqa: B018
    with open_tape(url) as tape:
        bucket.system.rm_file(url)
        with pytest.raises(TapeError, match="the file changed since it was opened"):
            list(tape)


def test_access_that_is_refused_shows_no_key(bucket: Bucket, monkeypatch: Any) -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("CALLTAPE_REMOTE_SECONDS", "3")
    with pytest.raises(TapeError) as caught:
        open_tape(f"{bucket.url}/a.tape")
    assert caught.value.kind == "io"
    assert bucket.environment["AWS_SECRET_ACCESS_KEY"] not in repr(pickle.dumps(caught.value))
    s3fs.S3FileSystem.clear_instance_cache()


def test_an_answer_that_comes_late_moves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of fsspec has one position, and a thread may read it still that nobody waits for."""
    fsspec = pytest.importorskip("fsspec")
    memory, data = fsspec.filesystem("memory"), path.read_bytes()
    is_slow, is_asked, is_released, has_moved = (threading.Event() for _ in range(4))

    class Slow(fsspec.spec.AbstractBufferedFile):  # type: ignore[misc]
        def _fetch_range(self, start: int, end: int) -> bytes:
            if is_slow.is_set():
                is_slow.clear()
                is_asked.set()
                is_released.wait(60)
            return data[start:end]

        def read(self, length: int = -1) -> Any:
            found = super().read(length)
            if is_released.is_set():
                has_moved.set()
            return found

        def seek(self, loc: int, whence: int = 0) -> Any:
            super().seek(loc, whence)
            if is_asked.is_set() and not is_released.is_set():  # the late answer comes now
                is_released.set()
                has_moved.wait(60)

    memory.pipe_file("/calltape/late/a.tape", data)
    monkeypatch.setattr(remote, "SILENT_SECONDS", 0)
    monkeypatch.setattr(
        type(memory), "open", lambda self, path, *_, **__: Slow(self, path, cache_type="none")
    )
    try:
        with open_tape("memory://calltape/late/a.tape") as tape:
            is_slow.set()
            monkeypatch.setenv("CALLTAPE_REMOTE_SECONDS", "0.2")
            with pytest.raises(TapeError, match=r"did not answer within 0\.2 s"):
                list(tape)
            monkeypatch.delenv("CALLTAPE_REMOTE_SECONDS")
            found = [float(call.inputs.args[0][0, 0]) for call in tape]
            assert found == [float(number) for number in range(300)]
            assert not tape.damage
    finally:
        is_released.set()
        memory.rm("/calltape", recursive=True)


# A store that cannot compare versions with each request.


def test_tapes_in_memory_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe_file("/calltape/d/a.tape", path.read_bytes())
    try:
        assert files_of("memory://calltape") == ["memory://calltape/d/a.tape"]
        assert files_of("memory:///calltape/*/*.tape") == ["memory:///calltape/d/a.tape"]
        assert "memory:///calltape/d/a.tape" in files_of("memory://")
        with open_tape("memory://calltape/d/a.tape") as tape:
            assert tape.source == "end"
            assert len(list(tape)) == 300
        monkeypatch.setattr(remote, "TRUSTED_SECONDS", 0)
        with open_tape("memory://calltape/d/a.tape") as tape:
            memory.pipe_file("/calltape/d/a.tape", path.read_bytes())
            with pytest.raises(TapeError, match="the file changed since it was opened"):
                list(tape)
        memory.pipe_file("/calltape/d/a.tape", b"")
        with pytest.raises(TapeError, match="empty"):
            open_tape("memory://calltape/d/a.tape")
        with pytest.raises(TapeError, match="no such file"):
            open_tape("memory://calltape/none.tape")
    finally:
        memory.rm("/calltape", recursive=True)
