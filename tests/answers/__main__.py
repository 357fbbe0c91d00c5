"""Compares what calltape answers with the golden files: ``python -m tests.answers``.

``--update`` writes the files, ``--only zoo/gpt2,small`` asks some subjects only (a name with or
without its folder, or a folder), ``--jobs`` says how many processes work at once. The exit code is
1 if an answer differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.answers.comparing import differences, read, write
from tests.answers.running import asked
from tests.answers.subjects import GOLDEN, chosen

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    try:
        some = chosen(options.only)
    except KeyError as error:
        print(f"no such subject: {error.args[0]}", file=sys.stderr)
        return 2
    begin = time.monotonic()
    now = asked(some, options.jobs, lambda text: print(text, file=sys.stderr, flush=True))
    golden = read(options.golden)
    found = differences(golden, now, whole=not options.only)
    if options.update:
        removed = [name for name in golden if name not in now and not options.only]
        write(options.golden, now, removed)
    for name, lines in found.items():
        print(f"{name}.json")
        for line in lines:
            print(f"  {line}")
    is_new = "written" if options.update else "different"
    print(f"{len(found)} of {len(now)} files {is_new}, in {time.monotonic() - begin:.0f} s")
    if found and not options.update:
        print("An answer that is meant to be new: make answers ARGS=--update, and say why.")
    return 1 if found and not options.update else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.answers")
    parser.add_argument("--update", action="store_true", help="write the golden files")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="A,B")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--golden", type=Path, default=GOLDEN, metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
