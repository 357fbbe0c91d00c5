"""``python -m benchmarks.minimising [WORD ...]``: tapes of seeded failures, made small.

Prints a row per failure whose name has one of the words: calls, bytes, steps, seconds, and whether
all is right: a look at the result that knows nothing of the search finds the seeded reason, and the
result has no more calls than are needed, and at most 1% of the bytes. Ends with 1 if not.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.seeded_failures import FAILURES, Failure
from calltape_analyzer import MinimiseReport, minimise, open_tape

__all__ = ["MOST", "is_small", "measured"]

MOST = 0.01
"""The part of the bytes that a result may have."""


def measured(failures: Sequence[Failure], folder: Path) -> Iterator[tuple[Failure, MinimiseReport]]:
    """Minimises the tape of each failure."""
    for number, failure in enumerate(failures):
        source = failure.write(folder / f"{number}.tape")
        with open_tape(source) as tape:
            small = folder / f"{number}.small.tape"
            yield failure, minimise(tape, small, failure.check)


def is_small(failure: Failure, report: MinimiseReport) -> bool:
    """Whether a result is as small as it is to be."""
    return report.calls == failure.calls and report.bytes_written <= MOST * report.bytes_read


def still_fails(failure: Failure, report: MinimiseReport, folder: Path) -> bool:
    """Whether a look at the result that knows nothing of the search finds the same reason, and it
    is the seeded one."""
    again = folder / f"{Path(report.path).name}.again.tape"
    with open_tape(report.path) as tape:
        found = minimise(tape, again, failure.check, max_seconds=0.01)
        is_sound = not tape.verify()
    return is_sound and found.reason == report.reason and failure.reason in report.reason


def main() -> None:
    from benchmarks.seeded_cache_failures import FAILURES as OF_CACHES

    logging.disable(logging.WARNING)
    words = sys.argv[1:]
    every = [*FAILURES, *OF_CACHES]
    chosen = [one for one in every if not words or any(word in one.name for word in words)]
    print("| failure | calls | bytes | steps | seconds | reason | right |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    are_right = True
    with tempfile.TemporaryDirectory() as folder:
        for failure, report in measured(chosen, Path(folder)):
            part = report.bytes_written / report.bytes_read
            is_right = is_small(failure, report) and still_fails(failure, report, Path(folder))
            are_right &= is_right
            print(
                f"| {failure.name} | {report.calls_before} to {report.calls} | "
                f"{report.bytes_read:,} to {report.bytes_written:,} ({part:.2%}) | "
                f"{report.steps} | {report.seconds:.1f} | {report.reason:.48} | "
                f"{'yes' if is_right else 'NO'} |",
                flush=True,
            )
    if not are_right:
        sys.exit(1)


if __name__ == "__main__":
    main()
