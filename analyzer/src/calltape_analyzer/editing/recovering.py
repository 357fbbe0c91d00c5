"""A damaged, torn or unsealed tape as a sound one."""

from __future__ import annotations

import os

from calltape_analyzer.editing.edit_report import EditReport
from calltape_analyzer.editing.rewriting import Rewriting, rewrite
from calltape_analyzer.reading.damage import RepeatedCallsError
from calltape_analyzer.tape import Tape, check_tape

__all__ = ["recover_tape"]


def recover_tape(
    tape: Tape, path: str | os.PathLike[str], *, overwrite: bool = False
) -> EditReport:
    """Writes all sound calls of a tape to a new, sealed tape.

    Each call is compared with its checksums and with the format. A damaged one is taken from
    another file of the tape that has it too. What cannot be read is left out, counted in the end,
    and named in the report (``lost``).

    Args:
        tape: a damaged, torn or unsealed tape, as ``open_tape`` gives it.
        path: of the new file.
        overwrite: whether a file that is there already is replaced.

    Raises:
        UsageError: the path is one of the tape's own files.
        TapeError: ``exists``, ``io``, ``limit``.
    """
    check_tape(tape, "recover_tape")
    was_sealed = tape.sealed
    how = Rewriting("recover", {}, thorough=True, spares=True)
    report = rewrite(tape, path, iter(tape.calls), len(tape.calls), how, overwrite=overwrite)
    note = None
    if not was_sealed:
        note = "the tape had no end: whether calls followed the last one on it is not known"
    elif all(isinstance(error, RepeatedCallsError) for error in tape.damage):
        note = "the tape was sound: nothing had to be recovered"
    return report if note is None else report.model_copy(update={"notes": (*report.notes, note)})
