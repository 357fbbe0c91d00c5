"""The command ``calltape health``, and the same from the recorder."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence

from calltape_schema.errors import printable
from calltape_schema.health import CODES, STALE_AFTER, Health, health_of
from calltape_schema.status import BEAT_SECONDS

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, program: str = "calltape health") -> int:
    """Prints the state of a directory, and returns the exit code for it.

    Args:
        arguments: what follows the name of the command; None for that of this process.
        program: the name of the command, for its help.
    """
    given = _parser(program).parse_args(arguments)
    found = health_of(given.directory, given.stale_after)
    if given.json:
        text = json.dumps(found.as_json(), indent=2)
    else:
        text = "\n".join(printable(line) for line in _lines(found))
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # whoever asked wants the exit code only
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0 if found.state in given.ok else found.code


def _lines(found: Health) -> list[str]:
    lines = [f"{found.state}: {found.reason}"]
    for one in found.recorders:
        state = f"{one.state}, replaced" if one.replaced else one.state
        parts = [f"  {state}: {one.reason}"]
        if one.status is not None:
            status = one.status
            parts.append(f"{status.target}, {status.kept:,} of {status.seen:,} calls kept")
        lines.append("; ".join([*parts, os.path.relpath(one.path, found.directory)]))
    return lines


def _parser(program: str) -> argparse.ArgumentParser:
    codes = ", ".join(f"{code} {state}" for state, code in CODES.items())
    said = f"Exit codes: {codes}; 2 wrong usage. The worst state of all recorders counts."
    parser = argparse.ArgumentParser(
        prog=program,
        description="Tells whether the recorders that write to a directory, or below it, record.",
        epilog=f"{textwrap.fill(said, 76)}"
        f"\n\n  {program} runs/\n  {program} runs/ --stale-after 120 --ok paused,ended --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", help="the directory of the tapes")
    parser.add_argument(
        "--stale-after", metavar="SECONDS", type=_seconds, default=STALE_AFTER,
        help="a recorder is stale if it wrote no status for so long, or no call although some were"
        f" lost; by default {STALE_AFTER:g}. A status comes every {BEAT_SECONDS:g} s, and is late"
        " after three times that",
    )  # fmt: skip
    parser.add_argument(
        "--ok", metavar="STATE,...", type=_states, default=(),
        help="end with 0 in these states too, such as paused,ended",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def _states(text: str) -> tuple[str, ...]:
    states = tuple(text.split(","))
    if not set(states) <= CODES.keys():
        raise argparse.ArgumentTypeError(f"the states are {', '.join(CODES)}")
    return states


if __name__ == "__main__":
    sys.exit(main(program="python -m calltape_schema.health_command"))
