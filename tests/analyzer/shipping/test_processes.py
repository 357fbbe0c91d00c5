"""``calltape ship`` in a process of its own: killed at any time, ended by signals."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.analyzer.remote.conftest import Bucket
from tests.analyzer.remote.counted import Asked, Traffic, nothing
from tests.analyzer.shipping.test_shipping import CALLS, fill, remote
from tests.analyzer.tapes import write_tape

pytestmark = pytest.mark.integration


def started(bucket: Bucket | None, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **(bucket.environment if bucket else {})}
    return subprocess.Popen(
        [sys.executable, "-m", "calltape_analyzer", "ship", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def until(condition: object, seconds: float = 60) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to this"
        time.sleep(0.05)


@pytest.fixture
def traffic(bucket: Bucket) -> Iterator[Traffic]:
    yield bucket.traffic
    bucket.traffic.before = bucket.traffic.after = nothing


@pytest.mark.chaos
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_in_the_middle_and_run_again(
    bucket: Bucket, traffic: Traffic, tmp_path: Path, moment: str
) -> None:
    """Killed when the third file is under way, and when it is there and nobody knows it yet."""
    files = fill(tmp_path / "tapes", 6)
    words = (str(tmp_path / "tapes"), f"{bucket.url}/x", "--delete-after")
    process = started(bucket, *words)
    sent: list[str] = []

    def kill(one: Asked) -> None:
        if one.method == "PUT":
            sent.append(one.path)
            if len(sent) == 3:
                process.kill()
                process.wait()

    setattr(traffic, moment, kill)
    assert finished(process)[0] == -signal.SIGKILL
    setattr(traffic, moment, nothing)
    there = remote(bucket, "/x")
    here = {str(p.relative_to(tmp_path / "tapes")) for p in (tmp_path / "tapes").rglob("*.tape")}
    assert 2 <= len(there) <= 3
    assert {*there, *here} == set(files)
    assert all(data == files[name] for name, data in there.items())
    assert len(here) >= 4
    code, out, err = finished(started(bucket, *words))
    assert code == 0, err
    assert remote(bucket, "/x") == files
    assert not list((tmp_path / "tapes").rglob("*.tape"))
    assert "deleted here" in out


@pytest.mark.chaos
def test_killed_at_any_time_nothing_is_lost(tmp_path: Path) -> None:
    """To a file system in which a file can be half there."""
    files = fill(tmp_path / "tapes", 20)
    target = tmp_path / "target"
    words = (str(tmp_path / "tapes"), f"file://{target}", "--delete-after")
    source = tmp_path / "tapes"
    random.seed(7)
    for _ in range(6):
        process = started(None, *words)
        until(lambda: target.exists() or process.poll() is not None)  # noqa: B023
        time.sleep(random.random() * 0.1)
        process.kill()
        finished(process)
        for name, data in files.items():
            places = [folder / name for folder in (source, target) if (folder / name).exists()]
            assert places, f"{name} is lost"
            assert all(place.read_bytes() == data for place in places)
    assert finished(started(None, *words))[0] == 0
    found = {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*.tape")}
    assert found == files
    assert not [p for p in target.rglob(".*") if p.name.endswith(".part")]


@pytest.mark.chaos
def test_two_at_once(bucket: Bucket, tmp_path: Path) -> None:
    files = fill(tmp_path / "tapes", 8)
    words = (str(tmp_path / "tapes"), bucket.url, "--delete-after")
    both = [started(bucket, *words) for _ in range(2)]
    for process in both:
        code, _, err = finished(process)
        assert code == 0, err
    assert remote(bucket) == files
    assert not list((tmp_path / "tapes").rglob("*.tape"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_following_ends_cleanly(bucket: Bucket, tmp_path: Path, number: int) -> None:
    files = fill(tmp_path / "tapes", 3)
    process = started(bucket, str(tmp_path / "tapes"), bucket.url, "--follow", "--every", "0.1")
    until(lambda: len(remote(bucket)) == 3)
    later = write_tape(tmp_path / "tapes" / "z.tape", CALLS, tape_id=b"z" * 16)
    until(lambda: len(remote(bucket)) == 4)
    process.send_signal(number)
    code, out, err = finished(process)
    assert (code, err) == (0, "")
    assert out.count("shipped z.tape") == 1
    assert out.splitlines()[-1].startswith(f"{bucket.url}: shipped 4 files")
    assert remote(bucket) == {**files, "z.tape": later.read_bytes()}


def test_a_problem_is_told_when_it_comes_and_once(bucket: Bucket, tmp_path: Path) -> None:
    fill(tmp_path / "tapes", 1)
    bucket.put("llm-00000.tape", b"other bytes")
    words = (str(tmp_path / "tapes"), bucket.url, "--follow", "--every", "0.05")
    process = started(bucket, *words)
    assert process.stderr is not None
    assert "other bytes under this name" in process.stderr.readline()
    write_tape(tmp_path / "tapes" / "b.tape", CALLS, tape_id=b"b" * 16)
    until(lambda: "b.tape" in remote(bucket))
    process.send_signal(signal.SIGTERM)
    code, _, err = finished(process)
    assert (code, err) == (1, "")


def test_what_is_sealed_at_the_end_is_shipped_still(bucket: Bucket, tmp_path: Path) -> None:
    """A server and its sidecar get SIGTERM together: the server seals its tape then."""
    fill(tmp_path / "tapes", 1)
    process = started(bucket, str(tmp_path / "tapes"), bucket.url, "--follow", "--every", "60")
    until(lambda: len(remote(bucket)) == 1)
    write_tape(tmp_path / "tapes" / "last.tape", CALLS, tape_id=b"l" * 16)
    process.send_signal(signal.SIGTERM)
    assert finished(process)[0] == 0
    assert "last.tape" in remote(bucket)


def test_a_second_signal_ends_it_at_once(bucket: Bucket, traffic: Traffic, tmp_path: Path) -> None:
    fill(tmp_path / "tapes", 3)
    process = started(bucket, str(tmp_path / "tapes"), bucket.url, "--delete-after")
    seen: list[Asked] = []

    def hold(one: Asked) -> None:
        if one.method == "PUT":
            seen.append(one)
            process.wait()

    traffic.before = hold
    until(lambda: seen)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None, "the file that is under way is finished first"
    process.send_signal(signal.SIGINT)
    code, _, err = finished(process)
    assert code == 130
    assert "Traceback" not in err
    assert len(list((tmp_path / "tapes").rglob("*.tape"))) == 3
