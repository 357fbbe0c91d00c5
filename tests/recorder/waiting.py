"""Threads, and the recorder's own thread: what a test waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from calltape_recorder import Recorder

__all__ = ["Clock", "in_threads", "looked", "until"]


def until(condition: Callable[[], Any]) -> Any:
    """What the condition gives once that is true; a minute is only to stop a hang."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def in_threads(work: Callable[..., Any], each: Iterable[Any]) -> None:
    """Does the work in a thread for each, at the same time. What one of them raises ends the
    test."""
    failed: list[BaseException] = []

    def guarded(one: Any) -> None:
        try:
            work(one)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


class Clock:
    """Time that only a test moves on. The recorder asks for it when it looks what is to be done."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return 1000.0 + self.ahead


def looked(recorder: Recorder) -> bool:
    """Lets the recorder's thread look what is to be done, where it does so in each of its turns
    (the fixture ``looks_always``). Everything called so far is written, too."""
    return recorder.flush() and recorder.flush()
