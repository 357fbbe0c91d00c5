"""How long code may take before it is interrupted."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from calltape_analyzer.exporting.session.budget import time_limit

pytestmark = pytest.mark.timeout(300, method="thread")  # the other method uses the alarm itself


def _work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_clock_interrupts_what_waits() -> None:
    with pytest.raises(TimeoutError, match="not done after 0 s, and"), time_limit(0.1, 60):
        time.sleep(20)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_processor_time_interrupts_what_works() -> None:
    with pytest.raises(TimeoutError, match="of processor time"), time_limit(600, 0.1):
        _work(20)


def test_what_waits_takes_no_processor_time() -> None:
    with time_limit(600, 0.2):
        time.sleep(0.7)
        done = True
    assert done


def test_what_is_done_in_time_is_left_alone() -> None:
    with time_limit(60, 60):
        _work(0.05)
    with pytest.raises(KeyError), time_limit(60):
        raise KeyError


def test_another_thread_has_no_limit() -> None:
    ended = []

    def work() -> None:
        with time_limit(0.01, 0.01):
            _work(0.1)
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]
