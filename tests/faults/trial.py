"""Runs tests in a copy of the tree, and tells which one fails first."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from tests.faults.fault import Fault
from tests.faults.tree import Tree

SUITES = {
    "fast": ("-m", "not integration and not chaos"),
    "integration": ("-m", "integration and not chaos"),
    "chaos": ("-m", "chaos"),
    "all": ("-m", ""),
}
"""What each suite adds to the command line of pytest."""

# The tests of the faults themselves would find each.
_ALWAYS = ("-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", "--ignore=tests/faults")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)
_PASSED, _FAILURES, _INTERRUPTED, _NOTHING = 0, 1, 2, 5
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

Where = Literal["hint", "rest"]


@dataclass(frozen=True)
class Outcome:
    """What tests said of a tree.

    Attributes:
        found: whether a test failed.
        by: the first one; or what else ended the run.
        where: whether it is one of those that were to find the fault, or one of the others.
        seconds: how long that took.
    """

    found: bool
    by: str | None
    where: Where | None
    seconds: float


class PytestError(Exception):
    """pytest did not run tests: wrong arguments, an error of its own, or somebody ended it."""


def tried(
    tree: Tree, fault: Fault, suite: Sequence[str], *, limit: float, hinted: bool = False
) -> Outcome:
    """Whether tests find a fault: first the hinted ones, then all others.

    Args:
        tree: a copy, for this thread alone.
        fault: to plant.
        suite: arguments of pytest.
        limit: how many seconds each of the two runs may take. One that takes longer has found it.
        hinted: runs the hinted ones only.
    """
    began = time.monotonic()
    with tree.planted(fault):
        by, where = ran(tree, [*suite, *fault.tests], limit), "hint"
        if by is None and not hinted:
            others = [f"--ignore={place}" for place in fault.tests]
            by, where = ran(tree, [*suite, *others], limit), "rest"
    return Outcome(by is not None, by, where if by else None, round(time.monotonic() - began, 1))


def ran(tree: Tree, arguments: Sequence[str], limit: float, *, every: bool = False) -> str | None:
    """Runs pytest until a test fails. The name of the test; None if all pass, or if there is none.

    Args:
        tree: where.
        arguments: of pytest.
        limit: in seconds.
        every: goes on after a failure, and names all.

    Raises:
        PytestError: it ran no tests because of something else.
    """
    command = [str(tree.python), "-m", "pytest", *_ALWAYS, *([] if every else ["-x"]), *arguments]
    process = subprocess.Popen(
        command, cwd=tree.folder, env=tree.environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    _running.add(process)
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return f"(no answer within {limit:.0f} s)"
    finally:
        _end(process)  # servers and forks of a test that was ended are in its session
        _running.discard(process)
        process.wait()
    if process.returncode in (_PASSED, _NOTHING):
        return None
    failed = _FAILED.findall(said)
    if failed:
        return ", ".join(failed)
    if process.returncode in (_FAILURES, _INTERRUPTED) or -process.returncode in _CRASHES:
        # A test that exceeds its time ends pytest, without a summary.
        late = re.findall(r"^File .*?/(tests/\S+)\", line", said, re.MULTILINE)
        return f"(pytest ended with {process.returncode}) {late[-1] if late else ''}".strip()
    raise PytestError(f"{process.returncode} from {' '.join(command)}\n{said[-4000:]}")


_running: set[subprocess.Popen[str]] = set()


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_all() -> None:
    """Ends all runs of all threads, because somebody interrupts the command."""
    for process in list(_running):
        _end(process)
