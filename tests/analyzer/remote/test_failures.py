"""Stores that fail, and how much is asked of those that do not."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest
import torch

from calltape_analyzer import Limits, TapeError, open_tape
from calltape_recorder import record
from tests.analyzer.cli.commands import run
from tests.analyzer.remote.conftest import Bucket
from tests.analyzer.remote.counted import Asked, nothing
from tests.analyzer.tapes import write_tape

pytestmark = pytest.mark.integration

CALLS = [((torch.full((2 + n % 7, 3), float(n)),), {}) for n in range(300)]
BUSY = "503 Service Unavailable"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tape(tmp_path_factory.mktemp("failing") / "a.tape", CALLS).read_bytes()


@pytest.fixture(autouse=True)
def _tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()


def rejected(url: str, kind: str = "io") -> TapeError:
    """The error of a file that cannot be read."""
    with pytest.raises(TapeError) as caught:
        open_tape(url).close()
    assert caught.value.kind == kind, caught.value
    assert caught.value.__cause__ is None
    return caught.value


def test_reading_on_is_a_bounded_number_of_requests(bucket: Bucket, tmp_path: Path) -> None:
    calls = [((torch.zeros(1024),), {}) for _ in range(600)]  # 3 MiB
    path = write_tape(tmp_path / "a.tape", calls, sealed=False)
    with open_tape(bucket.put("a.tape", path)) as tape:
        assert len(tape) == 600
        assert len(bucket.traffic) < 12
    assert bucket.traffic.nbytes < 1.1 * path.stat().st_size


def test_large_tensors_are_not_read_for_shapes(bucket: Bucket, tmp_path: Path) -> None:
    model = torch.nn.Identity()
    with record(model, tmp_path / "a.tape"):
        for _ in range(5):
            model(torch.zeros(600_000))  # 2.3 MiB
    with open_tape(bucket.put("a.tape", tmp_path / "a.tape")) as tape:
        assert len(tape) == 5
        assert bucket.traffic.nbytes < 400_000
        assert tape[4].inputs.args[0].shape == (600_000,)


def test_a_scan_fetches_a_file_once(bucket: Bucket, tmp_path: Path) -> None:
    model = torch.nn.ReLU()
    with record(model, tmp_path / "x.tape") as recorder:
        for n in range(600):
            model(torch.zeros(n % 5 + 1, 2000))
            recorder.flush()
    whole = (tmp_path / "x.tape").read_bytes()
    data = whole[: len(whole) * 9 // 10]
    with open_tape(bucket.put("a.tape", data)) as tape:
        assert len(tape) > 400
        assert bucket.traffic.nbytes <= 1.05 * len(data)
        assert sum(call.inputs[0][0].shape[1] for call in tape) == 2000 * len(tape)
    assert bucket.traffic.nbytes <= 1.05 * len(data)
    assert len(bucket.traffic) < 30


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_a_compressed_file_is_fetched_once(bucket: Bucket, data: bytes, form: str) -> None:
    if form == "gz":
        packed = gzip.compress(data)
    else:
        packed = pytest.importorskip("backports.zstd").compress(data)
    url = bucket.put(f"a.tape.{form}", packed)
    with open_tape(url) as tape:
        assert len(tape) == 300
        assert not tape.damage
        assert tape.segments[0].disk_bytes <= 8 * len(packed)
    assert bucket.traffic.nbytes < 1.2 * len(packed) + 70_000
    cut = bucket.put(f"b.tape.{form}", packed[: len(packed) // 2])
    assert "the compressed file ends too early" in str(rejected(cut, "damaged"))


def test_a_compressed_bomb_is_bounded(bucket: Bucket) -> None:
    url = bucket.put("a.tape.gz", gzip.compress(bytes(30_000_000)))
    with Limits(nbytes=1_000_000):
        assert "larger than 1,000,000 bytes" in str(rejected(url, "limit"))


def test_an_empty_file_is_not_a_tape(bucket: Bucket) -> None:
    assert "empty" in str(rejected(bucket.put("a.tape", b""), "not_a_tape"))


def test_what_a_name_may_hide_is_not_shown(bucket: Bucket, data: bytes) -> None:
    """Somebody may have put s3:// before a signed address, and made a file of that name."""
    url = bucket.put("a.tape?X-Signature=s3cr3t", data[:-3000] + bytes(3000))
    for verb in ("info", "variants", "ls"):
        code, out, err = run(verb, url)
        assert code in (0, 3), err
        assert "s3cr3t" not in out + err
    with open_tape(url) as tape:
        assert tape.segments[0].location == url, "an export in another process opens it again"
        assert tape.paths == (f"{bucket.url}/a.tape?…",)
        assert tape.damage
        assert all(error.path == tape.paths[0] for error in tape.damage)


def test_a_store_that_never_answers_is_a_timeout(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLTAPE_REMOTE_SECONDS", "0.3")
    is_over = threading.Event()
    bucket.traffic.refuses = lambda asked: BUSY if is_over.wait(250) else None
    try:
        assert "within 0.3 s" in str(rejected(f"{bucket.url}/a.tape"))
    finally:
        is_over.set()


def test_a_limit_that_is_no_number_is_rejected(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLTAPE_REMOTE_SECONDS", "soon")
    assert "not a number of seconds" in str(rejected(f"{bucket.url}/a.tape", "usage"))


def test_a_store_that_stays_busy_is_not_asked_for_each_file(bucket: Bucket) -> None:
    bucket.traffic.refuses = lambda asked: BUSY
    for n in range(20):
        error = rejected(f"{bucket.url}/{n}.tape")
    assert error.reason.startswith(f"not asked, because {bucket.url} failed 2 times: ")
    assert len(bucket.traffic) == 2


def test_a_network_that_fails_is_no_damage(bucket: Bucket, data: bytes) -> None:
    with open_tape(bucket.put("a.tape", data)) as tape:
        bucket.traffic.refuses = lambda asked: BUSY
        with pytest.raises(TapeError) as caught:
            list(tape)
        assert caught.value.kind == "io"
        assert not tape.damage
        bucket.traffic.refuses = nothing
        assert len(list(tape)) == 300


def test_one_of_many_that_cannot_be_read_is_damage(bucket: Bucket, tmp_path: Path) -> None:
    urls = []
    for n in range(12):
        path = write_tape(tmp_path / "x.tape", CALLS[:3], tape_id=bytes([n]) * 16)
        urls.append(bucket.put(f"{n}.tape", path))

    def of_one(asked: Asked) -> str | None:
        return BUSY if asked.method == "GET" and asked.path.endswith("/7.tape") else None

    bucket.traffic.refuses = of_one
    with open_tape(urls) as tape:
        assert len(tape) == 11 * 3
        (error,) = tape.damage
        assert error.path == urls[7]
        assert tape.paths == tuple(url for url in urls if url != urls[7])


def test_a_file_of_the_same_size_that_changes_is_not_mixed(bucket: Bucket, data: bytes) -> None:
    with open_tape(bucket.put("a.tape", data)) as tape:
        bucket.put("a.tape", data[:-1] + b"x")
        with pytest.raises(TapeError, match="the file changed since it was opened"):
            list(tape)


def test_after_a_fork_the_child_reads_for_itself(bucket: Bucket, data: bytes) -> None:
    with open_tape(bucket.put("a.tape", data), scan=True) as tape:
        child = os.fork()
        if not child:
            try:
                os._exit(0 if len(list(tape)) == 300 else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(list(tape)) == 300
