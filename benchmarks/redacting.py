"""``python -m benchmarks.redacting [--random N] [FOLDER ...]``: tapes that were redacted in every
way, and what is left in their bytes.

The tapes are those of the folders (such as ``python -m tests.zoo.run record CASE FOLDER`` writes),
the golden ones of ``fixtures/``, and random ones. Prints a row per way: tapes, calls, texts,
rows and long numbers that were looked for, how many leaked, how many answers of ``shapes``,
``variants``, ``explain`` and ``check`` changed, how many redactions were refused, and why. Ends
with 1 if anything leaked, changed, or went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from tests.analyzer.redacting.answers import (
    answers,
    differing,
    programs_of,
    replaced_numbers,
    withheld_arguments,
)
from tests.analyzer.redacting.leaks import numbers, standing_in
from tests.analyzer.redacting.random_calls import CALLS, arguments_of, written
from tests.fixture_files import FIXTURES
from tests.unpacked import readable

from benchmarks.redaction_ways import WAYS, Secrets, Way
from calltape_analyzer import RedactionError, Tape, TapeError, open_tape, redact
from calltape_analyzer.editing.rewriting import Rewriting, rewrite
from calltape_analyzer.editing.withholding import Withholding, WithholdingPlan
from calltape_schema.tree import Structure

__all__ = ["Score", "redacted"]


@dataclass
class Score:
    """What came of one way to redact."""

    tapes: int = 0
    calls: int = 0
    texts: int = 0
    rows: int = 0
    numbers: int = 0
    leaked: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing leaked, nothing changed, and nothing else went wrong."""
        return not (self.leaked or self.changed or self.broken)

    def cells(self) -> str:
        refused = sum(self.refused.values())
        counts = (self.tapes, self.calls, self.texts, self.rows, self.numbers, len(self.leaked),
                  len(self.changed), refused, len(self.broken))  # fmt: skip
        return " | ".join([*(f"{count:,}" for count in counts), f"{self.seconds:.0f}"])


_COLUMNS = ("way", "tapes", "calls", "texts", "rows", "numbers", "leaked", "changed", "refused",
            "broken", "seconds")  # fmt: skip


def redacted(source: Path, scores: dict[str, Score], folder: Path) -> None:
    """Redacts a tape in every way, and looks at what came of it."""
    try:
        with open_tape(source) as tape:
            if not len(tape):
                return
            secrets = Secrets(tape)
            programs = programs_of(tape)
            for way in WAYS:
                if way.fits(secrets):
                    _one(source, tape, way, secrets, programs, scores[way.name], folder)
    except TapeError as error:
        scores["defaults"].broken.append(f"{source.name}: {error}")


def _one(
    source: Path, tape: Tape, way: Way, secrets: Secrets, programs: list[object], score: Score,
    folder: Path,
) -> None:  # fmt: skip
    began, result = time.process_time(), folder / "redacted.tape"
    result.unlink(missing_ok=True)
    score.tapes += 1
    score.calls += len(tape.calls)
    try:
        redact(tape, result, **way.options(secrets))
    except RedactionError as error:
        if result.exists():
            score.broken.append(f"{source.name}: refused, and written")
        score.refused[error.reason] += 1
        return
    except Exception as error:  # also what is no TapeError: the other tapes are tried too
        score.broken.append(f"{source.name}: {type(error).__name__}: {error}")
        return
    finally:
        score.seconds += time.process_time() - began
    data = readable(result.read_bytes())
    texts, rows = way.private(secrets)
    score.texts += len(texts)
    score.rows += len(rows)
    score.leaked += [f"{source.name}: {one[:60]!r}" for one in standing_in(texts, data)]
    score.leaked += [f"{source.name}: a row {one[:32].hex()}" for one in standing_in(rows, data)]
    with open_tape(result) as new:
        gone = secrets.numbers - set(numbers(new))  # the others have to do with sizes, or are kept
    score.numbers += len(gone)
    score.leaked += [f"{source.name}: a number {one.hex()}" for one in standing_in(gone, data)]
    with open_tape(result) as new, _reference(tape, new, folder / "reference.tape") as old:
        replaced = replaced_numbers(old, new)
        ranges = way.keeps_ranges and old is tape  # a reference has none
        before = answers(old, programs, replaced, ranges=ranges)
        after = answers(new, programs, replaced, ranges=ranges)
    score.changed += [f"{source.name}: {question}" for question in differing(before, after)]


@contextlib.contextmanager
def _reference(tape: Tape, new: Tape, path: Path) -> Iterator[Tape]:
    """The tape; without the values that were withheld, if any were."""
    gone = withheld_arguments(tape, new)
    if not gone:
        yield tape
        return
    how = Rewriting("filter", {}, change=_Without(tape, gone), keeps_counters=False)
    rewrite(tape, path, tape.calls, len(tape.calls), how, overwrite=True)
    with open_tape(path) as without:
        yield without


class _Without(Withholding):
    """Takes out what is not on the new tape either, and nothing else."""

    def __init__(self, tape: Tape, gone: Mapping[bytes, Collection[str]]) -> None:
        super().__init__((), outputs=False, signature=tape.signature)
        self._gone = gone

    def new_plan(self, structure: bytes, spec: Structure, path: str) -> WithholdingPlan:
        gone = () if path else self._gone.get(structure, ())
        return WithholdingPlan(spec, path, lambda at: "numbers" if at in gone else "nothing")


def _random(count: int, folder: Path) -> Iterator[Path]:
    """Random tapes, the same ones each time."""
    drawn: list[object] = []

    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(CALLS)
    def draw(calls: object) -> None:
        drawn.append(calls)

    draw()
    for number, calls in enumerate(drawn):
        path = folder / f"random-{number}.tape"
        yield written(path, arguments_of(calls))
        path.unlink()


def _sources(given: argparse.Namespace, folder: Path) -> Iterator[Path]:
    for one in given.folders:
        yield from sorted(one.glob("*.tape"))
    yield from sorted((FIXTURES / "v1").glob("*.tape"))
    if given.random:
        yield from _random(given.random, folder)


def main() -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.redacting", description=__doc__)
    parser.add_argument("--random", type=int, default=200, metavar="N", help="%(default)s")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    scores = {way.name: Score() for way in WAYS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for source in _sources(given, folder):
            redacted(source, scores, folder)
    print(f"| {' | '.join(_COLUMNS)} |")
    print("| --- " * len(_COLUMNS) + "|")
    for name, score in scores.items():
        print(f"| {name} | {score.cells()} |")
    for name, score in scores.items():
        for kind in ("leaked", "changed", "broken"):
            for text in getattr(score, kind)[:20]:
                print(f"{kind} by {name}: {text}")
        for reason, count in score.refused.most_common():
            print(f"refused by {name} {count} times: {reason}")
    if not all(score.is_clean for score in scores.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
