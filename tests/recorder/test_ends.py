"""Processes end in many ways; what was acknowledged is on the tape."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import First, FlightRecorder, Recorder, record
from tests.recorder.models import Add
from tests.recorder.processes import child, in_a_fork
from tests.recorder.reading import read


@pytest.mark.parametrize("via", ["hook", "method"])
def test_a_forked_child_has_a_tape_of_its_own(tmp_path: Path, via: Any) -> None:
    model, path, x = Add(), tmp_path / "t.tape", torch.ones(3)
    with record(model, path, via=via) as recorder:
        model(x, x)

        def child() -> bool:
            fine = recorder.stats().state == "forked" and not recorder.flush(1)
            fine &= all(torch.equal(model(x, x), x + x) for _ in range(3))
            fine &= recorder.stats().seen == 3 and recorder.flush(20)
            model(x, x)
            recorder.close()
            return fine and recorder.stats().kept == 4 and torch.equal(model(x, x), x + x)

        pid = in_a_fork(child)
        model(x, x)
    assert recorder.stats().kept == 2
    tape = read(path)
    assert tape.numbers == [0, 1]
    assert tape.end is not None
    own = read(tmp_path / f"t-p{pid}.tape")
    assert own.end is not None
    assert own.numbers == [0, 1, 2, 3]
    assert own.manifest.tape != tape.manifest.tape
    assert own.manifest.target == tape.manifest.target


def test_a_forked_child_that_calls_nothing_leaves_no_file(tmp_path: Path) -> None:
    model, x = Add(), torch.ones(3)
    with record(model, tmp_path / "t.tape") as recorder:
        model(x, x)

        def child() -> bool:
            recorder.close()
            return recorder.stats().state in ("closed", "forked")

        in_a_fork(child)
    assert os.listdir(tmp_path) == ["t.tape"]
    assert recorder.stats().kept == 1


def test_a_grandchild_and_a_fork_within_a_call(tmp_path: Path) -> None:
    class Forks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.pid = os.fork()
            return x + 1

    model, x, parent = Forks(), torch.ones(3), os.getpid()
    recorder = record(model, tmp_path / "t.tape")
    model(x)
    if os.getpid() != parent:
        # The call began in the parent, and is the parent's.
        status = 1
        try:
            pid = in_a_fork(lambda: torch.equal(Forks.forward(model, x), x + 1))
            fine = pid > 0 and recorder.stats().seen == 0
            status = 0 if fine else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(model.pid, 0)[1]) == 0
    recorder.close()
    assert read(tmp_path / "t.tape").numbers == [0]
    assert os.listdir(tmp_path) == ["t.tape"]


def test_the_options_hold_in_a_fork(tmp_path: Path) -> None:
    model, x = Add(), torch.ones(3)
    options: Any = {"keep": First(2), "flight_recorder": FlightRecorder(calls=1)}
    with record(model, tmp_path / "t.tape", write_ahead=True, **options) as recorder:
        model(x, x)
        model(x, x)
        model(x, x)

        def child() -> bool:
            for _ in range(5):
                model(x, x)
            recorder.dump("in the child")
            recorder.close()
            return True

        pid = in_a_fork(child)
    assert read(tmp_path / "t.tape").numbers == [0, 1]
    own = read(tmp_path / f"t-p{pid}.tape")
    assert own.numbers == [0, 1, 4]
    assert own.end is not None
    assert own.end.coverage.dropped == {"flight_recorder": 2}
    assert sorted(os.listdir(tmp_path)) == [f"t-p{pid}.tape", "t.tape"]


@pytest.mark.integration
def test_fork_while_every_lock_of_the_recorder_is_busy(tmp_path: Path) -> None:
    model, path, x = Add(), tmp_path / "t.tape", torch.ones(3)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            model(x, x)

    with record(model, path, max_queue_bytes=100_000) as recorder:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                try:
                    model(x, x)
                    recorder.stats()
                    recorder.close()
                finally:
                    os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0  # pytest-timeout ends a child that hangs
        stop.set()
        for thread in threads:
            thread.join()
    stats = recorder.stats()
    assert stats.seen == stats.kept + sum(stats.dropped.values())
    assert len(read(path).calls) == stats.kept


@pytest.mark.integration
@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "del recorder, model",
        "sys.exit(0)",
        "threading.Thread(target=lambda: time.sleep(.2)).start()",
    ],
)
def test_exit_without_close_seals_the_tape(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "t.tape"
    child(
        f"""
        recorder = record(model, sys.argv[1])
        for n in range(300): model(one * n, one)
        {ending}
        """,
        str(path),
    )
    tape = read(path)
    assert tape.numbers == list(range(300))
    assert tape.end is not None


@pytest.mark.integration
def test_exit_by_an_exception_seals_the_tape(tmp_path: Path) -> None:
    path = tmp_path / "t.tape"
    child("record(model, sys.argv[1]); model(one, one); raise KeyError", str(path), code=1)
    assert read(path).end is not None


@pytest.mark.integration
def test_os_exit_keeps_what_was_flushed(tmp_path: Path) -> None:
    path = tmp_path / "t.tape"
    child(
        """
        recorder = record(model, sys.argv[1])
        for n in range(50): model(one * n, one)
        recorder.flush()
        os._exit(0)
        """,
        str(path),
    )
    tape = read(path)
    assert tape.numbers == list(range(50))
    assert tape.end is None


@pytest.mark.integration
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_children_have_tapes_of_their_own(tmp_path: Path, method: str) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys, torch
            from calltape_recorder import record
            from tests.recorder.models import Add
            model, one = Add(), torch.ones(2)
            def work(path):
                mine = Add()
                record(mine, path)
                for _ in range(5): mine(one, one)
                model(one, one)
            if __name__ == "__main__":
                context = multiprocessing.get_context(sys.argv[1])
                recorder = record(model, sys.argv[2] + "/parent.tape")
                model(one, one)
                children = [
                    context.Process(target=work, args=(f"{sys.argv[2]}/{n}.tape",))
                    for n in range(2)
                ]
                for c in children: c.start()
                for c in children: c.join()
                assert all(c.exitcode == 0 for c in children)
                model(one, one)
            """
        )
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}",
    }
    subprocess.run(
        [sys.executable, str(script), method, str(tmp_path)],
        check=True, env=environment, timeout=200,
    )  # fmt: skip
    for name, calls in (("parent", 2), ("0", 5), ("1", 5)):
        tape = read(tmp_path / f"{name}.tape")
        assert len(tape.calls) == calls
        assert tape.end is not None


def test_a_recorder_that_was_never_closed_is_sealed_once(tmp_path: Path) -> None:
    from calltape_recorder.host import lifecycle

    recorder = Recorder(tmp_path / "t.tape").attach(Add())
    assert recorder in lifecycle._open
    recorder.close()
    assert recorder not in lifecycle._open


@pytest.mark.integration
@pytest.mark.parametrize(
    ("ending", "code", "is_sealed"),
    [
        ("os._exit(0)", 0, False),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, False),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, False),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, False),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, True),
        ("exits = lambda *_: sys.exit(0); signal.signal(signal.SIGTERM, exits);"
         " os.kill(os.getpid(), signal.SIGTERM)", 0, True),
    ],
    ids=["os._exit", "SIGTERM", "SIGKILL", "a segmentation fault", "Ctrl-C", "SIGTERM is an exit"],
)  # fmt: skip
def test_what_counts_as_kept_outlives_the_process(
    tmp_path: Path, ending: str, code: int, is_sealed: bool
) -> None:
    """Calls are there shortly after they ended: nobody flushes."""
    path = tmp_path / "t.tape"
    child(
        f"""
        recorder = record(model, sys.argv[1])
        for n in range(50): model(one * n, one)
        while recorder.stats().kept < 50: time.sleep(0.01)
        {ending}
        time.sleep(60)  # the signal comes
        """,
        str(path),
        code=code,
    )
    tape = read(path)
    assert tape.numbers == list(range(50))
    assert not tape.damage
    assert (tape.end is not None) == is_sealed
