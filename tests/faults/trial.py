"""Runs tests in a copy of the tree, and tells which one fails first."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from tests.faults.fault import Fault
from tests.faults.tree import Tree

TIERS = (
    "not integration and not chaos",
    "integration and not chaos and not slow",
    "chaos and not slow",
)
_LIMIT = 1800
"""Seconds for one run of pytest. One that takes longer has found the fault."""

# The tests of the faults themselves would find each.
_ALWAYS = ("-q", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", "--ignore=tests/faults")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)
_PASSED, _FAILURES, _INTERRUPTED, _NOTHING = 0, 1, 2, 5
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class PytestError(Exception):
    """pytest did not run tests, or a test fails without any fault."""


def found_by(tree: Tree, fault: Fault) -> str | None:
    """The first test that finds a fault, or what else ended the run; None if no test finds it.

    Raises:
        PytestError: pytest ran no tests because of something else, or the test that failed fails
            without the fault as well.
    """
    for tier in TIERS:
        with tree.planted(fault):
            failed = ran(tree, ["-m", tier, *fault.tests])
        if failed is not None:
            if failed.startswith("tests/") and ran(tree, ["-m", "", failed]) is not None:
                raise PytestError(f"{failed} fails without the fault, too")
            return failed
    return None


def ran(tree: Tree, arguments: Sequence[str]) -> str | None:
    """Runs pytest until a test fails. The name of the test; None if all pass, or if there is none.

    Raises:
        PytestError: it ran no tests because of something else.
    """
    command = [str(tree.python), "-m", "pytest", *_ALWAYS, *arguments]
    process = subprocess.Popen(
        command, cwd=tree.folder, env=tree.environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        return f"(no answer within {_LIMIT} s)"
    finally:
        with suppress(ProcessLookupError):  # servers and forks of a test are in its session
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode in (_PASSED, _NOTHING):
        return None
    if failed := _FAILED.search(said):
        return failed[1]
    if process.returncode in (_FAILURES, _INTERRUPTED) or -process.returncode in _CRASHES:
        # A test that exceeds its time ends pytest, without a summary.
        late = re.findall(r"^File .*?/(tests/\S+)\", line", said, re.MULTILINE)
        return f"(pytest ended with {process.returncode}) {late[-1] if late else ''}".strip()
    raise PytestError(f"{process.returncode} from {' '.join(command)}\n{said[-4000:]}")
