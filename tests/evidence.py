"""More evidence never makes a result worse: no recorded call keeps an unseen one from being right.

    python -m tests.evidence [CASE ...] [--to torch|onnx] [--jobs N] [--update]

Exports each case, such as ``zoo/gpt2`` or a whole folder, from all of its recorded calls. If not
every unseen call is right then, exports it again without each of up to six recorded calls. Prints
a line per case as soon as it is known. The exit code is 1 if a call makes a result worse and
``evidence.csv`` gives no reason for it. ``--update`` writes what was found to that file; the
reasons in it are written by hand.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from calltape_analyzer import open_tape
from tests.answers.running import step
from tests.answers.subjects import Subject, chosen

__all__ = ["Worse", "asked", "reasons"]

_LISTED = Path(__file__).with_suffix(".csv")
_MOST = 6
"""Recorded calls that are left out, one at a time."""

Run = Callable[[str, list[str]], dict[str, Any]]
"""Does a step of ``tests.answers``, given its name and words."""


class Worse(NamedTuple):
    """An unseen call that is right without a recorded call, and not with it."""

    case: str
    target: str
    without: str
    unseen: str


def asked(
    subject: Subject, target: str, folder: Path, run: Run
) -> tuple[dict[str, bool], dict[str, list[Worse]]]:
    """Exports a case from all of its calls and, if that can be bettered, without each of some.

    Args:
        subject: the case.
        target: ``"torch"`` or ``"onnx"``.
        folder: where the steps leave its tape.
        run: does a step in this folder.

    Returns:
        Whether each unseen call is right with all calls (empty if nothing was exported), and what
        is right only without a call, by the call.
    """
    assert subject.case is not None
    name, key = subject.name, f"export to {target}"

    def unseen(*without: str) -> dict[str, bool]:
        # An export that ends its process has no answers, and one that fails has no calls.
        answers = run("export", [name, target, *without]).get("answers", {name: {key: {}}})
        calls = answers[name][key].get("calls", {})
        words = {tuple(call.split()): said for call, said in calls.items()}
        return {
            n: said.startswith("right") for (kind, n), said in words.items() if kind == "unseen"
        }

    run("record", [name])
    every = unseen()
    if every and all(every.values()):
        return every, {}
    with open_tape(folder / f"{name}.tape", classes=subject.case.classes) as tape:
        variants = [[str(call.number) for call in variant.calls] for variant in tape.variants()]
    # The first call of each variant, then the second of each.
    in_turn = filter(None, chain.from_iterable(zip_longest(*variants)))
    return every, {
        removed: [
            Worse(name, target, removed, call)
            for call, is_right in unseen(removed).items()
            if is_right and not every.get(call)
        ]
        for removed in islice(in_turn, _MOST)
    }


def reasons() -> dict[Worse, str]:
    """Why a call makes a result worse, as the file has it."""
    with _LISTED.open(encoding="utf-8", newline="") as file:
        return {Worse(*row[:-1]): row[-1] for row in list(csv.reader(file))[1:]}


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence")
    parser.add_argument("cases", nargs="*", default=["small", "zoo"], metavar="CASE")
    parser.add_argument("--to", choices=("torch", "onnx"), default="torch")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--update", action="store_true", help=f"write {_LISTED.name}")
    options = parser.parse_args(arguments)
    some = [one for one in chosen(options.cases) if one.case]
    known, worse = reasons(), list[Worse]()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        place = Path(folder)
        found = pool.map(lambda one: asked(one, options.to, place, partial(step, place)), some)
        for subject, (every, removals) in zip(some, found, strict=True):
            told = f"{sum(every.values())} of {len(every) or '?'} unseen calls are right"
            told += f", {len(removals)} calls removed in turn" if removals else ""
            for one in chain.from_iterable(removals.values()):
                told += f"; without call {one.without}, unseen call {one.unseen} is right"
                worse.append(one)
            print(f"{subject.name}: {told}", flush=True)
    if options.update:
        names = {one.name for one in some}
        kept = {one for one in known if one.case not in names or one.target != options.to}
        with _LISTED.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow([*Worse._fields, "reason"])
            rows.writerows([*one, known.get(one, "")] for one in sorted(kept.union(worse)))
    return int(not all(map(known.get, worse)))


if __name__ == "__main__":
    sys.exit(main())
