"""``python -m tests.fuzz``: mutants of tapes for as long as one likes. ``make fuzz`` calls it.

With names of files it reads these instead, in every way there is: so a failure is seen again.
``python -m tests.fuzz scripts`` runs the scripts that the commands write (``make fuzz-scripts``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.guidance import fuzz, has_atheris


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=0.0, help="how long; 0 is for ever (default: %(default)s)")
    add("--mutants", type=int, default=0, help="how many; 0 is no limit")
    add("--jobs", type=int, default=1, help="processes, which share a corpus")
    add(
        "--seed",
        type=int,
        default=1,
        help="the same seed makes the same mutants, with one job and a new folder",
    )
    add("--folder", type=Path, default=Path("runs/fuzz"), help="for corpus, failures and logs")
    add("--plain", action="store_true", help="only mutants of the corpus, which no branches guide")
    add("--no-coverage", action="store_true", help="do not measure what was reached")
    add(
        "--distil",
        action="store_true",
        help="write the corpus of --folder anew to tests/fuzz/corpus",
    )
    add("--reach", action="store_true", help="only measure what the corpus of --folder reaches")
    add("--scratch", type=Path, help=argparse.SUPPRESS)
    add("--job", type=int, help=argparse.SUPPRESS)
    add("--guided", action="store_true", help=argparse.SUPPRESS)
    add("files", nargs="*", type=Path, metavar="FILE", help="tapes to read instead")
    return parser


def main() -> int:
    if sys.argv[1:2] == ["scripts"]:
        from tests.fuzz import scripts

        return scripts.main(sys.argv[2:])
    given = _parser().parse_args()
    if given.job is not None:
        corpus = given.folder / "corpus"
        fuzz(lambda: _target(given), corpus, given.seed, guided=given.guided)
    if given.reach:
        from tests.fuzz import reach

        print("\n".join(reach.lines(sorted((given.folder / "corpus").iterdir()), given.seconds)))
        return 0
    if given.files:
        return _read(given.files)
    if given.distil:
        from tests.fuzz.distilling import distil

        print(distil(given.folder / "corpus"))
        return 0
    return _run(given)


def _target(given: argparse.Namespace) -> Callable[[bytes], None]:
    from tests.fuzz.target import Target

    # libFuzzer reads the corpus first.
    known = sum(1 for _ in (given.folder / "corpus").iterdir()) if given.guided else 0
    return Target(
        given.folder, given.scratch, given.job, given.seed,
        seconds=given.seconds, mutants=given.mutants, known=known,
    )  # fmt: skip


def _run(given: argparse.Namespace) -> int:
    from tests.fuzz.campaign import Campaign

    guide = "atheris for some of the time" if has_atheris() else "nothing: no atheris here"
    guide = "nothing, as asked" if given.plain else guide
    print(f"fuzzing into {given.folder}, guided by {guide}", flush=True)
    campaign = Campaign(
        given.folder, given.seconds, given.mutants, given.jobs, given.seed, plain=given.plain
    )
    tally, seconds = campaign.run()
    print("\n".join(tally.lines()))
    print(
        f"{tally.mutants / max(seconds, 1e-9):.0f} mutants/s in {seconds:.0f} s of {given.jobs}"
        f" processes, {tally.mutants / max(tally.processor, 1e-9):.0f} per second of processor time"
    )
    print(campaign.tallies.together())
    if not given.no_coverage and has_atheris():
        # In a process of its own: what was imported before is not measured.
        words = [
            "--reach",
            "--folder",
            str(given.folder),
            "--seconds",
            str(max(60.0, seconds / 10)),
        ]
        sys.stdout.flush()
        subprocess.run([sys.executable, "-m", "tests.fuzz", *words], check=False)
    failures = sorted((given.folder / "failures").glob("*.tape"))
    for path in failures:
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
