"""``calltape replay`` and ``check`` with ``--markdown``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from calltape_analyzer.comparison.reports import Report, ReportRow, shown_distance
from calltape_analyzer.markdown.disclosure import Disclosure
from calltape_analyzer.markdown.document import LIMIT, Document, span
from calltape_analyzer.markdown.versions import add_versions
from calltape_analyzer.observing.public_paths import LEFT_OUT
from calltape_analyzer.replaying.check_report import CheckReport, CheckRow
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted

__all__ = ["check_in_markdown", "replay_in_markdown"]

_FORM = r"[a-z]+\d*\[[\d, ]*\]"
_ELEMENTS = re.compile(
    r"(?P<path>.{1,500}?)(?P<rest>: \d+ of \d+ elements differ by up to \S+ \(relative \S+\))"
)
_OTHER_FORM = re.compile(rf"(?P<path>.{{1,500}}?)(?P<rest> is {_FORM} instead of {_FORM})")
_RETURNED = re.compile(r"(?P<what>returned, instead of raising )(?P<type>[^\s,]{1,200})")
_EXCEPTION = re.compile(r"(?P<type>[A-Z]\w{0,99})(:| with the message)(?= |$)", re.ASCII)
_INSTEAD = re.compile(r", instead of (?P<type>[\w.:]{1,200})\Z", re.ASCII)
_PLAIN = (
    "nothing was compared",
    "no value was compared",
    "other outputs",
    "not verified",
    "its outputs are not on the tape",
)


def replay_in_markdown(
    report: Report, tape: Tape, *, private: bool = False, every: bool = False, limit: int = LIMIT
) -> str:
    """The calls that fail, and how many do not, as Markdown.

    Args:
        report: what ``replay(tape, ...)`` returned.
        tape: that tape.
        private: also tells messages of exceptions, and the first elements that differ.
        every: a row for each call.
        limit: of its characters.
    """
    told = Disclosure(tape, private=private)
    document = Document("Replay", limit=limit)
    add_versions(document, tape, told)
    fine = len(report.rows) - len(report.failing)
    document.paragraph(
        f"{report.reproduced} of {counted(len(report.rows), 'recorded call')} reproduced, "
        f"{len(report.failing)} failing, {fine} fine."
    )
    rows = report.rows if every else report.failing
    head = ("call", "variant", "ok", "max abs", "max rel", "error")
    document.table("calls", head, [_row(row, told) for row in rows])
    if private:
        _add_elements(document, rows)
    document.bullets("notes", [span(told.text(note)) for note in report.notes])
    return document.text()


def _row(row: ReportRow, told: Disclosure) -> Sequence[str]:
    return (
        row.address or str(row.call),
        told.variant(row.variant),
        "yes" if row.ok else "NO",
        shown_distance(row, row.max_abs),
        shown_distance(row, row.max_rel),
        _error(row.error or "", told),
    )


def _error(error: str, told: Disclosure) -> str:
    """What is told of an error: where, dtypes, shapes, distances, and classes of exceptions."""
    if told.private or not error:
        return error
    for form in (_ELEMENTS, _OTHER_FORM):
        if found := form.match(error):
            return f"{told.place(found['path'])}{found['rest']}"
    if found := _RETURNED.match(error):
        return f"{found['what']}{told.class_name(found['type'])}"
    if found := _EXCEPTION.match(error):
        other = _INSTEAD.search(error)
        instead = f", instead of {told.class_name(other['type'])}" if other else ""
        return f"{found['type']}: {LEFT_OUT}{instead}"
    return next((text for text in _PLAIN if error.startswith(text)), LEFT_OUT)


def _add_elements(document: Document, rows: Sequence[ReportRow]) -> None:
    """The first elements that differ."""
    found = [
        (row.address or str(row.call), leaf.path, str(list(one.index)), one.recorded, one.got)
        for row in rows
        for leaf in row.differences
        for one in leaf.elements
    ]
    head = ("call", "output", "index", "recorded", "got")
    document.table("elements that differ", head, found)


def check_in_markdown(
    report: CheckReport, tape: Tape, *, private: bool = False, limit: int = LIMIT
) -> str:
    """The calls that would be refused, and how many would not, as Markdown.

    Args:
        report: what ``check(tape, ...)`` returned.
        tape: that tape.
        private: also tells the values that are in the way.
        limit: of its characters.
    """
    told = Disclosure(tape, private=private)
    document = Document("Check", limit=limit)
    add_versions(document, tape, told)
    refused = [row for row in report.rows if not row.accepted]
    document.paragraph(
        f"{len(report.rows) - len(refused)} of {counted(len(report.rows), 'recorded call')} would "
        f"be accepted, {len(refused)} refused."
    )
    head = ("call", "dimension", "reason")
    document.table("calls that would be refused", head, [_refused(row, told) for row in refused])
    document.bullets("notes", [span(told.text(note)) for note in report.notes])
    return document.text()


def _refused(row: CheckRow, told: Disclosure) -> Sequence[str]:
    reason = told.text(row.reason or "", numbers=row.dimension is not None)
    dimension = told.place(row.dimension) if row.dimension else "-"
    return row.address or str(row.call), dimension, reason
