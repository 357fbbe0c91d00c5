"""The tapes that one makes of others: some of the calls, all calls of several files, what is sound.

In come an open tape and what is wanted of it. Out go a new, sealed tape and a report. All is read,
changed and written by one loop (``rewriting.py``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from calltape_analyzer.editing.choice import Choice, chosen
from calltape_analyzer.editing.edit_report import EditReport
from calltape_analyzer.editing.rewriting import Rewriting, rewrite
from calltape_analyzer.editing.withholding import Withholding
from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.damage import RepeatedCallsError
from calltape_analyzer.reading.recordings import recordings_of
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, some_of
from calltape_analyzer.writing.lineage import Origin, origin_of

__all__ = ["filter_tape", "merge_tapes", "recover_tape"]

_MAX_NAMED = 8


def filter_tape(
    tape: Tape,
    path: str | os.PathLike[str],
    *,
    recording: str | None = None,
    drop: str | Sequence[str] = (),
    drop_outputs: bool = False,
    overwrite: bool = False,
    **choice: Any,
) -> EditReport:
    """Writes some calls of a tape to a new, sealed tape. The tape that is read stays as it is.

    ``tape.only(calls=..., variant=...)`` chooses calls by number and by variant. Calls of one
    recording keep their numbers and its id; calls of several get new ones, which the history of the
    new tape explains. The end counts what was left out; inputs of calls that are on no tape it
    counts only if no call was.

    Args:
        tape: the tape, or a part of one.
        path: of the new file.
        recording: the first digits of the id of a recording: only its calls. If the tape was
            merged, they get back the id and the numbers that they had.
        drop: paths of values that are left out, with the patterns of the recorder's ``values=``
            (``"past_key_values.*"``): tensors keep their shapes, texts their lengths.
        drop_outputs: leaves the outputs out as a whole.
        overwrite: whether a file that is there already is replaced.
        **choice: the fields of :class:`Choice`: ``start``, ``end``, ``raised``, ``slower``,
            ``faster``, ``threads``, ``where``, ``novel``, ``every``, ``first``, ``last``.

    Raises:
        UsageError: for a choice that is none, a condition or path that names nothing, or a path
            that is one of the tape's own files.
        TapeError: ``exists``, ``io``, ``limit``.
    """
    check_tape(tape, "filter_tape")
    asked = _choice_of(choice)
    patterns = [drop] if isinstance(drop, str) else list(drop)
    options: dict[str, Any] = {**tape.selected, **asked.options}
    origin = None
    if recording is not None:
        tape, origin = _of_recording(tape, recording)
        options["recording"] = recording
    options |= {"drop": patterns} if patterns else {}
    options |= {"drop_outputs": True} if drop_outputs else {}
    withholding = None
    if patterns or drop_outputs:
        withholding = Withholding(patterns, outputs=drop_outputs, signature=tape.signature)
    places = chosen(tape, asked)
    how = Rewriting(
        "filter", options, change=withholding, keeps_counters=not patterns, origin=origin
    )
    calls = (tape.calls[place] for place in places)
    report = rewrite(tape, path, calls, len(places), how, overwrite=overwrite)
    if withholding is None or not withholding.unmet:
        return report
    return report.noting(f"no value has a path like {some_of(withholding.unmet, _MAX_NAMED)}")


def _choice_of(given: dict[str, Any]) -> Choice:
    unknown = given.keys() - Choice.model_fields.keys()
    if unknown:
        advice = f"calls are chosen by {', '.join(Choice.model_fields)}"
        raise UsageError(f"calls are not chosen by {', '.join(sorted(unknown))}", advice=advice)
    try:
        return Choice(**given)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UsageError("; ".join(problems)) from None


def _of_recording(tape: Tape, recording: str) -> tuple[Tape, Origin | None]:
    """The calls of one recording; if it was merged with others, where it is on the tape."""
    own = [s for s in tape.segments if s.manifest.tape.hex().startswith(recording)]
    if len({segment.manifest.tape for segment in own}) > 1:
        raise UsageError(f"several recordings begin with {recording}", advice="give more digits")
    if own:
        return tape._part(own), None
    for segment in tape.segments:
        origin = origin_of(segment.manifest, recording)
        if origin is not None:
            merged = segment.manifest.tape
            last = "" if origin.end is None else origin.end - 1
            part = tape.only(calls=f"{merged.hex()}:{origin.first}..{last}")
            return part._part([s for s in part.segments if s.manifest.tape == merged]), origin
    raise UsageError(
        f"no recording {recording} is on this tape", advice="`calltape info` shows their ids"
    )


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
    difference = _difference_of(tape)
    if difference is not None and not any_signature:
        raise UsageError(
            difference, advice="merge tapes of one version of the model, or allow any signature"
        )
    notes = [] if difference is None else [difference]
    options = {"any_signature": True} if any_signature else {}
    how = Rewriting("merge", options, spares=True)
    report = rewrite(tape, path, iter(tape.calls), len(tape.calls), how, overwrite=overwrite)
    recordings = recordings_of(tape.segments)
    if len(recordings) > 1:
        notes.append(
            f"{counted(len(recordings), 'recording')} are one now, and calls have new numbers"
        )
    return report.noting(*notes)


def _difference_of(tape: Tape) -> str | None:
    """In what the targets differ, apart from class and method, which are the same."""
    known = [(one.path, one.manifest.target) for one in tape.segments if one.manifest.target]
    for path, target in known[1:]:
        if target.signature != known[0][1].signature:
            names = os.path.basename(known[0][0]), os.path.basename(path)
            return f"the recorded signatures differ: {names[0]} and {names[1]}"
    return None


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
    if not was_sealed:
        return report.noting(
            "the tape had no end: whether calls followed the last one on it is not known"
        )
    if all(isinstance(error, RepeatedCallsError) for error in tape.damage):
        return report.noting("the tape was sound: nothing had to be recovered")
    return report
