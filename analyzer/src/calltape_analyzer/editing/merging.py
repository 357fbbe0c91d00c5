"""Several recordings of one target as one tape."""

from __future__ import annotations

import os
from collections.abc import Iterator

from calltape_analyzer.editing.edit_report import EditReport
from calltape_analyzer.editing.rewriting import Rewriting, rewrite
from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.recordings import recordings_of
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted

__all__ = ["merge_tapes"]


def merge_tapes(
    tape: Tape,
    path: str | os.PathLike[str],
    *,
    any_signature: bool = False,
    overwrite: bool = False,
) -> EditReport:
    """Writes all calls of several files to one new, sealed tape.

    A call that several files have is written once; where one file is damaged, another one gives it.

    Files of one recording keep its id and their numbers. Several recordings get a new id, and the
    numbers of each follow those of the one before; the history says which are whose, and
    ``filter_tape(recording=...)`` takes them apart again. Traffic counters add up.

    Args:
        tape: what ``open_tape`` made of several paths.
        path: of the new file.
        any_signature: merges also if the recorded signatures differ; the first one is kept.
        overwrite: whether a file that is there already is replaced.

    Raises:
        UsageError: the signatures differ, or the path is one of the tape's own files.
        TapeError: ``exists``, ``io``, ``limit``. Tapes of different targets cannot be opened
            together.
    """
    check_tape(tape, "merge_tapes")
    notes = list(_differences(tape))
    if notes and not any_signature:
        raise UsageError(
            notes[0], advice="merge tapes of one version of the model, or allow any signature"
        )
    options = {"any_signature": True} if any_signature else {}
    how = Rewriting("merge", options, spares=True)
    report = rewrite(tape, path, iter(tape.calls), len(tape.calls), how, overwrite=overwrite)
    recordings = recordings_of(tape.segments)
    if len(recordings) > 1:
        notes.append(
            f"{counted(len(recordings), 'recording')} are one now, and calls have new numbers"
        )
    return report.model_copy(update={"notes": (*report.notes, *notes)})


def _differences(tape: Tape) -> Iterator[str]:
    """In what the targets differ, apart from class and method, which are the same."""
    known = [s for s in tape.segments if s.manifest.target is not None]
    for segment in known[1:]:
        first, other = known[0].manifest.target, segment.manifest.target
        assert first is not None
        assert other is not None
        if first.signature != other.signature:
            names = os.path.basename(known[0].path), os.path.basename(segment.path)
            yield f"the recorded signatures differ: {names[0]} and {names[1]}"
            return
