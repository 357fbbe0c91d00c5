"""``filter_tape``, ``merge_tapes`` and ``recover_tape``, which write calls of an open tape to a new
one (``rewriting.py``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from calltape_analyzer.editing.choice import Choice, select_calls
from calltape_analyzer.editing.omission import Omission
from calltape_analyzer.editing.rewriting import EditReport, Rewrite, Rewriting, rewrite
from calltape_analyzer.errors import RepeatedCallsError, UsageError
from calltape_analyzer.limits import bounded
from calltape_analyzer.reading.recordings import recordings_of
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, some_of

__all__ = ["filter_tape", "merge_tapes", "recover_tape"]

_MAX_NAMED = 8


@bounded()
def filter_tape(
    tape: Tape,
    path: str | os.PathLike[str],
    *,
    drop: str | Sequence[str] = (),
    overwrite: bool = False,
    **choice: Any,
) -> EditReport:
    """Writes some calls of a tape to a new, sealed tape. The original does not change.

    To select calls by number, recording or variant, or with your own code, pass
    ``tape.only(calls=[call for call in tape.calls if (call.duration or 0) > 0.5])``.

    If the tape has one recording, its calls keep their numbers and its id; calls of several
    recordings get new ones, which the history of the new tape explains. The end of the new tape
    counts the calls that were left out. Counted inputs of calls that were not kept are copied only
    if no call is left out.

    Args:
        tape: the tape, or a part of one.
        path: the path of the new file.
        drop: paths of values to leave out, with the patterns of the recorder's ``values=``
            (``"past_key_values.*"``). Tensors keep their shapes, and texts their lengths.
        overwrite: whether to replace an existing file.
        **choice: the fields of :class:`Choice`: ``start``, ``end``, ``raised``, ``where``,
            ``novel``, ``first``.

    Raises:
        UsageError: for invalid conditions, a condition or path that names nothing, or a path that
            is one of the tape's own files.
        TapeError: ``exists``, ``io``, ``limit``.
    """
    check_tape(tape, "filter_tape")
    unknown = choice.keys() - Choice.model_fields.keys()
    if unknown:
        advice = f"calls are chosen by {', '.join(Choice.model_fields)}"
        raise UsageError(f"calls are not chosen by {', '.join(sorted(unknown))}", advice=advice)
    try:
        conditions = Choice(**choice)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UsageError("; ".join(problems)) from None
    patterns = [drop] if isinstance(drop, str) else list(drop)
    options: dict[str, Any] = {**tape.selected, **conditions.options}
    if patterns:
        options["drop"] = patterns
    omission = Omission(patterns, tape.signature)
    positions = select_calls(tape, conditions)
    change = omission if patterns else Rewrite()
    how = Rewriting("filter", options, change=change, keeps_counters=not patterns)
    calls = (tape.calls[position] for position in positions)
    report = rewrite(tape, path, calls, len(positions), how, overwrite=overwrite)
    differ = _different_signatures(tape)
    if differ is not None:
        report = report.noting(f"{differ}: the new tape has the first one")
    if not omission.unmatched:
        return report
    return report.noting(f"no value has a path like {some_of(omission.unmatched, _MAX_NAMED)}")


def _different_signatures(tape: Tape) -> str | None:
    """Names two files with different signatures; None if all are equal."""
    targets = [(s.path, s.manifest.target) for s in tape.segments if s.manifest.target]
    for path, target in targets[1:]:
        if target.signature != targets[0][1].signature:
            names = os.path.basename(targets[0][0]), os.path.basename(path)
            return f"the recorded signatures differ: {names[0]} and {names[1]}"
    return None


@bounded()
def merge_tapes(tape: Tape, path: str | os.PathLike[str], *, overwrite: bool = False) -> EditReport:
    """Writes all calls of several files to one new, sealed tape.

    A call that is in several files is written once, from a file in which it is intact.

    Calls of one recording keep its id and their numbers. Several recordings get a new id, and the
    numbers of each recording follow those of the one before; the history maps them. Counted inputs
    are added up.

    Args:
        tape: what ``open_tape`` returned for several paths.
        path: the path of the new file.
        overwrite: whether to replace an existing file.

    Raises:
        UsageError: the signatures differ, or the path is one of the tape's own files.
        TapeError: ``exists``, ``io``, ``limit``. Tapes of different targets cannot be opened
            together.
    """
    check_tape(tape, "merge_tapes")
    differ = _different_signatures(tape)
    if differ is not None:
        raise UsageError(differ, advice="merge tapes of one version of the model")
    how = Rewriting("merge", {}, use_copies=True)
    report = rewrite(
        tape, path, tape.calls.including_unsound(), len(tape.calls), how, overwrite=overwrite
    )
    recordings = len(recordings_of(tape.segments))
    if recordings < 2:
        return report
    return report.noting(
        f"{counted(recordings, 'recording')} are one now, and calls have new numbers"
    )


@bounded()
def recover_tape(
    tape: Tape, path: str | os.PathLike[str], *, overwrite: bool = False
) -> EditReport:
    """Writes all intact calls of a tape to a new, sealed tape.

    Each call is checked against its checksums and the format. A corrupted call is taken from
    another file of the tape, if it is there too. What cannot be read is left out, counted in the
    end, and named in the report (``lost``).

    Args:
        tape: a corrupted, cut-off or unsealed tape, as ``open_tape`` returns it.
        path: the path of the new file.
        overwrite: whether to replace an existing file.

    Raises:
        UsageError: the path is one of the tape's own files.
        TapeError: ``exists``, ``io``, ``limit``.
    """
    check_tape(tape, "recover_tape")
    is_sealed = tape.sealed
    how = Rewriting("recover", {}, validate=True, use_copies=True)
    report = rewrite(
        tape, path, tape.calls.including_unsound(), len(tape.calls), how, overwrite=overwrite
    )
    if not is_sealed:
        return report.noting(
            "the tape had no end: whether calls followed the last one on it is not known"
        )
    if all(isinstance(error, RepeatedCallsError) for error in tape.damage):
        return report.noting("the tape was sound: nothing had to be recovered")
    return report
