"""Runs the suite many times in random order, half of the times beside a process that keeps a core
busy.

``make test-often`` runs the fast tests twenty times, and prints for each run the seed that repeats
its order, what pytest counted, and the tests that failed. The output of each run stays in
``build/often``.

What is not an option of this command goes to pytest: ``make test-often RUNS=4 ARGS=tests/schema``.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["run"]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "often"

# As in the Makefile. Without reordering: the largest files would come first in each run.
TWO = ("-n2", "--dist=loadfile", "--max-worker-restart=0", "--no-loadscope-reorder")


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


def run(seed: int, busy: bool, args: Sequence[str], output: Path) -> tuple[str, list[str]]:
    """One run of pytest, whose output goes to a file: what it counted, and what failed."""
    order = ("--random-order-bucket=module", f"--random-order-seed={seed}")  # also in each file
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", *TWO, *order, *args]
    with _neighbor(busy), output.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=False).returncode
    said = output.read_text()
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if code and not failed:
        failed = [f"pytest ended with {code}"]
    return said.rstrip().rpartition("\n")[2], failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.often", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how many runs (default 20)")
    options, args = parser.parse_known_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    first, red = int(time.time()), 0
    for number in range(options.runs):
        seed, busy = first + number, number % 2 == 1
        counted, failed = run(seed, busy, args, FOLDER / f"{seed}.txt")
        print(f"seed {seed}{', busy' * busy}: {counted}", *failed, sep="\n    ", flush=True)
        red += bool(failed)
    green = options.runs - red
    print(f"{green} of {options.runs} runs are green; {FOLDER.relative_to(ROOT)} has their output")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
