"""What people who run servers are told: logs and accounts."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.write import writer
from tests.recorder.logs import log_handler
from tests.recorder.processes import child


def test_a_recording_says_what_it_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "calltape")
    model, path = torch.nn.Linear(2, 3), tmp_path / "a.tape"
    recorder = record(model, path)
    model(torch.zeros(1, 2))
    recorder.detach()
    recorder.attach(model)
    for _ in range(3):  # of news of one kind, once a minute
        model(torch.zeros(1, 2))
        recorder.seal()
    recorder.close()
    name = "torch.nn.modules.linear:Linear.forward"
    last = tmp_path / "a-00003.tape"
    assert caplog.messages == [
        f"calltape, process {os.getpid()}: recording {name} to {path}",
        f"calltape, process {os.getpid()}: sealed {path}: the next calls go to another file",
        f"calltape, process {os.getpid()}: sealed {last}: 4 of 4 calls are on the tape",
    ]
    assert all(record.levelno == logging.INFO for record in caplog.records)


def test_accounts_say_where_and_when_was_written(tmp_path: Path) -> None:
    model = torch.nn.Identity()
    recorder = record(model, tmp_path / "a.tape")
    stats = recorder.stats()
    assert stats.path == str(tmp_path / "a.tape")
    assert (stats.last_write_ns, stats.last_error, stats.last_error_ns) == (None, None, None)
    assert stats.target == "torch.nn.modules.linear:Identity.forward"
    before = time.time_ns()
    model(torch.zeros(1))
    recorder.flush()
    assert before <= (recorder.stats().last_write_ns or 0) <= time.time_ns()
    recorder.seal()
    model(torch.zeros(1))
    recorder.flush()
    assert recorder.stats().path == str(tmp_path / "a-00001.tape")
    recorder.close()


@pytest.mark.parametrize(
    "name", ["../../x", "/x", "a/b", "..", ".x", "", "-x", "x" * 300, "\x1b[2J"]
)
def test_the_name_of_a_class_leads_nowhere(name: str, tmp_path: Path) -> None:
    """In a directory a tape has the name of the class, which may be any text."""
    model: Any = type("Model", (torch.nn.Identity,), {})()
    type(model).__name__ = name
    with record(model, f"{tmp_path}/a/b/") as recorder:
        model(torch.ones(1))
    path = Path(recorder.path)
    assert path.parent == tmp_path / "a/b"
    assert path.name[0] not in ".-"
    assert path.name.isprintable()
    assert path.exists()


def test_no_call_waits_for_a_log_handler_that_is_told_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The background thread says them."""
    monkeypatch.setattr(writer, "LOOK_SECONDS", 0.01)
    caplog.set_level(logging.INFO, "calltape")
    waits, goes_on, told = threading.Event(), threading.Event(), list[str]()

    def handle(_: logging.LogRecord) -> None:
        told.append(threading.current_thread().name)
        waits.set()
        goes_on.wait(60)

    model, x = torch.nn.Identity(), torch.zeros(1)
    with log_handler(handle), record(model, tmp_path / "a.tape") as recorder:
        assert waits.wait(60)  # it is told what is recorded
        for _ in range(100):
            model(x)
        recorder.pause()
        recorder.resume()
        assert recorder.stats().seen == 100
        goes_on.set()
        assert recorder.flush()
        assert set(told) == {"calltape-writer"}


@pytest.mark.integration
def test_nothing_is_sent_and_nothing_written_elsewhere(tmp_path: Path) -> None:
    """By a recording, from its beginning to its end."""
    control = tmp_path / "control.json"
    control.write_text('{"rate": 0.5}')
    control.chmod(0o600)
    said = child(
        """
        from calltape_recorder import FlightRecorder, Rate
        does, folder = [], sys.argv[1] + "/tapes"

        def hook(event, args):
            if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                does.append((event, str(args[0])))
            elif event.startswith(("socket.", "subprocess.", "os.exec", "urllib.")):
                does.append((event, ""))
            elif event in ("os.mkdir", "os.rename", "os.remove", "os.symlink", "os.link"):
                does.append((event, str(args[0])))

        sys.addaudithook(hook)
        options = {"keep": Rate(0.5), "flight_recorder": FlightRecorder(), "write_ahead": True}
        with record(
            model, folder + "/", segment_bytes=1, control=sys.argv[1] + "/control.json",
            max_disk_bytes=10**6, when_full="delete_oldest", **options,
        ) as recorder:
            for n in range(20): model(one * n, one)
            recorder.flush()
            recorder.seal()
            recorder.dump("all")
        assert recorder.stats().kept == 20
        for event, path in does:
            print(event, path)
        """,
        str(tmp_path),
    ).splitlines()
    assert {line.partition(" ")[0] for line in said} == {"open", "os.mkdir", "os.remove"}
    assert all(line.partition(" ")[2].startswith(f"{tmp_path}/tapes") for line in said), said
