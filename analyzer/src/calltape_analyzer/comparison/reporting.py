"""Every call of a tape through something, as a report.

In come a tape and a function that gives the row of a call. Out goes the report, with notes about
calls that were left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from calltape_analyzer.comparison.reports import Report, ReportRow
from calltape_analyzer.observing.call_source import CallSource
from calltape_analyzer.observing.evidence import has_raised, left_out_note
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.progress import watched
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.segment import UNDER_WAY_WORDS, Segment
from calltape_analyzer.text import counted, some_of
from calltape_schema.errors import OF_CALLS, TapeError


def report_on(
    tape: CallSource,
    row_of: Callable[[Call], ReportRow],
    progress: bool,
    failing: str | os.PathLike[str] | None,
    left_out: Callable[[Call], str | None] | None = None,
) -> Report:
    """The rows of all calls that have ended.

    Args:
        tape: the calls.
        row_of: gives the row of a call.
        progress: shows a progress bar on stderr.
        failing: a path to which the calls are written whose rows are not ok, as a sealed tape; None
            for none. Nothing is written if all are ok.
        left_out: why a call has no row (``raised``), None if it has one; by default, calls that
            raised have none.
    """
    reasons: Counter[str] = Counter()
    # Positions, not calls: a call holds its record once that was read.
    calls, places = tape.calls, list[int]()
    for call in calls:
        reason = UNDER_WAY_WORDS if call.under_way else (left_out or _raised)(call)
        reasons.update([reason] if reason else [])
        places += [] if reason else [call.index]
    rows: list[ReportRow] = []
    for place in watched(places, progress):
        call = calls[place]
        rows.append(_addressed(row_of(call), call, tape))
    report = Report(rows=rows)
    pairs = zip(places, report.rows, strict=True)
    wrong = [calls[place] for place, row in pairs if not row.ok]
    lost = 0
    if failing is not None and wrong:
        lost = _write_failing(tape.segments, wrong, failing)
    notes = [f"{counted(lost, 'failing call')} could not be written: corrupted"] if lost else []
    notes += raised_note(reasons.pop("raised", 0))
    notes += [f"{counted(count, 'call')} {why}: left out" for why, count in reasons.items()]
    if damage := len(tape.damage):
        notes.append(
            f"the tape is corrupted in {counted(damage, 'place')}: the calls there were left out, "
            "or could not be tried"
        )
    report.notes += notes
    return report


def _write_failing(
    segments: Sequence[Segment], calls: Sequence[Call], path: str | os.PathLike[str]
) -> int:
    """Writes the calls that failed to a new tape, whose history says so.

    Returns:
        How many of them are damaged, and not on it.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    from calltape_analyzer.writing.coverage import coverage_for
    from calltape_analyzer.writing.lineage import derived, numbering_of
    from calltape_analyzer.writing.new_tape import NewTape

    numbering, left_out, damaged = numbering_of(segments), Counter[bytes](), 0
    for segment in segments:
        left_out[segment.manifest.tape] += len(segment)
    left_out.subtract(call.ref.tape for call in calls)
    manifest = derived(
        segments, "replay", {"failing": "yes"}, numbering=numbering, left_out=left_out
    )
    with NewTape(path, manifest, inputs=[segment.path for segment in segments]) as writer:
        for call in calls:
            try:
                writer.copy(call, number=numbering.number_of(call.ref.tape, call.ref.number))
            except TapeError as error:
                if error.kind not in OF_CALLS:
                    raise
                damaged += 1
        writer.seal(coverage_for(segments, writer.calls, left_out.total()))
    return damaged


def _raised(call: Call) -> str | None:
    return "raised" if has_raised(call) else None


def _addressed(row: ReportRow, call: Call, tape: CallSource) -> ReportRow:
    address = tape.calls.address_of(call.ref)
    return row if address is None else row.model_copy(update={"address": address})


def raised_note(count: int) -> list[str]:
    """A note on calls that ended with an error; no note if there are none."""
    return [left_out_note(count)] if count else []


MADE_UP = " (with synthetic arguments: the tape has no values)"
"""What to know of a run that failed."""


def made_up_note(count: int) -> list[str]:
    """A note on calls whose arguments are not on the tape; no note if there are none."""
    if not count:
        return []
    return [
        f"the arguments of {counted(count, 'call')} were synthetic, in whole or in part, because "
        "the tape lacks them; output values were not compared"
    ]


def withheld_note(paths: Collection[str]) -> list[str]:
    """A note on outputs whose values are not on the tape; no note if there are none."""
    if not paths:
        return []
    names = some_of([f"outputs{path}" for path in sorted(paths)], 5)
    return [f"not on the tape, so compared in dtype and shape only: {names}"]


def without_removed(
    args: tuple[Any, ...], kwargs: dict[str, Any], signature: Signature
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as they were passed, without the ones that :meth:`Tape.remove_inputs` left out. An
    argument behind one of these is passed by name, if it can be."""
    if not signature.removed:
        return args, kwargs
    from calltape_analyzer.arguments.templates import as_passed

    names = [signature.complete.name_at(i) for i in range(len(args))]
    leading = next((i for i, n in enumerate(names) if n in signature.removed), len(names))
    named = dict(zip(names, args, strict=True)) | kwargs
    left = {name: value for name, value in named.items() if name not in signature.removed}
    return as_passed(left, leading, signature)
