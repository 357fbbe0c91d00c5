"""``python -m benchmarks.commits [--rounds N] OLD NEW [row ...]``: two checkouts, in turns.

Both checkouts need a ``.venv`` (``make setup``). One process of each stays open. In every round
each of the two takes its turn at every row, in an order that is drawn anew, so that a machine that
slows down slows both. It prints a table with the medians of both and their ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TURNS = ("add, paced", "add, tight", "32 tensors", "step, paced", "step, back to back", "64 MiB")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commits", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("rows", nargs="*", help="beginnings of the rows' names; all by default")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_worker(path)) for path in (options.old, options.new)]
        _print(_measured(workers, options.rounds, tuple(options.rows) or ("",)))


def _print(seconds: dict[str, tuple[list[float], list[float]]]) -> None:
    print("| seconds over no recorder | old | new | new / old | of rounds |")
    print("| --- | --- | --- | --- | --- |")
    for row, (old, new) in seconds.items():
        first, second = statistics.median(old), statistics.median(new)
        ratios = sorted(b / a for a, b in zip(old, new, strict=True) if a > 0)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        unit, factor = ("ms", 1e3) if first > 1e-3 else ("µs", 1e6)
        print(
            f"| {row} | {first * factor:.2f} {unit} | {second * factor:.2f} {unit}"
            f" | {second / first:.2f} | {low:.2f} to {high:.2f} |",
            flush=True,
        )


def _measured(
    workers: list[Callable[[str], dict[str, float]]], rounds: int, wanted: tuple[str, ...]
) -> dict[str, tuple[list[float], list[float]]]:
    kinds = [kind for kind in TURNS if kind.startswith(wanted)]
    found: dict[str, tuple[list[float], list[float]]] = {}
    drawn = random.Random(0)
    for number in range(rounds + 1):
        for kind in kinds:
            for place in drawn.sample(range(2), 2):
                answer = workers[place](kind)
                if number:  # the first round warms up
                    for row, seconds in answer.items():
                        found.setdefault(row, ([], []))[place].append(seconds)
        print(f"\rround {number} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


@contextlib.contextmanager
def _worker(checkout: Path) -> Iterator[Callable[[str], dict[str, float]]]:
    """Asks a process that measures with the packages of this checkout, and the code of this one."""
    python = checkout / ".venv/bin/python"
    process = subprocess.Popen(
        [python, "-m", "benchmarks.turns"], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answered = process.stdin, process.stdout

    def ask(kind: str) -> dict[str, float]:
        asked.write(f"{kind}\n")
        asked.flush()
        found: dict[str, float] = json.loads(answered.readline())
        return found

    try:
        yield ask
    finally:
        asked.close()
        process.wait()


if __name__ == "__main__":
    main()
