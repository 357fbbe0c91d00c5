"""From tapes to what a report page says.

In come tapes, their variants, and what came of checks. Out go parts with bounds. The records of
many calls are read only if somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from calltape_analyzer.explanation.reasons import reasons_of
from calltape_analyzer.observing.call_source import CallSource
from calltape_analyzer.observing.evidence import left_out_note
from calltape_analyzer.reading.targets import target_name
from calltape_analyzer.reporting.contents import (
    Cell,
    Contents,
    Table,
    TapePart,
    Verdict,
    cut,
    table,
)
from calltape_analyzer.reporting.recorded_times import (
    CallTimes,
    calls_text,
    ends_timeline,
    raised_by_inputs,
)
from calltape_analyzer.reporting.variant_parts import variant_part, variants_table
from calltape_analyzer.text import GOES_ON, counted, some_of, time_text
from calltape_analyzer.variant import Variant, calls_left_out
from calltape_schema import __version__
from calltape_schema.end import Coverage as Counts

__all__ = ["MAX_READ", "Outcomes", "ReportedTape", "contents_of"]

MAX_READ = 20_000
"""The records of so many calls are read without being asked for."""

_MAX_VARIANTS, _MAX_DAMAGE, _MAX_PATHS, _MAX_REASONS = 24, 50, 3, 20
_MAX_ROWS, _MAX_NOTES, _MAX_PARTS = 200, 20, 12

_UNREAD = (
    "this needs the record of each call, which was not read: with --scan (at the prompt) or "
    "scan=True it is"
)


class ReportedTape(CallSource, Protocol):
    """What a report page reads of a tape; each member is as in ``Tape``."""

    def __len__(self) -> int: ...
    @property
    def coverage(self) -> Counts: ...
    @property
    def sealed(self) -> bool: ...
    @property
    def continues(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def source(self) -> Literal["records", "end"]: ...
    @property
    def selected(self) -> dict[str, Any]: ...
    def variants(self) -> list[Variant]: ...


class Outcomes(Protocol):
    """What came of a check or a replay: a ``CheckReport`` or a ``Report``."""

    @property
    def ok(self) -> bool: ...
    @property
    def summary(self) -> str: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def rows(self) -> Sequence[Any]: ...


def contents_of(
    tapes: Sequence[ReportedTape],
    *,
    scan: bool | None = None,
    outcomes: Mapping[str, Outcomes] | None = None,
) -> Contents:
    """What the report page says of tapes of different targets.

    Args:
        tapes: one for each target.
        scan: whether the record of each call is read; None if there are few calls.
        outcomes: what came of checks of the first tape, by name.

    Raises:
        TapeError: as :meth:`Tape.variants`.
    """
    shown = tapes[:_MAX_PARTS]
    parts = [
        _tape_part(tape, scan, outcomes or {} if number == 0 else {})
        for number, tape in enumerate(shown)
    ]
    more = counted(len(tapes) - len(shown), "more target")
    notes = [f"not on this page: {more}; --target chooses one"] * (len(tapes) > len(shown))
    title = parts[0].target if len(parts) == 1 else counted(len(tapes), "recorded target")
    return Contents(title, tuple(parts), __version__, tuple(notes))


def _tape_part(tape: ReportedTape, scan: bool | None, outcomes: Mapping[str, Outcomes]) -> TapePart:
    """Everything that a page says of a tape."""
    variants = tape.variants()
    has_calls = tape.calls.are_single
    is_read = has_calls and (len(tape) <= MAX_READ if scan is None else scan)
    times = CallTimes(tape) if is_read else None
    reasons = reasons_of(tape, variants)[:_MAX_VARIANTS]
    pairs = zip(variants, reasons, strict=False)
    unread = _UNREAD if has_calls else "a survey has no single call"
    return TapePart(
        target=cut(target_name(tape.target)),
        facts=tuple(_facts(tape, variants)),
        coverage=_coverage(tape),
        timeline=ends_timeline(tape) if times is None else times.timeline(),
        overview=variants_table(variants, reasons, calls_left_out(tape, variants)),
        variants=tuple(variant_part(*one) for one in pairs),
        errors=(f"{raised_by_inputs(tape)} What they raised: {unread}.", None)
        if times is None else times.errors(),
        verdicts=tuple(_verdict(name, one) for name, one in outcomes.items()),
        damage=tuple(_damage(tape)),
        notes=tuple(_notes(variants, times, unread)),
    )  # fmt: skip


def _facts(tape: ReportedTape, variants: Sequence[Variant]) -> Iterator[tuple[str, str]]:
    yield "files", f"{len(tape.paths):,}: {cut(some_of(tape.paths, _MAX_PATHS), 400)}"
    yield "calls", _calls(tape, variants)
    yield "bytes", f"{tape.nbytes:,}"
    if tape.selected:
        yield "part of the tape", cut(str(tape.selected), 400)
    sealed = f"each file; {GOES_ON}" if tape.continues else "yes"
    yield "sealed", sealed if tape.sealed else "no: still recording, killed, or cut off"
    manifests = [segment.manifest for segment in tape.segments[:1]]
    for manifest in manifests:
        if manifest.target is not None:
            yield "seen by", cut(manifest.target.via)
        versions = manifest.producer.model_dump(exclude_none=True)
        yield "producer", cut(", ".join(f"{name} {text}" for name, text in versions.items()), 400)
        policy = manifest.policy
        values = "values kept" if policy.values == "all" else "shapes only"
        keep = f"keeps {policy.keep}, " if policy.keep is not None else ""
        yield "policy", cut(f"{keep}{values}, {'outputs too' if policy.outputs else 'no outputs'}")
        yield "begun", time_text(manifest.created_ns)
    if tape.source == "end":
        yield "read from", "what the files say of all their calls at their ends"


def _calls(tape: ReportedTape, variants: Sequence[Variant]) -> str:
    programs = counted(len(variants), "variant")
    if not (left_out := calls_left_out(tape, variants)):
        return f"{len(tape):,} in {programs}"
    served = sum(map(len, variants))
    return f"{len(tape):,}, of which {served:,} in {programs}; {left_out_note(left_out)}"


def _coverage(tape: ReportedTape) -> tuple[str, Table]:
    found = tape.coverage
    seen = max(found.seen, 1)
    at_least = "at least " if found.at_least else ""
    rows = [("kept", found.kept)]
    for kind, dropped in (("not wanted", found.unwanted), ("lost", found.lost)):
        ranked = sorted(dropped.items(), key=lambda one: -one[1])
        rows += [(f"{kind}: {cut(reason)}", calls) for reason, calls in ranked[:_MAX_REASONS]]
        rest = sum(calls for _, calls in ranked[_MAX_REASONS:])
        rows += [(f"{kind}: other reasons", rest)] if rest else []
    counters = tape.counters
    are = "was seen is" if found.seen == 1 else "were seen are"
    said = f"{found.kept:,} of {at_least}{calls_text(found.seen)} that {are} on the tape."
    if found.counted_ns is not None:
        said += f" They are counted until {time_text(found.counted_ns)}."
    if counters.calls:
        kinds = counted(len(counters.groups), "kind")
        said += f" The recorder counted the sizes of {calls_text(counters.calls)}, in {kinds}."
    if counters.missing:
        said += f" Without such counts: {counted(len(counters.missing), 'file')}."
    shares = [(name, calls, round(100 * calls / seen, 2)) for name, calls in rows]
    head = ("calls", "number", "% of those seen")
    return said, table("what became of the calls", head, shares)


def _verdict(name: str, found: Outcomes) -> Verdict:
    rows = sorted(found.rows, key=_is_fine)
    failed = len(rows) - sum(map(_is_fine, rows))
    return Verdict(
        name=cut(name),
        ok=found.ok,
        summary=cut(found.summary, 500),
        rows=table(
            f"call by call, {failed:,} that failed first" if failed else "call by call",
            ("call", "variant", "result", "why"),
            map(_verdict_row, rows),
            _MAX_ROWS,
        ),
        notes=tuple(cut(note, 500) for note in found.notes[:_MAX_NOTES]),
    )


def _is_fine(row: Any) -> bool:
    return bool(row.ok if hasattr(row, "ok") else row.accepted)


def _verdict_row(row: Any) -> tuple[Cell, ...]:
    call: Cell = row.address or row.call
    if not hasattr(row, "ok"):
        why = ": ".join(filter(None, (row.dimension, row.reason)))
        return call, row.variant or "", "accepted" if row.accepted else "REFUSED", why
    if not row.ok:
        return call, row.variant or "", "FAILED", row.error or ""
    largest = f"largest difference {row.max_abs:.1e}" if row.compared else ""
    result = "reproduced" if row.is_verified else f"fine ({row.against})"
    return call, row.variant or "", result, largest


def _damage(tape: ReportedTape) -> Iterator[str]:
    errors = tape.damage
    for error in errors[:_MAX_DAMAGE]:
        yield cut(str(error), 500)
    if len(errors) > _MAX_DAMAGE:
        yield f"and {len(errors) - _MAX_DAMAGE:,} more places"


def _notes(variants: Sequence[Variant], times: CallTimes | None, unread: str) -> Iterable[str]:
    if len(variants) > _MAX_VARIANTS:
        yield (
            f"of {len(variants):,} variants the first {_MAX_VARIANTS} are on this page; "
            "--variant chooses others"
        )
    if times is None:
        yield f"latency, and calls over time within a file: {unread}"
