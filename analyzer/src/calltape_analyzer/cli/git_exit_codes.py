"""Exit codes for ``git bisect run``: of a commit that is good, bad, or cannot be tested.

git takes 1 to 124 for bad, and so would take a model that cannot be imported, a tape that is
damaged or a mistyped option for the bug. With ``--bisect``, a replay ends with

- 0: every call does what it is to do (good);
- 1: a call fails (bad): another value, another exception, too slow;
- 125: this commit cannot be tested, which skips it: its model cannot be imported or made, or the
  tape has nothing to test it with;
- 128: no commit can be tested, which ends the bisection: a wrong command line, a tape that cannot
  be opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["BAD", "CANNOT_TEST", "GIVE_UP", "GOOD", "OPTION", "git_codes"]

GOOD, BAD, CANNOT_TEST, GIVE_UP = 0, 1, 125, 128
OPTION = "--bisect"
_USAGE = 2


@contextmanager
def git_codes(words: Sequence[str]) -> Iterator[None]:
    """Turns the code of a wrong command line into the one that ends a bisection.

    Args:
        words: of the command line.
    """
    try:
        yield
    except SystemExit as end:
        if end.code == _USAGE and OPTION in words:
            raise SystemExit(GIVE_UP) from None
        raise
