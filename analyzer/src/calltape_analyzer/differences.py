"""What the traffic on one tape shows that another's does not.

Takes two tapes; returns the changes, each with the calls that show it. A program that was exported
from tape ``a`` is known to be right only for what ``a`` shows. For what is new on ``b`` it may
reject a call, or be wrong. Nothing here needs torch or reads tensor bytes.

Calls are compared with the variants of the earlier tape. A dynamic dimension of a variant may have
any size between the smallest and the largest that were seen in any variant (rule 5 of
docs/decisions/export-strategies.md). A constant one keeps its size. Symbols and relations still
hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from pydantic import computed_field

from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.contexts import CONTEXT
from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.size_table import Column, Seen, SizeTable
from calltape_analyzer.plain_data import PlainData, Sketch, Text, Texts
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, listed, printable, shown_value, some_of
from calltape_analyzer.traffic import TapeTraffic, sum_of_seen
from calltape_analyzer.variants.derivation import Pools
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.variant_findings import expression

__all__ = ["Change", "TapeDifference", "diff"]

_MAX_PATHS = 3
_SAME = "the traffic on both is the same"


class TapeDifference(PlainData):
    """What tape ``b`` shows that ``a`` does not, and what is only on ``a``. To iterate gives the
    changes.

    Attributes:
        a, b: the paths of the files.
        appeared: what is new on ``b``; ``first_call`` and ``calls`` are of ``b``.
        disappeared: what ``b`` no longer shows; ``first_call`` and ``calls`` are of ``a``.
        notes: what limits the comparison.
    """

    a: Texts
    b: Texts
    appeared: tuple[Change, ...]
    disappeared: tuple[Change, ...]
    notes: Texts = ()

    def __iter__(self) -> Iterator[Change]:  # type: ignore[override]
        yield from self.appeared
        yield from self.disappeared

    @computed_field  # type: ignore[prop-decorator]
    @property
    def same(self) -> bool:
        """Whether the traffic is the same. Changes of the kind ``range`` (elements of integer
        tensors) do not count, because token ids differ between any two recordings."""
        return all(change.kind == "range" for change in self)

    def __repr__(self) -> str:
        counts = f"{len(self.appeared):,} appeared, {len(self.disappeared):,} disappeared"
        parts = [counts] if self.appeared or self.disappeared else []
        return f"<TapeDifference: {'; '.join([*parts, *[_SAME] * self.same])}>"

    def _sketch(self) -> Sketch:
        facts = [
            ("a", some_of(self.a, _MAX_PATHS)),
            ("b", some_of(self.b, _MAX_PATHS)),
            ("appeared", len(self.appeared)),
            ("disappeared", len(self.disappeared)),
        ]
        signs = ["+"] * len(self.appeared) + ["-"] * len(self.disappeared)
        rows = [
            (sign, changes.kind, changes.where, changes.text, changes.calls or "")
            for sign, changes in zip(signs, self, strict=True)
        ]
        head = ("", "kind", "where", "change", "calls")
        note = "; ".join([*self.notes, *[_SAME] * self.same])
        return Sketch("TapeDifference", facts, head=head, rows=rows, note=note)

    def __str__(self) -> str:
        """A line per change, first what appeared. Everything from the tapes is made printable."""
        lines = [f"+ {change}" for change in self.appeared]
        lines += [f"- {change}" for change in self.disappeared]
        lines += [f"note: {note}" for note in self.notes]
        if self.same:
            lines.append(_SAME)
        return "\n".join(printable(line) for line in lines)


@bounded()
def diff(a: Tape, b: Tape) -> TapeDifference:
    """Compares the traffic on two tapes of one model.

    It compares structures, constants, dtypes, sizes, and what always held between sizes (the
    variants of :meth:`Tape.variants`). The order of the calls and the values of their tensors do
    not count.

    Args:
        a: what was seen before, such as the tape that was exported from.
        b: what is seen now.

    Raises:
        TapeError: a call's record breaks the format.
    """
    check_tape(a, "diff")
    check_tape(b, "diff")
    before, now = TapeTraffic.of_both(a, b)
    return TapeDifference(
        a=a.paths,
        b=b.paths,
        appeared=tuple(appeared(before, now)),
        disappeared=tuple(disappeared(before, now)),
    )


_MAX_SHOWN = 6


class Change(PlainData):
    """One thing that one tape shows and the other does not.

    Attributes:
        kind: ``target`` (another model or signature), ``argument``, ``variant`` (calls that need
            a program of their own), ``kind`` (a tensor in place of an int, ...), ``dtype``,
            ``rank``, ``layout`` (of a tensor: sparse instead of strided), ``constant`` (a value
            that selects a program), ``dimension`` (it was constant), ``size`` (outside the range
            seen), ``int``, ``symbol`` (dimensions that were always equal), ``relation`` (a sum or
            multiple that always held), ``range`` (elements of an integer tensor), ``error`` (calls
            that raised).
        where: the argument, the tensors or the dimensions.
        text: the change in words.
        first_call: the number of the first call that shows it; None if no call does.
        calls: how many calls show it.
        path: the file of the first call, if the tape is several files.
        address: the address of the first call, if the tape is of several recordings.
    """

    kind: str
    where: Text
    text: Text
    first_call: int | None = None
    calls: int = 0
    path: Text | None = None
    address: str | None = None

    def __str__(self) -> str:
        said = f"{self.kind}: {self.where}: {self.text}"
        if self.first_call is None:
            return said
        first = "call" if self.calls == 1 else "first call"
        path = f" of {self.path}" if self.path else ""
        calls, first_call = counted(self.calls, "call"), self.address or self.first_call
        return f"{said} ({calls}, {first} {first_call}{path})"


def appeared(before: TapeTraffic, now: TapeTraffic) -> Iterator[Change]:
    """What ``now`` shows and ``before`` does not, the most far-reaching changes first."""
    yield from _targets(before, now)
    yield from _answers(before, now, "never passed before, or only its default", "before only")
    yield from _structures(before, now, "never seen before")
    for variant in before.variants:
        rows = _rows_like(variant, now)
        if len(rows):
            yield from _sizes(before, now, variant, rows)
            yield from _broken_symbols(now, variant, rows)
            yield from _broken_relations(now, variant, rows)
    for variant in now.variants:
        if not before.has(variant.group.key):
            yield from _sizes_of_new(before, now, variant)
    yield from _spans(before, now)
    yield from _errors(before, now)


def disappeared(before: TapeTraffic, now: TapeTraffic) -> Iterator[Change]:
    """What ``before`` shows and ``now`` does not."""
    yield from _answers(now, before, "no longer passed, or only its default", "now only")
    yield from _structures(now, before, "no longer seen")
    for variant in before.variants:
        rows = _rows_like(variant, now)
        if not len(rows) and now.has(variant.group.key):
            conditions = ", ".join(c.text(variant.group.layout) for c in variant.conditions)
            all_spans = _all_of(variant.all_rows)
            yield _change(
                before, "variant", variant.name, f"no longer seen: {conditions}", all_spans
            )
        if rows.calls > 1:
            yield from _settled_symbols(before, variant, rows)


def _change(traffic: TapeTraffic, kind: str, where: str, text: str, seen: Seen) -> Change:
    return Change(
        kind=kind,
        where=where,
        text=text,
        first_call=seen.first.number,
        calls=seen.calls,
        path=traffic.tape.calls.path(seen.first) if len(traffic.tape.paths) > 1 else None,
        address=traffic.tape.calls.address_of(seen.first),
    )


def _targets(before: TapeTraffic, now: TapeTraffic) -> Iterator[Change]:
    target_before, target_now = before.tape.target, now.tape.target
    if target_before is None or target_now is None:
        return
    if target_before.name != target_now.name:
        yield Change(
            kind="target", where=target_now.name, text=f"another model; before {target_before.name}"
        )
    for was, got in zip_longest(target_before.signature or (), target_now.signature or ()):
        if was != got:
            text = f"its signature differs from parameter {(got or was).name} on"
            yield Change(kind="target", where=target_now.name, text=text)
            return


def _answers(before: TapeTraffic, now: TapeTraffic, unseen: str, only: str) -> Iterator[Change]:
    """Yields arguments, dtypes, constants, ... that ``now`` has and ``before`` does not."""
    for (kind, place), answers in now.facets.items():
        answers_before = before.facets.get((kind, place))
        if answers_before is None:
            if kind == "argument":
                value = now.facets.get(("constant", place), {})
                text = f"{unseen}: {', '.join(list(value)[:_MAX_SHOWN])}" if value else unseen
                yield _change(now, "argument", place, text, sum_of_seen(answers.values()))
            continue
        for answer, seen in answers.items():
            if answer not in answers_before:
                text = f"{answer}; {only} {', '.join(list(answers_before)[:_MAX_SHOWN])}"
                yield _change(now, kind, place, text, seen)


def _structures(before: TapeTraffic, now: TapeTraffic, words: str) -> Iterator[Change]:
    """Yields groups of calls that ``now`` has and ``before`` does not."""
    for key, group in now.observations.groups.items():
        if before.has(key):
            continue
        names = now.names.get(key, [])
        text = words
        closest = min(
            (_differences(group_before, group) for group_before in before.similar.to(group)),
            key=len,
            default=[],
        )
        if closest:
            text += f": {some_of(closest, 3, '; ')}"
        yield _change(now, "variant", ", ".join(names), text, Seen(group.calls, group.first))


def _differences(before: Group, group: Group) -> list[str]:
    """How a group differs from a known one, in words."""
    ours, theirs = dict(before.layout.keys), dict(group.layout.keys)
    if ours.pop(CONTEXT, None) != theirs.pop(CONTEXT, None):
        context, context_before = group.layout.context, before.layout.context
        differences = [
            f"{context.separating(context_before)} instead of {context_before.separating(context)}"
        ]
    else:
        differences = []
    differences += [f"without {name}" for name in ours if name not in theirs]
    differences += [f"with {name}" for name in theirs if name not in ours]
    counts = [Counter(place.argument for place in g.layout.tensors) for g in (before, group)]
    for name in ours:
        if name in theirs and ours[name] != theirs[name]:
            was, now = (count[name] for count in counts)
            tensors = f"{counted(now, 'tensor')} instead of {was}"
            differences.append(f"{name} has {tensors if was != now else 'another structure'}")
    facts = {str(p): fact for p, fact in zip(before.layout.tensors, before.facts, strict=True)}
    for place, fact in zip(group.layout.tensors, group.facts, strict=True):
        fact_before = facts.get(str(place), fact)
        if fact_before != fact:
            differences.append(f"{place} is {fact.unlike(fact_before)}")
    if group.key.constants and before.layout.keys == group.layout.keys and not differences:
        differences.append("another value of a constant")
    return differences


def _rows_like(variant: VariantFacts, now: TapeTraffic) -> SizeTable:
    """The calls of ``now`` that belong to a variant, by structure and conditions."""
    rows = now.rows_of(variant.group.key)
    for condition in variant.conditions:
        rows = rows.where(condition.among(rows)) if len(rows) else rows
    return rows


def _all_of(rows: SizeTable) -> Seen:
    return Seen(rows.calls, rows.first)


def _seen_where(rows: SizeTable, are_chosen: Sequence[bool]) -> Seen:
    return _all_of(rows.where(are_chosen))


class _Collected:
    """The changes in one variant. Changes that differ in nothing but their place become one."""

    def __init__(self, traffic: TapeTraffic) -> None:
        self.traffic = traffic
        self.places: dict[tuple[str, str, Seen], list[str]] = {}
        self._outside: dict[tuple[int, tuple[int, int]], tuple[str, Seen] | None] = {}

    def outside(
        self, rows: SizeTable, column: Column, bounds: tuple[int, int]
    ) -> tuple[str, Seen] | None:
        """The sizes of a column that are not between the two ``bounds``, in words, and their
        calls. It is found once for all columns that never differed."""
        key = (rows.line(column), bounds)
        if key not in self._outside:
            low, high = bounds
            sizes_seen = rows.sizes(column).items()
            outside = {size: seen for size, seen in sizes_seen if not low <= size <= high}
            sizes = sorted(outside)
            shown = ", ".join(map(shown_value, sizes[:_MAX_SHOWN]))
            more = ", …" if len(sizes) > _MAX_SHOWN else ""
            self._outside[key] = (shown + more, sum_of_seen(outside.values())) if outside else None
        return self._outside[key]

    def add(self, kind: str, place: str, text: str, seen: Seen) -> None:
        self.places.setdefault((kind, text, seen), []).append(place)

    def __iter__(self) -> Iterator[Change]:
        for (kind, text, seen), places in self.places.items():
            yield _change(self.traffic, kind, listed(places, 4), text, seen)


def _sizes(
    before: TapeTraffic, now: TapeTraffic, variant: VariantFacts, rows: SizeTable
) -> Iterator[Change]:
    """Yields sizes and ints that the variant's dimensions do not allow."""
    collected = _Collected(now)
    counting = variant.counting_ints
    for column, decided in variant.dimensions.items():
        if decided.reason == "counter":
            layout, size_of = variant.group.layout, counting[column]
            pairs = zip(rows.values(column), rows.values(size_of), strict=True)
            broken = [count != size for count, size in pairs]
            if any(broken):
                text = f"no longer counts {layout.column_name(size_of)}, as it always did"
                name = layout.column_name(column)
                collected.add(
                    "relation", name, f"{text} in {variant.name}", _seen_where(rows, broken)
                )
            continue
        values = variant.all_rows.distinct(column)
        bounds = min(values), max(values)
        if decided.dynamic:
            pooled = before.pooled.get(Pools.key(variant.group, column), bounds)
            bounds = min(bounds[0], pooled[0]), max(bounds[1], pooled[1])
        _check_sizes(collected, variant, column, bounds, rows)
    yield from collected


def _check_sizes(
    collected: _Collected,
    variant: VariantFacts,
    column: Column,
    bounds: tuple[int, int],
    rows: SizeTable,
) -> None:
    low, high = bounds
    outside = collected.outside(rows, column, bounds)
    if outside is None:
        return
    shown, seen = outside
    kind = "int" if column.axis is None else "size"
    if low == high:
        kind = "int" if column.axis is None else "dimension"
        text = f"now {shown}; always {shown_value(low)} before"
    else:
        text = f"now {shown}; {shown_span(bounds)} before"
    name = variant.group.layout.column_name(column)
    collected.add(kind, name, f"{text}, in {variant.name}", seen)


def _broken_symbols(now: TapeTraffic, variant: VariantFacts, rows: SizeTable) -> Iterator[Change]:
    """Yields dimensions that were always equal, and are not now."""
    for symbol in variant.symbols:
        lines: dict[int, list[Column]] = {}
        for column in symbol.columns:
            lines.setdefault(rows.line(column), []).append(column)
        if len(lines) == 1:
            continue
        line_values = [rows.values(columns[0]) for columns in lines.values()]
        broken = [len(set(values)) > 1 for values in zip(*line_values, strict=True)]
        example = broken.index(True)
        parts = [
            f"{_names(variant, columns)} is {shown_value(values[example])}"
            for columns, values in zip(lines.values(), line_values, strict=True)
        ]
        text = f"no longer equal, as they always were in {variant.name}: {', '.join(parts[:4])}"
        yield _change(now, "symbol", symbol.name, text, _seen_where(rows, broken))


def _names(variant: VariantFacts, columns: Sequence[Column]) -> str:
    return listed([variant.group.layout.column_name(column) for column in columns])


def _broken_relations(now: TapeTraffic, variant: VariantFacts, rows: SizeTable) -> Iterator[Change]:
    """Yields sums and multiples that always held, and do not now."""
    for symbol in variant.symbols:
        if symbol.relation is None:
            continue
        values = rows.values(symbol.columns[0])
        expected = [symbol.relation.constant] * len(rows)
        for factor, i in symbol.relation.terms:
            term = rows.values(variant.symbols[i].columns[0])
            expected = [total + factor * t for total, t in zip(expected, term, strict=True)]
        broken = [a != b for a, b in zip(expected, values, strict=True)]
        if any(broken):
            row_number = broken.index(True)
            text = (
                f"no longer {expression(variant, symbol)}, as always in {variant.name}: "
                f"{shown_value(values[row_number])} instead of {shown_value(expected[row_number])}"
            )
            where = f"{symbol.name} ({_names(variant, symbol.columns)})"
            yield _change(now, "relation", where, text, _seen_where(rows, broken))


def _sizes_of_new(before: TapeTraffic, now: TapeTraffic, variant: VariantFacts) -> Iterator[Change]:
    """Yields sizes in calls of a new structure that the same dimension had in no structure
    before."""
    collected = _Collected(now)
    for column in variant.all_rows.columns:
        bounds = before.pooled.get(Pools.key(variant.group, column))
        if bounds:
            _check_sizes(collected, variant, column, bounds, variant.all_rows)
    yield from collected


def _settled_symbols(
    before: TapeTraffic, variant: VariantFacts, rows: SizeTable
) -> Iterator[Change]:
    """Yields dimensions that varied, and are constant now."""
    all_spans = _all_of(variant.all_rows)
    for symbol in variant.symbols:
        values = {value for column in symbol.columns for value in rows.distinct(column)}
        if symbol.varied and len(values) == 1:
            span = shown_span(variant.all_rows.distinct(symbol.columns[0]))
            text = f"{span} in {variant.name} before, now always {shown_value(values.pop())}"
            where = f"{symbol.name} ({_names(variant, symbol.columns)})"
            yield _change(before, "dimension", where, text, all_spans)


def _spans(before: TapeTraffic, now: TapeTraffic) -> Iterator[Change]:
    wider = {
        place: span_before
        for place, span in now.spans.items()
        if (span_before := before.spans.get(place)) is not None
        and span_before.merge(span) != span_before
    }
    beyond = now.calls_beyond(wider)
    for place, span_before in wider.items():
        if place in beyond:
            span = now.spans[place]
            text = f"elements {span.min}..{span.max}; {span_before.min}..{span_before.max} before"
            if not now.tape.calls.has_single_calls:
                text += " (not all of these calls need have them)"
            yield _change(now, "range", place, text, beyond[place])


def _errors(before: TapeTraffic, now: TapeTraffic) -> Iterator[Change]:
    if now.observations.raised and not before.observations.raised:
        inputs = now.tape.calls.by_inputs()
        raised = [Seen(i.calls, i.first) for i in inputs if i.raised]
        if raised:
            seen = sum_of_seen(raised)
            what = f"{counted(seen.calls, 'call')} raised, and none did before"
            change = _change(now, "error", "the model", what, seen)
            if (
                not now.tape.calls.has_single_calls
            ):  # other calls with these inputs may not have raised
                change = change.model_copy(update={"first_call": None, "address": None})
            yield change


def shown_span(values: Iterable[int]) -> str:
    """``4..9``, or ``4``."""
    all_values = list(values)
    low, high = min(all_values), max(all_values)
    return shown_value(low) if low == high else f"{shown_value(low)}..{shown_value(high)}"
