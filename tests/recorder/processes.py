"""Processes of their own: a fresh interpreter, or a fork of this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["child", "in_a_fork"]

ROOT = Path(__file__).parents[2]


def child(body: str, *args: str, code: int | None = 0) -> str:
    """Runs ``body`` in a fresh interpreter, with a model and ``path`` at hand."""
    source = (
        "import os, sys, signal, threading, time, multiprocessing, torch\n"
        "from calltape_recorder import Recorder, record\n"
        "from tests.recorder.models import Add\n"
        "model, one = Add(), torch.ones(2)\n"
    ) + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", source, *args], capture_output=True, text=True, cwd=ROOT, timeout=250
    )
    assert code is None or done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr or code != 0, done.stderr
    return done.stdout


def in_a_fork(work: Callable[[], bool]) -> int:
    """Forks, runs ``work`` there and checks that it is true; gives the child's number."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(250)  # then it is stuck, and ends
            torch.set_num_threads(1)  # the threads that torch had are not in the child
            status = 0 if work() else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return pid
