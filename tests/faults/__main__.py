"""Plants deliberate faults, and tells which of them the tests find.

Each fault is planted in a copy of the working tree. There the tests that should find it run until
one fails: the fast ones first, then those of the slower tiers. ``make faults`` calls it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults import FAULTS
from tests.faults.fault import Fault, StaleFaultError, check
from tests.faults.tree import Tree
from tests.faults.trial import PytestError, found_by

ALL_FOUND, SOME_MISSED, UNUSABLE = 0, 1, 2


def main(words: Sequence[str]) -> int:
    """Runs the command; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="these faults, or those of a package"
    )
    try:
        faults = _chosen(parser.parse_args(words).only)
        for fault in faults:
            check(fault)
    except (LookupError, StaleFaultError) as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    found = 0
    with tempfile.TemporaryDirectory(prefix="calltape-faults-") as folder:
        tree = Tree(Path(folder, "tree"))
        for fault in faults:
            began = time.monotonic()
            try:
                by = found_by(tree, fault)
            except PytestError as error:
                print(f"{fault.name}: {error}", file=sys.stderr)
                return UNUSABLE
            found += by is not None
            what = "NOT FOUND" if by is None else f"found by {by}"
            print(f"{fault.name:36} {time.monotonic() - began:6.1f} s  {what}", flush=True)
    print(f"{found} of {len(faults)} found")
    return ALL_FOUND if found == len(faults) else SOME_MISSED


def _chosen(names: Sequence[str] | None) -> list[Fault]:
    if names is None:
        return list(FAULTS)
    known = {fault.name for fault in FAULTS} | {fault.package for fault in FAULTS}
    if strange := sorted(set(names) - known):
        raise LookupError(f"no such fault: {', '.join(strange)}; known are {', '.join(known)}")
    return [fault for fault in FAULTS if fault.name in names or fault.package in names]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
