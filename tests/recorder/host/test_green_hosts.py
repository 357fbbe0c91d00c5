"""Under gevent and eventlet the writer is a thread of the system, whenever the host patched."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from calltape_recorder.threads import Event, get_ident, is_beside_greenlets, start_thread, wait_for

ROOT = Path(__file__).parents[3]
HOSTS = {
    "slow_disk": "200 201",  # calls while one write hangs; calls on the tape
    "fork": "21 [] 3",  # calls and damage of the parent's tape, calls of the child's
    "flush": "True True 2",  # other greenlets run while one flushes, and while one closes
    "greenlets": "200 200 200",
    "everything": "9 {}",
    "logging_hosts": "30 True",
    "warnings_at_once": "False True True",  # in the log before stats(), after it; the news
}


@pytest.mark.integration
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_host_of_greenlets_is_recorded(
    library: str, when: str, host: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.recorder.host.green_hosts", library, when, host, tmp_path],
        capture_output=True, text=True, cwd=ROOT, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == HOSTS[host], done.stderr


def test_an_event_wakes_all_who_wait_for_it() -> None:
    event, done = Event(), [Event() for _ in range(5)]

    def waits(one: Event) -> None:
        if event.wait(60):
            one.set()

    for one in done:
        start_thread(lambda one=one: waits(one), "test")  # type: ignore[misc]
    assert not event.wait(0.01)
    assert not event.wait(-1)
    event.set()
    event.set()
    assert all(wait_for(one, 60) for one in done)
    assert event.is_set()
    event.clear()
    assert not event.is_set()
    assert not wait_for(event, 0.01)


def test_no_thread_stands_apart_without_greenlets() -> None:
    found: list[bool] = []
    ran = Event()

    def run() -> None:
        found.append(is_beside_greenlets())
        ran.set()

    start_thread(run, "test")
    assert ran.wait(60)
    assert found == [False]
    assert not is_beside_greenlets()
    assert get_ident() > 0
