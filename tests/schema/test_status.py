"""The status of a recorder: what a recorder writes is read, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema import TapeError
from calltape_schema.processes import Process, is_gone, this_process
from calltape_schema.status import SIZE, Status, encode_status, read_status

STATUS = Status(
    "3f9a01bc" * 4, this_process(), "recording", 1_000, 2_000, target="a.b:C.forward",
    file="C-7.tape", seen=5, kept=3, dropped={"policy": 1, "io": 1}, last_write_ns=1_500,
    last_error="the disk is slow", last_error_ns=1_400, losing="io", losing_since_ns=1_450,
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "C-7.status.json"
    path.write_bytes(encode_status(STATUS))
    assert read_status(str(path)) == STATUS
    assert path.stat().st_size == SIZE
    assert json.loads(path.read_text())["calltape_status"] == 1


@given(
    text=st.text(max_size=5000),
    reasons=st.dictionaries(st.text(max_size=500), st.integers(0, 2**63 - 1), max_size=40),
)
def test_every_status_has_the_same_length(text: str, reasons: dict[str, int]) -> None:
    status = replace(STATUS, target=text, file=text, last_error=text, losing=text, dropped=reasons)
    content = encode_status(status)
    assert len(content) == SIZE
    assert content.endswith(b"\n")
    assert json.loads(content)["seen"] == 5


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(encode_status(STATUS)), **fields}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"1", b"\xff\xfe", b"[" * 4000, b"x" * (SIZE + 1), b"{}",
        changed(calltape_status=2), changed(seen=-1), changed(seen=True), changed(seen=2**63),
        changed(seen=1.5), changed(kept="3"), changed(dropped=[]), changed(dropped={"io": -1}),
        changed(activity="asleep"), changed(beat_seconds=0), changed(beat_seconds=1e9),
        changed(process=None), changed(process={}), changed(process={"pid": 0}),
        changed(process={"pid": -1}), changed(process={"pid": "1"}), changed(target=3),
        changed(tape=None), changed(last_write_ns="now"),
        b'{"calltape_status": 1, "seen": NaN}', b'{"calltape_status": 1}',
    ],
)  # fmt: skip
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.status.json"
    path.write_bytes(content)
    with pytest.raises(TapeError) as caught:
        read_status(str(path))
    assert caught.value.kind == "invalid"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TapeError) as caught:
        read_status(str(tmp_path / "missing"))
    assert caught.value.kind == "not_found"
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    (tmp_path / "real").write_bytes(encode_status(STATUS))
    (tmp_path / "link").symlink_to("real")
    for name in ("pipe", "link", "."):
        with pytest.raises(TapeError):
            read_status(str(tmp_path / name))


def test_a_later_version_may_have_more_fields(tmp_path: Path) -> None:
    path = tmp_path / "x.status.json"
    path.write_bytes(changed(weather="fine"))
    assert read_status(str(path)) == STATUS


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/ns"), reason="no /proc")


@needs_proc
def test_a_process_is_known_by_more_than_its_number() -> None:
    here = this_process()
    assert here.pid == os.getpid()
    assert None not in (here.started, here.boot, here.namespace)
    assert is_gone(here, here) is False
    assert here.started is not None
    assert is_gone(replace(here, started=here.started + 1), here) is True  # the number again
    assert is_gone(replace(here, started=None), here) is False
    assert is_gone(Process(1, None, here.boot, here.namespace), here) is False
    for stranger in (replace(here, boot="other"), replace(here, namespace=1), Process(here.pid)):
        assert is_gone(stranger, here) is None


@needs_proc
def test_a_process_that_ended_is_gone_also_before_somebody_waits_for_it() -> None:
    here = this_process()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process(child.pid, None, here.boot, here.namespace)
    assert is_gone(process, here) is False
    child.kill()
    while is_gone(process, here) is False:  # until the kernel has ended it
        pass
    assert child.poll() is not None or child.wait() is not None
    assert is_gone(process, here) is True
    assert child.stdin is not None
    child.stdin.close()
