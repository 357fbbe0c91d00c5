"""Processes end in many ways; what was acknowledged is on the tape."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import First, FlightRecorder, record
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
    assert tape.is_sealed
    own = read(tmp_path / f"t-p{pid}.tape")
    assert own.is_sealed
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


def test_a_fork_within_a_call_leaves_the_call_to_the_parent(tmp_path: Path) -> None:
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
    assert own.end.coverage.dropped == {"flight_recorder": 2}
    assert sorted(os.listdir(tmp_path)) == [f"t-p{pid}.tape", "t.tape"]


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
        assert tape.is_sealed


KILLED = "os.kill(os.getpid(), signal.SIG{})"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("ending", "code", "is_sealed"),
    [
        ("pass", 0, True),
        ("del recorder, model", 0, True),
        ("sys.exit(0)", 0, True),
        ("threading.Thread(target=threading.main_thread().join).start()", 0, True),
        ("raise RuntimeError('the server dies')", 1, True),
        ("os._exit(0)", 0, False),
        (KILLED.format("TERM"), -signal.SIGTERM, False),
        (KILLED.format("KILL"), -signal.SIGKILL, False),
        (KILLED.format("SEGV"), -signal.SIGSEGV, False),
        (KILLED.format("INT"), -signal.SIGINT, True),
        ("exits = lambda *_: sys.exit(0); signal.signal(signal.SIGTERM, exits);"
         + KILLED.format("TERM"), 0, True),
    ],
    ids=["end", "del", "sys.exit", "a thread", "an exception", "os._exit", "SIGTERM", "SIGKILL",
         "a segmentation fault", "Ctrl-C", "SIGTERM is an exit"],
)  # fmt: skip
def test_what_counts_as_kept_outlives_the_process(
    tmp_path: Path, ending: str, code: int, is_sealed: bool
) -> None:
    """Calls are there shortly after they ended: nobody flushes. Those that a flight recorder holds
    are written if the process dies of an exception."""
    done = child(
        f"""
        from calltape_recorder import First, FlightRecorder
        held = FlightRecorder(calls=2)
        recorder = record(model, sys.argv[1], keep=First(50), flight_recorder=held)
        for n in range(60): model(one * n, one)
        while recorder.stats().kept < 50: time.sleep(0.01)
        sys.stderr = sys.stdout
        {ending}
        {"time.sleep(60)  # the signal comes" if code < 0 else ""}
        """,
        str(tmp_path / "t.tape"),
        code=code,
    )
    tape = read(tmp_path / "t.tape")
    dies = ending.startswith("raise") or code == -signal.SIGINT
    assert tape.numbers == [*range(50), *([58, 59] if dies else [])]
    assert not tape.damage
    assert tape.is_sealed == is_sealed
    reasons = [dump.reason for dump in tape.end.dumps] if tape.is_sealed else []
    error = "RuntimeError" if code == 1 else "KeyboardInterrupt"
    assert reasons == ([f"the process died of {error}"] if dies else [])
    assert done.count("RuntimeError: the server dies") == (code == 1)
