"""Every call of a tape through something, as a report.

In come a tape and a judge. Out goes the report, with notes about calls that were left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from calltape_analyzer.comparison.judging import Judge
from calltape_analyzer.comparison.reports import Report, ReportRow
from calltape_analyzer.comparison.verdicts import CallsKind, CorruptedTape, SomeCalls
from calltape_analyzer.observing.sorting import CallSource
from calltape_analyzer.progress import watched
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.segment import Segment
from calltape_schema.errors import OF_CALLS, TapeError

__all__ = ["report_on"]


def report_on(
    tape: CallSource, judge: Judge, progress: bool, failing: str | os.PathLike[str] | None
) -> Report:
    """The rows of all calls that have ended, and that the judge does not leave out.

    Args:
        tape: the calls.
        judge: gives the row of a call.
        progress: shows a progress bar on stderr.
        failing: a path to which the calls are written whose rows are not ok, as a sealed tape; None
            for none. Nothing is written if all are ok.
    """
    left_out: Counter[CallsKind] = Counter()
    # Positions, not calls: a call holds its record once that was read.
    calls, places = tape.calls, list[int]()
    for call in calls:
        kind = CallsKind.UNDER_WAY if call.under_way else judge.leaves_out(call)
        left_out.update([kind] if kind else [])
        places += [] if kind else [call.index]
    rows: list[ReportRow] = []
    for place in watched(places, progress):
        call = calls[place]
        address = tape.calls.address_of(call.ref)
        rows.append(judge.row(call).model_copy(update={"address": address}))
    report = Report(rows=rows)
    pairs = zip(places, report.rows, strict=True)
    wrong = [calls[place] for place, row in pairs if not row.ok]
    if failing is not None and wrong:
        left_out[CallsKind.UNWRITTEN] = _write_failing(tape.segments, wrong, failing)
    report.notes += [SomeCalls(kind, count) for kind, count in left_out.items() if count]
    report.notes += [CorruptedTape(len(tape.damage))] if tape.damage else []
    report.notes += judge.notes()
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
    from calltape_analyzer.writing.lineage import coverage_for, derived, numbering_of
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
