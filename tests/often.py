"""Runs the suite many times in random order, half of the times beside a process that keeps a core
busy.

``make test-often`` runs the fast tests twenty times; each run adds a line to the table. The output
and the JUnit report of each run stay in ``build/often``, with ``failed.txt``, which lists the tests
that failed and the seed to repeat their order with.

What is not an option of this command goes to pytest: ``make test-often RUNS=4 ARGS=tests/schema``.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["Result", "order", "result_of", "run"]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "often"

# As in the Makefile. Without reordering: the largest files would come first in each run.
TWO = ("-n2", "--dist=loadfile", "--max-worker-restart=0", "--no-loadscope-reorder")

_ROW = "{:>4}  {:>10}  {:>4}  {:>8}  {:>7}  {:>7}  {:>6}"


@dataclass(frozen=True)
class Result:
    """What one run found; ``failed`` are node ids as pytest accepts them, errors among them."""

    passed: int
    skipped: int
    failed: tuple[str, ...]


def order(seed: int) -> tuple[str, ...]:
    """The options of pytest that shuffle the files, and the tests within each file."""
    return ("--random-order-bucket=module", f"--random-order-seed={seed}")


def result_of(report: Path) -> Result:
    """Reads a JUnit report."""
    passed, skipped, failed = 0, 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Result(passed, skipped, tuple(failed))


@contextlib.contextmanager
def _neighbor(busy: bool) -> Iterator[None]:
    """A process that never waits, until the block ends or this process does."""
    if not busy:
        yield
        return
    # It ends when its standard input does, so none stays behind after a kill.
    source = "import select, sys\nwhile not select.select([sys.stdin], [], [], 0)[0]: pass"
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.kill()


def run(number: int, seed: int, busy: bool, args: list[str], folder: Path) -> Result:
    """One run of pytest; its output and report are in ``folder``, named after ``number``."""
    report, output = folder / f"{number}.xml", folder / f"{number}.txt"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *TWO, *order(seed), f"--junit-xml={report}", *args]
    with _neighbor(busy), output.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=False).returncode
    found = result_of(report) if report.exists() else Result(0, 0, ())
    if code and not found.failed:
        return Result(found.passed, found.skipped, (f"pytest ended with {code}: {output}",))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.often", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how many runs (default 20)")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() // 1_000_000_000,
        help="the seed of the first run; the next ones count up (default: the time)",
    )  # fmt: skip
    options, args = parser.parse_known_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = FOLDER / "failed.txt"
    names.write_text("")
    print(_ROW.format("run", "seed", "busy", "seconds", "passed", "skipped", "failed"), flush=True)
    red = 0
    for number in range(1, options.runs + 1):
        seed, busy = options.seed + number, number % 2 == 0
        began = time.monotonic()
        found = run(number, seed, busy, args, FOLDER)
        row = (number, seed, "yes" if busy else "no", round(time.monotonic() - began))
        print(_ROW.format(*row, found.passed, found.skipped, len(found.failed)), flush=True)
        with names.open("a") as file:
            for name in found.failed:
                print(f"      {name}", flush=True)
                file.write(f"{name}\t{' '.join(order(seed))}\tbusy={busy}\n")
        red += bool(found.failed)
    green = options.runs - red
    print(f"{green} of {options.runs} runs are green; {FOLDER.relative_to(ROOT)} has their output")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
