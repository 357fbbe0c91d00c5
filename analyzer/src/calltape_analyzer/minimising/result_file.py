"""The file that the smallest tape becomes.

In comes a path. Out goes an error before hours of work, if nothing can be written there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from calltape_analyzer.errors import TapeError, UsageError
from calltape_analyzer.writing.output_file import compressor_of

__all__ = ["check_target"]


def check_target(target: Path, inputs: Sequence[str], *, overwrite: bool) -> None:
    """Checks that a result may be written.

    Args:
        target: where.
        inputs: the files that are read.
        overwrite: whether a file that is there already is replaced.

    Raises:
        UsageError: it is one of the files that are read.
        TapeError: ``exists`` or ``io``; ``usage`` if Zstandard is not installed.
    """
    compressor_of(str(target))
    if os.path.lexists(target) and not overwrite:
        raise TapeError("exists", "it is there already", path=str(target))
    if any(os.path.exists(target) and os.path.samefile(target, one) for one in inputs):
        raise UsageError(
            "it is one of the tapes that are read, and none is changed in place",
            path=str(target),
            advice="name another file for the result",
        )
    if target.is_dir() or not target.parent.is_dir():
        what = "it is a directory" if target.is_dir() else "there is no such directory"
        raise TapeError("io", f"cannot write it: {what}", path=str(target))
