"""Plants deliberate faults, and tells which of them the tests find.

Each fault is planted in a copy of the working tree. The tests that should find it run first, until
one fails; if they find nothing, the rest of the suite runs. ``make faults`` calls it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tests.faults.catalogue import FAULTS
from tests.faults.fault import Fault, StaleFaultError, check
from tests.faults.results import Results, compared, line, summary
from tests.faults.tree import Tree
from tests.faults.trial import SUITES, Outcome, PytestError, end_all, ran, tried

ALL_FOUND, SOME_MISSED, UNUSABLE = 0, 1, 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__,
        epilog="what follows -- goes to pytest, in place of --suite: -- -m 'not slow' tests/schema",
    )  # fmt: skip
    add = parser.add_argument
    add("--suite", choices=SUITES, default="fast", help="which tests (default: %(default)s)")
    add("--hinted", action="store_true", help="only the tests that should find a fault")
    add("--only", nargs="+", metavar="NAME", help="these faults, or those of a package")
    add("--jobs", type=int, default=1, help="how many at once, each in a copy (default: 1)")
    add("--limit", type=float, default=1800, help="seconds for one run of pytest (default: 1800)")
    add("--no-control", action="store_true", help="do not run the tests without a fault first")
    add("--out", type=Path, help="JSON; results of other faults in it stay")
    add("--list", action="store_true", help="the names of the faults")
    add("--compare", nargs=2, type=Path, metavar="JSON",
        help="what one finds and the other does not")  # fmt: skip
    return parser


def main(words: Sequence[str]) -> int:
    """Runs the command; see ``--help``."""
    at = words.index("--") if "--" in words else len(words)
    more = words[at + 1 :]
    given = _parser().parse_args(words[:at])
    if given.list:
        print("\n".join(f"{fault.name:36} {fault.breaks}" for fault in FAULTS))
        return ALL_FOUND
    if given.compare:
        one, two = given.compare
        said, is_as_good = compared((one.name, Results.read(one)), (two.name, Results.read(two)))
        print("\n".join(said))
        return ALL_FOUND if is_as_good else SOME_MISSED
    try:
        faults = _chosen(given.only)
        for fault in faults:
            check(fault)
    except (LookupError, StaleFaultError) as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    suite = more or SUITES[given.suite]
    name = " ".join(more) if more else given.suite
    results = Results(name, given.hinted)
    if given.out is not None and given.out.exists():
        results = Results.read(given.out)
        if (results.suite, results.hinted) != (name, given.hinted):
            print(f"{given.out} is of another suite: {results.suite}", file=sys.stderr)
            return UNUSABLE
    return _run(faults, suite, given, results)


def _chosen(names: Sequence[str] | None) -> list[Fault]:
    if names is None:
        return list(FAULTS)
    known = {fault.name for fault in FAULTS} | {fault.package for fault in FAULTS}
    if strange := sorted(set(names) - known):
        raise LookupError(f"no such fault: {', '.join(strange)} (--list has the names)")
    return [fault for fault in FAULTS if fault.name in names or fault.package in names]


def _run(
    faults: Sequence[Fault], suite: Sequence[str], given: argparse.Namespace, results: Results
) -> int:
    with tempfile.TemporaryDirectory(prefix="calltape-faults-") as folder:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(given.jobs):
            trees.put(Tree(Path(folder, f"tree{number}")))
        if not given.no_control:
            tree = trees.get()
            hinted = sorted({place for fault in faults for place in fault.tests})
            failed = ran(tree, [*suite, *(hinted if given.hinted else ())], given.limit, every=True)
            trees.put(tree)
            if failed is not None:
                print(f"these tests fail without any fault: {failed}", file=sys.stderr)
                return UNUSABLE
            print("without a fault, all tests pass", flush=True)

        def one(fault: Fault) -> tuple[Fault, Outcome | None]:
            tree = trees.get()
            try:
                return fault, tried(tree, fault, suite, limit=given.limit, hinted=given.hinted)
            except PytestError as error:
                print(f"{fault.name}: {error}", file=sys.stderr)
                return fault, None
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(given.jobs) as pool:
            try:
                for done in as_completed([pool.submit(one, fault) for fault in faults]):
                    fault, outcome = done.result()
                    if outcome is None:
                        continue
                    results.outcomes[fault.name] = outcome
                    print(line(fault.name, outcome), flush=True)
                    if given.out is not None:
                        results.write(given.out)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                end_all()
                raise
    if untried := len({fault.name for fault in faults} - results.outcomes.keys()):
        print(f"{untried} not tried")
        return UNUSABLE
    print(summary(results))
    missed = {fault.name for fault in faults} - results.found
    return SOME_MISSED if missed else ALL_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
