# ruff: noqa: E402 - what is imported after the host patched matters
"""Hosts of greenlets for tests: run with the name of one, in a process of its own.

``python -m tests.recorder.host.green_hosts LIBRARY WHEN NAME FOLDER``: patches with gevent or
eventlet, before or after the recorder is imported, and prints what the test wants to know.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

LIBRARY, WHEN, NAME, FOLDER = sys.argv[1:]


def patch() -> None:
    if LIBRARY == "gevent":
        importlib.import_module("gevent.monkey").patch_all()
    elif LIBRARY == "eventlet":
        import warnings

        warnings.simplefilter("ignore")
        importlib.import_module("eventlet").monkey_patch()


if WHEN == "before":
    patch()

import os
import threading
import time

import torch

import calltape_recorder.write.disk_file as disk_file
from calltape_recorder import record
from calltape_recorder.threads import sleep as really_sleep
from tests.recorder.models import Identity
from tests.recorder.reading import read

if WHEN == "after":
    patch()

torch.set_num_threads(1)
model, x = Identity(), torch.ones(8)
path = os.path.join(FOLDER, "t.tape")


def spawn(work: Any) -> Any:
    thread = threading.Thread(target=work)  # a greenlet
    thread.start()
    return thread


def slow(seconds: float) -> Any:
    """Makes every write of the recorder take so long. Returns what it replaced."""
    write = disk_file.pwritev
    disk_file.pwritev = lambda *args: (really_sleep(seconds), write(*args))[1]
    return write


def slow_disk() -> None:
    """While the disk holds the writer, the host's greenlets run."""
    held, free = threading.Event(), [False]
    write = disk_file.pwritev

    def stuck(*args: Any) -> Any:
        free[0] = True
        while free[0]:
            really_sleep(0.001)
        return write(*args)

    with record(model, path):
        disk_file.pwritev = stuck
        model(x)
        while not free[0]:
            time.sleep(0.001)
        done = 0
        for _ in range(200):  # all of them while one write hangs
            model(x)
            time.sleep(0.0001)
            done += free[0]
        disk_file.pwritev = write
        free[0] = False
    held.set()
    print(done, len(read(path).calls))


def fork() -> None:
    """The child has a tape of its own, and the parent's is whole."""
    slow(0.05)
    with record(model, path) as recorder:
        for _ in range(20):
            model(x)
        pid = os.fork()
        if pid == 0:
            for _ in range(3):
                model(x)
            recorder.close()
            os._exit(0)
        os.waitpid(pid, 0)
        model(x)
    child = os.path.join(FOLDER, f"t-p{pid}.tape")
    print(len(read(path).calls), read(path).damage, len(read(child).calls))


def flush() -> None:
    """Whoever waits for the writer lets the other greenlets run, and can be told to stop."""
    turns, needed, write = [0], [0], disk_file.pwritev
    enough = 10  # turns of another greenlet, which the disk waits for

    def count() -> None:
        while turns[0] >= 0:
            turns[0] += 1
            time.sleep(0.001)

    def slow_write(*args: Any) -> Any:
        until = time.monotonic() + 60
        while turns[0] < needed[0] and time.monotonic() < until:
            really_sleep(0.001)
        return write(*args)

    recorder = record(model, path)
    thread = spawn(count)
    disk_file.pwritev = slow_write
    begun, needed[0] = turns[0], turns[0] + enough
    model(x)
    assert recorder.flush()
    while_flushing = turns[0] - begun
    needed[0] = sys.maxsize
    model(x)
    assert recorder.flush(0.05) is False
    begun, needed[0] = turns[0], turns[0] + enough
    recorder.close()
    while_closing = turns[0] - begun
    disk_file.pwritev = write
    turns[0] = -1
    thread.join()
    print(while_flushing >= enough, while_closing >= enough, len(read(path).calls))


def greenlets() -> None:
    """Calls of many greenlets, under way at once; some greenlets die within a call."""

    class Waits(torch.nn.Module):
        def forward(self, value: Any, seconds: float) -> Any:
            time.sleep(seconds)
            return value

    waits = Waits()

    def serve() -> None:
        for number in range(10):
            assert waits(number, 0.001) == number

    with record(waits, path) as recorder:
        for thread in [spawn(serve) for _ in range(20)]:
            thread.join()
        recorder.flush()
        stats = recorder.stats()
    print(stats.seen, stats.kept, len(read(path).calls))


def everything() -> None:
    """Compressing, write-ahead, large calls, seal, a control file."""
    control = os.path.join(FOLDER, "control.json")
    with record(
        model, path, write_ahead=True, segment_bytes=10_000, control=control,
    ) as recorder:  # fmt: skip
        for size in (1, 10_000, 2_000_000):
            for _ in range(3):
                model(torch.ones(size))
        assert recorder.seal()
        assert recorder.flush()
        assert recorder.stats().kept == 9
    print(recorder.stats().kept, recorder.stats().dropped)


def logging_hosts() -> None:
    """The writer's thread logs while greenlets hold the locks of the log's handlers."""
    import io
    import logging

    class Yields(io.StringIO):
        def write(self, text: str) -> int:
            time.sleep(0.002)  # lets others run, with the lock of the handler
            return super().write(text)

    stream = Yields()
    logging.basicConfig(stream=stream, level=logging.INFO, force=True)
    stop = [False]

    def chat() -> None:
        while not stop[0]:
            logging.info("host")
            time.sleep(0)

    threads = [spawn(chat) for _ in range(3)]
    with record(model, path, segment_bytes=1) as recorder:
        for _ in range(30):
            model(x)
            time.sleep(0.05)
        assert recorder.flush(60), "the writer hangs"
    stop[0] = True
    for thread in threads:
        thread.join()
    print(recorder.stats().kept, "calltape" in stream.getvalue())


def warnings_at_once() -> None:
    """Trouble of the writer's thread is on stderr at once, and in the log when the host asks."""
    import io
    import logging

    log, sys.stderr = io.StringIO(), io.StringIO()
    logging.basicConfig(stream=log, level=logging.INFO, force=True)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    write = disk_file.pwritev
    with record(model, path) as recorder:
        disk_file.pwritev = full
        model(x)
        while "No space left" not in sys.stderr.getvalue():
            time.sleep(0.01)
        before = log.getvalue()
        recorder.stats()
        disk_file.pwritev = write
        print("No space left" in before, "No space left" in log.getvalue(), end=" ")
        while ": recording " not in log.getvalue():  # news
            time.sleep(0.05)
            recorder.stats()
    print("sealed" in log.getvalue())


globals()[NAME]()
