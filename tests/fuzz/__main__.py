"""``python -m tests.fuzz``: mutants of tapes for as long as one likes. ``make fuzz`` calls it.

With names of files it reads these instead, in every way there is: so a failure is seen again.
``python -m tests.fuzz scripts`` runs the scripts that the commands write (``make fuzz-scripts``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.guidance import fuzz, has_atheris


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=0.0, help="how long; 0 is for ever (default: %(default)s)")
    add("--mutants", type=int, default=0, help="how many; 0 is no limit")
    add("--jobs", type=int, default=1, help="processes, which share a corpus")
    add("--seed", type=int, default=int(time.time()), help="the same seed makes the same mutants, "
        "with one job and a new folder (default: of the time)")  # fmt: skip
    add("--folder", type=Path, default=Path("runs/fuzz"), help="for corpus, failures and logs")
    add("--distil", action="store_true",
        help="write the corpus of --folder anew to tests/fuzz/corpus")  # fmt: skip
    for hidden, kind in (("--scratch", Path), ("--job", int), ("--guided", int)):
        add(hidden, type=kind, help=argparse.SUPPRESS)
    add("files", nargs="*", type=Path, metavar="FILE", help="tapes to read instead")
    return parser


def main() -> int:
    if sys.argv[1:2] == ["scripts"]:
        from tests.fuzz import scripts

        return scripts.main(sys.argv[2:])
    given = _parser().parse_args()
    corpus = given.folder / "corpus"
    if given.job is not None:
        fuzz(lambda: _target(given), corpus, given.seed, guided=given.guided)
    if given.files:
        return _read(given.files)
    if given.distil:
        from tests.fuzz.distilling import distil

        print(distil(corpus))
        return 0
    return _run(given)


def _target(given: argparse.Namespace) -> Callable[[bytes], None]:
    from tests.fuzz.target import Target, ready

    ready(given.scratch)
    # libFuzzer reads the corpus first.
    known = sum(1 for _ in (given.folder / "corpus").iterdir()) if given.guided else 0
    return Target(
        given.folder, given.scratch, given.job,
        seconds=given.seconds, mutants=given.mutants, known=known, times=4 if given.guided else 1,
    )  # fmt: skip


def _run(given: argparse.Namespace) -> int:
    from tests.fuzz.campaign import Campaign

    guide = "atheris for some of the time" if has_atheris() else "nothing: no atheris here"
    print(f"fuzzing into {given.folder} with seed {given.seed}, guided by {guide}", flush=True)
    began = time.monotonic()
    tally = Campaign(given.folder, given.seconds, given.mutants, given.jobs, given.seed).run()
    seconds = time.monotonic() - began
    print("\n".join(tally.lines()))
    print(
        f"{tally.mutants / max(seconds, 1e-9):.0f} mutants/s in {seconds:.0f} s of {given.jobs}"
        f" processes, {tally.mutants / max(tally.processor, 1e-9):.0f} per second of processor time"
    )
    for path in sorted((given.folder / "failures").glob("*.tape")):
        print(f"read it again: python -m tests.fuzz {path}")
    return 1 if tally.findings else 0


def _read(paths: list[Path]) -> int:
    from tests.fuzz.questions import read, read_a_copy, warm_up
    from tests.fuzz.tally import Tally
    from tests.fuzz.target import OTHER

    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        read_a_copy(OTHER, OTHER, Path(folder))  # imports are no tape's
    tally = Tally()
    for path in paths:
        tally.add(path.name, read(path, OTHER))
    print("\n".join(tally.lines()))
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
