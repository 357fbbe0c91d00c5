"""Sealed files are shipped, once, whole, and nothing else is; nothing is deleted before that."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ShipReport, TapeError, UsageError, ship
from calltape_analyzer.shipping import local_tapes, store
from calltape_analyzer.shipping.checksums import checksums_of, part_bytes
from calltape_analyzer.shipping.ending import Ending
from calltape_analyzer.shipping.shipment import Shipment
from calltape_recorder import Recorder
from tests.analyzer.cli.commands import run
from tests.analyzer.remote.conftest import Bucket
from tests.analyzer.tapes import write_tape

CALLS = [((torch.full((2, 3), float(n)),), {}) for n in range(3)]


def fill(folder: Path, count: int = 3) -> dict[str, bytes]:
    """Sealed tapes in a directory and one below it; their bytes by name."""
    (folder / "pod-1").mkdir(parents=True)
    found = {}
    for n in range(count):
        name = f"{'pod-1/' * (n % 2)}llm-{n:05d}.tape"
        write_tape(folder / name, CALLS, tape_id=bytes([n]) * 16)
        found[name] = (folder / name).read_bytes()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tapes"


def remote(bucket: Bucket, below: str = "") -> dict[str, bytes]:
    """What a bucket has."""
    system = bucket.system
    root = f"{bucket.name}{below}/"
    return {name.removeprefix(root): system.cat_file(name) for name in system.find(root)}


def test_sealed_files_are_shipped_under_their_paths(bucket: Bucket, folder: Path) -> None:
    files = fill(folder)
    report = ship(folder, f"{bucket.url}/host-1/")
    assert (report.shipped, report.there, report.deleted, report.problems) == (3, 0, 0, ())
    assert report.shipped_bytes == sum(map(len, files.values()))
    assert report.ok
    assert remote(bucket, "/host-1") == files
    again = ship(folder, f"{bucket.url}/host-1")
    assert (again.shipped, again.there) == (0, 3)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.tape")} == set(files)


def test_nothing_but_tapes_is_shipped(bucket: Bucket, folder: Path, tmp_path: Path) -> None:
    files = fill(folder, 1)
    (folder / "notes.txt").write_text("private")
    (folder / ".hidden.tape").write_bytes(files["llm-00000.tape"])
    (tmp_path / "elsewhere.tape").write_bytes(files["llm-00000.tape"])
    (folder / "link.tape").symlink_to(tmp_path / "elsewhere.tape")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.tape").write_bytes(files["llm-00000.tape"])
    (folder / "linked").symlink_to(tmp_path / "other")
    os.mkfifo(folder / "pipe.tape")
    (folder / "empty.tape").touch()
    (folder / "no.tape").write_bytes(b"this is no tape" * 100)
    report = ship(folder, bucket.url, delete_after=True)
    assert remote(bucket) == files
    assert (report.shipped, report.deleted, report.unsealed) == (1, 1, 1)
    (problem,) = report.problems
    assert problem.startswith("no.tape: ")
    assert (folder / "no.tape").exists()
    assert (folder / "link.tape").is_symlink()


def test_compressed_tapes_are_shipped_as_they_are(bucket: Bucket, folder: Path) -> None:
    fill(folder, 1)
    data = gzip.compress((folder / "llm-00000.tape").read_bytes())
    (folder / "a.tape.gz").write_bytes(data)
    (folder / "cut.tape.gz").write_bytes(data[: len(data) // 2])
    report = ship(folder, bucket.url)
    assert remote(bucket)["a.tape.gz"] == data
    assert [problem.partition(":")[0] for problem in report.problems] == ["cut.tape.gz"]
    assert report.shipped == 2


def test_a_file_that_is_being_written_is_not_shipped(bucket: Bucket, folder: Path) -> None:
    model = torch.nn.Identity()
    recorder = Recorder(folder / "llm.tape", write_ahead=True).attach(model)
    model(torch.ones(2))
    recorder.flush()
    shipment = Shipment(folder, bucket.url, delete_after=True, unsealed=True)
    shipment.look()
    assert remote(bucket) == {}
    assert shipment.report.unsealed >= 1
    recorder.close()
    data = (folder / "llm.tape").read_bytes()
    shipment.look()
    assert remote(bucket) == {"llm.tape": data}
    assert shipment.report.deleted == 1
    assert shipment.report.unsealed == 0
    assert not list(folder.glob("*.tape"))


def test_unsealed_files_are_shipped_when_nobody_has_them(
    bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    path = write_tape(folder / "a.tape", CALLS, sealed=False)
    assert ship(folder, bucket.url).unsealed == 1
    assert ship(folder, bucket.url, unsealed=True).unsealed == 1, "it was written just now"
    old = time.time() - 2 * local_tapes.IDLE_SECONDS
    os.utime(path, (old, old))
    assert ship(folder, bucket.url).unsealed == 1, "nobody asked for it"
    with path.open("rb"):
        assert ship(folder, bucket.url, unsealed=True).unsealed == 1, "a process has it open"
    assert remote(bucket) == {}
    report = ship(folder, bucket.url, unsealed=True, delete_after=True)
    assert (report.shipped, report.deleted) == (1, 1)
    assert len(remote(bucket)) == 1


def test_other_bytes_under_the_same_name_stay(bucket: Bucket, folder: Path) -> None:
    files = fill(folder)
    changed = bytearray(files["llm-00000.tape"])
    changed[-1] ^= 1
    bucket.put("llm-00000.tape", bytes(changed))
    bucket.put("pod-1/llm-00001.tape", b"shorter")
    code, out, err = run("ship", str(folder), bucket.url, "--delete-after")
    assert code == 1
    assert err.count("other bytes under this name") == 2
    assert "shipped 1 file" in out
    assert remote(bucket)["llm-00000.tape"] == bytes(changed)
    assert remote(bucket)["pod-1/llm-00001.tape"] == b"shorter"
    assert sorted(path.name for path in folder.rglob("*.tape")) == [
        "llm-00000.tape", "llm-00001.tape",
    ]  # fmt: skip


def test_a_name_that_is_taken_meanwhile_is_not_written_over(
    bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fill(folder, 1)
    real = store.Store.put

    def slowly(self: Any, name: str, source: str, sums: Any) -> bool:
        bucket.put(name, b"another host was faster")
        return real(self, name, source, sums)

    monkeypatch.setattr(store.Store, "put", slowly)
    report = ship(folder, bucket.url, delete_after=True)
    assert "other bytes" in report.problems[0]
    assert remote(bucket) == {"llm-00000.tape": b"another host was faster"}
    assert (folder / "llm-00000.tape").read_bytes() == files["llm-00000.tape"]
    monkeypatch.setattr(
        store.Store, "put",
        lambda self, name, source, sums: bool(bucket.put(name, files[name])) and real(
            self, name, source, sums
        ),
    )  # fmt: skip
    bucket.system.rm_file(f"{bucket.name}/llm-00000.tape")
    assert ship(folder, bucket.url, delete_after=True).deleted == 1, "the same bytes are no clash"


def test_what_is_not_equal_there_is_not_deleted_here(
    bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that acknowledges a file and loses its end."""
    files = fill(folder, 1)
    real = store.Store._send

    def cut(self: Any, source: str, name: str, sums: Any) -> None:
        bucket.put(name, files[name][:-512])

    monkeypatch.setattr(store.Store, "_send", cut)
    report = ship(folder, bucket.url, delete_after=True)
    assert report.deleted == 0
    assert report.problems
    monkeypatch.setattr(store.Store, "_send", lambda self, source, name, sums: None)
    bucket.system.rm_file(f"{bucket.name}/llm-00000.tape")
    report = ship(folder, bucket.url, delete_after=True)
    assert "not there after it was sent" in report.problems[0]
    assert (folder / "llm-00000.tape").exists()
    monkeypatch.setattr(store.Store, "_send", real)
    assert ship(folder, bucket.url, delete_after=True).deleted == 1


def test_a_store_whose_etags_are_no_checksums_is_read(
    bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, 1)
    monkeypatch.setattr("calltape_analyzer.shipping.checksums.Checksums.is_told_by",
                        lambda self, info: False)  # fmt: skip
    assert ship(folder, bucket.url).shipped == 1
    assert any(one.method == "GET" and one.range for one in bucket.traffic.asked)
    assert ship(folder, bucket.url, delete_after=True).deleted == 1


def test_large_files_go_in_parts(
    bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calltape_analyzer.shipping.checksums._PART", 5 * 2**20)
    model = torch.nn.Identity()
    folder.mkdir()
    recorder = Recorder(folder / "large.tape").attach(model)
    for n in range(3):
        model(torch.full((1_500_000,), float(n)))
    recorder.close()
    data = (folder / "large.tape").read_bytes()
    assert len(data) > 3 * 5 * 2**20
    assert ship(folder, bucket.url).shipped == 1
    parts = -(-len(data) // (5 * 2**20))
    assert sum(one.method == "PUT" for one in bucket.traffic.asked) == parts > 3
    assert remote(bucket) == {"large.tape": data}
    bucket.traffic.clear()
    assert ship(folder, bucket.url).there == 1
    assert not [one for one in bucket.traffic.asked if one.range], "the ETag of the parts tells"


def test_checksums() -> None:
    data = os.urandom(3 * 2**20 + 5)
    pieces = [data[at : at + 2**20] for at in range(0, len(data), 2**20)]
    found = checksums_of(pieces, len(data))
    assert found.size == len(data)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert found.md5 == hashlib.md5(data).hexdigest()
    assert found.is_told_by({"size": len(data), "ETag": f'"{found.md5}"'})
    assert not found.is_told_by({"size": len(data) - 1, "ETag": f'"{found.md5}"'})
    assert not found.is_told_by({"size": len(data), "ETag": '"of an encrypted object"'})
    for size in (0, 1, 2**30, 2**40, 5 * 2**40):
        assert size <= 10_000 * part_bytes(size)
        assert part_bytes(size) % 2**20 == 0


def test_a_file_system_without_whole_files(folder: Path, tmp_path: Path) -> None:
    """Elsewhere a file gets its name when it is whole; its owner alone may read it."""
    files = fill(folder)
    target = tmp_path / "target"
    report = ship(folder, f"file://{target}")
    assert report.shipped == 3
    found = {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}
    assert found == files
    assert {stat.S_IMODE(p.stat().st_mode) for p in target.rglob("*.tape")} == {0o600}
    left = (
        target / f".llm-00000.tape.{hashlib.sha256(files['llm-00000.tape']).hexdigest()[:16]}.part"
    )
    left.write_bytes(b"of a process that was killed")
    (target / "llm-00000.tape").unlink()
    again = ship(folder, f"file://{target}", delete_after=True)
    assert (again.shipped, again.there, again.deleted) == (1, 2, 3)
    assert not left.exists()
    assert (target / "llm-00000.tape").read_bytes() == files["llm-00000.tape"]


def test_memory_takes_them_too(folder: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    files = fill(folder)
    try:
        assert ship(folder, "memory://calltape-ship/x").shipped == 3
        assert ship(folder, "memory://calltape-ship/x", delete_after=True).deleted == 3
        found = memory.find("/calltape-ship/x")
        assert {n.removeprefix("/calltape-ship/x/"): memory.cat_file(n) for n in found} == files
    finally:
        memory.rm("/calltape-ship", recursive=True)


def test_a_full_disk_is_said_and_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder)
    import shutil

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        report = ship(folder, f"file://{tmp_path}/target", delete_after=True)
    assert report.shipped == report.deleted == 0
    assert all("No space left" in problem for problem in report.problems)
    assert not list((tmp_path / "target").rglob("*.tape"))
    assert ship(folder, f"file://{tmp_path}/target").shipped == 3


def test_a_store_that_is_down_is_not_asked_for_every_file(
    bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, 8)
    asked: list[str] = []

    def down(self: Any, name: str) -> None:
        from calltape_analyzer.reading.file_descriptors import RemoteError

        asked.append(name)
        raise RemoteError("io", "the server did not answer")

    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "_info", down)
        shipment = Shipment(folder, bucket.url)
        shipment.look()
    assert len(asked) == 3
    assert not shipment.report.ok
    assert "5 more files: not tried" in shipment.report.problems[-1]
    shipment.look()
    assert shipment.report.ok
    assert shipment.report.shipped == 8


def test_a_bucket_that_is_not_there(bucket: Bucket, folder: Path) -> None:
    fill(folder, 1)
    report = ship(folder, "s3://no-such-bucket-1/x", delete_after=True)
    assert len(report.problems) == 1
    assert (folder / "llm-00000.tape").exists()


def test_following_goes_on_until_the_end_is_asked_for(bucket: Bucket, folder: Path) -> None:
    folder.mkdir()
    ending, named = Ending(), []

    def told(name: str, size: int) -> None:
        named.append(name)
        if len(named) == 1:
            write_tape(folder / "b.tape", CALLS, tape_id=b"b" * 16)
        else:
            write_tape(folder / "c.tape", CALLS, tape_id=b"c" * 16)
            ending.ask(grace=30)

    write_tape(folder / "a.tape", CALLS)
    shipment = Shipment(folder, bucket.url, told=told)
    shipment.follow(0.01, ending)
    assert named[:3] == ["a.tape", "b.tape", "c.tape"]
    for name in "de":
        write_tape(folder / f"{name}.tape", CALLS, tape_id=name.encode() * 16)
    ending.ask()
    shipment.follow(0.01, ending)
    assert len(named) == 3, "no file is begun after the end"


def test_the_report_as_json(bucket: Bucket, folder: Path) -> None:
    fill(folder)
    code, out, err = run("ship", str(folder), f"{bucket.url}/x", "--json")
    assert (code, err) == (0, "")
    report = ShipReport.model_validate(json.loads(out))
    assert report.shipped == 3
    assert report.target == f"{bucket.url}/x"
    assert str(report).startswith(f"{bucket.url}/x: shipped 3 files, ")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/somewhere", "to a URL"),
        ("https://alice:hunter22@h/x?t=hidden", "takes no files"),
        ("nothing://x", "no file system"),
    ],
)
def test_what_takes_no_files(folder: Path, url: str, said: str) -> None:
    fill(folder, 1)
    with pytest.raises(UsageError, match=said) as caught:
        ship(folder, url)
    assert "hunter22" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_target_in_the_directory_itself(folder: Path) -> None:
    fill(folder, 1)
    with pytest.raises(UsageError, match="within the directory"):
        ship(folder, f"file://{folder}/pod-1/x")
    with pytest.raises(TapeError) as caught:
        ship(folder / "nothing", "memory://x")
    assert caught.value.kind == "not_found"
