"""Some calls of a tape as a tape, all of each call or some of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from calltape_analyzer.editing.choice import Choice, chosen
from calltape_analyzer.editing.edit_report import EditReport
from calltape_analyzer.editing.numbering import Numbering, Origin, origin_of
from calltape_analyzer.editing.rewriting import Rewriting, rewrite
from calltape_analyzer.editing.withholding import Withholding
from calltape_analyzer.errors import UsageError
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import some_of
from calltape_analyzer.writing.coverage import new_coverage
from calltape_schema.end import Coverage

__all__ = ["filter_tape"]

_MAX_NAMED = 8
_MERGED = "unknown (the tape was merged, and calls were left out)"


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
    numbering, origin = None, None
    if recording is not None:
        tape, origin = _of_recording(tape, recording)
        options["recording"] = recording
        numbering = origin and Numbering(
            origin.tape, {tape.segments[0].manifest.tape: -origin.first}
        )
    options |= {"drop": patterns} if patterns else {}
    options |= {"drop_outputs": True} if drop_outputs else {}
    withholding = None
    if patterns or drop_outputs:
        withholding = Withholding(patterns, outputs=drop_outputs, signature=tape.signature)
    places = chosen(tape, asked)
    how = Rewriting(
        "filter", options, numbering=numbering, change=withholding,
        keeps_counters=not patterns, origin=origin and origin.tape,
        coverage=origin and partial(_coverage_of, origin, tape.coverage),
    )  # fmt: skip
    calls = (tape.calls[place] for place in places)
    report = rewrite(tape, path, calls, len(places), how, overwrite=overwrite)
    return _with_unmet(report, withholding)


def _with_unmet(report: EditReport, withholding: Withholding | None) -> EditReport:
    """A report that names the paths of which no call had a value."""
    if withholding is None or not withholding.unmet:
        return report
    note = f"no value has a path like {some_of(withholding.unmet, _MAX_NAMED)}"
    return report.model_copy(update={"notes": (*report.notes, note)})


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


def _coverage_of(origin: Origin, whole: Coverage, kept: int, highest: int) -> Coverage:
    """The coverage of a recording that was merged: the numbers tell how many calls it saw.

    Args:
        origin: where it is on the merged tape.
        whole: the coverage of that tape.
        kept: how many calls of the recording are written.
        highest: the highest number among them, or -1.

    Raises:
        TapeError: ``limit`` if the tape claims more calls than can be counted.
    """
    end = whole.seen if origin.end is None else origin.end
    seen = max(end - origin.first, highest + 1)
    dropped = {_MERGED: seen - kept} if seen > kept else {}
    return new_coverage(kept, dropped, whole.at_least)
