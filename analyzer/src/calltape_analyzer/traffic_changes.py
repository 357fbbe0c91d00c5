"""What one tape's traffic shows that another's does not, point by point.

Sizes are compared with the variants of the earlier tape: within one, a dimension that was decided
to be dynamic may have any size between those seen (in any variant, rule 5 of docs/decisions/0012),
a constant one has its size, and symbols and relations hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from calltape_analyzer.difference import Change
from calltape_analyzer.explanation import counted, listed, shown_value
from calltape_analyzer.observations import Group
from calltape_analyzer.pools import Pools
from calltape_analyzer.printable import some_of
from calltape_analyzer.rows import Rows
from calltape_analyzer.splitting import column_name
from calltape_analyzer.symbols import Column, Relation
from calltape_analyzer.tallies import Seen
from calltape_analyzer.traffic import Facet, Traffic, shown_span, together
from calltape_analyzer.variant_findings import expression
from calltape_analyzer.variants import VariantFacts

__all__ = ["appeared", "disappeared"]

_MAX_SHOWN = 6


def appeared(before: Traffic, now: Traffic) -> Iterator[Change]:
    """What is new, the most far-reaching first."""
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


def disappeared(before: Traffic, now: Traffic) -> Iterator[Change]:
    """What is no longer seen."""
    yield from _answers(now, before, "no longer passed, or only its default", "now only")
    yield from _structures(now, before, "no longer seen")
    for variant in before.variants:
        rows = _rows_like(variant, now)
        if not len(rows) and now.has(variant.group.key):
            conditions = ", ".join(c.text(variant.group.layout) for c in variant.conditions)
            every = _all_of(variant.every)
            yield _change(before, "structure", variant.name, f"no longer seen: {conditions}", every)
        if rows.calls > 1:
            yield from _settled_symbols(before, variant, rows)


def _change(traffic: Traffic, kind: str, where: str, text: str, seen: Seen) -> Change:
    path = traffic.path_of(seen.first)
    return Change(kind, where, text, seen.first.number, seen.calls, path)


def _targets(before: Traffic, now: Traffic) -> Iterator[Change]:
    one, other = before.tape.target, now.tape.target
    if one is None or other is None:
        return
    names = f"{one.type}.{one.method}", f"{other.type}.{other.method}"
    if names[0] != names[1]:
        yield Change("target", names[1], f"another model; before {names[0]}")
    for was, got in zip_longest(one.signature or (), other.signature or ()):
        if was != got:
            text = f"its signature differs from parameter {(got or was).name} on"
            yield Change("target", names[1], text)
            return


def _answers(known: Traffic, shown: Traffic, unseen: str, only: str) -> Iterator[Change]:
    """Arguments, dtypes, constants, ... of ``shown`` that ``known`` does not have."""
    for facet, answers in shown.facets.items():
        others = known.facets.get(facet)
        if others is None:
            if facet.kind == "argument":
                value = shown.facets.get(Facet("constant", facet.place), {})
                text = f"{unseen}: {', '.join(list(value)[:_MAX_SHOWN])}" if value else unseen
                yield _change(shown, "argument", facet.place, text, together(answers.values()))
            continue
        for answer, seen in answers.items():
            if answer not in others:
                text = f"{answer}; {only} {', '.join(list(others)[:_MAX_SHOWN])}"
                yield _change(shown, facet.kind, facet.place, text, seen)


def _structures(known: Traffic, shown: Traffic, words: str) -> Iterator[Change]:
    """Groups of calls that ``known`` does not have."""
    for key, group in shown.observations.groups.items():
        if known.has(key):
            continue
        names = shown.names.get(key, [])
        text = words
        closest = min(
            (_differences(other, group) for other in known.nearby.like(group)), key=len, default=[]
        )
        if closest:
            text += f": {some_of(closest, 3, '; ')}"
        yield _change(shown, "structure", ", ".join(names), text, Seen(group.calls, group.first))


def _differences(known: Group, group: Group) -> list[str]:
    """In what two groups differ, in words."""
    ours, theirs = dict(known.layout.keys), dict(group.layout.keys)
    found = [f"without {name}" for name in ours if name not in theirs]
    found += [f"with {name}" for name in theirs if name not in ours]
    counts = [Counter(place.argument for place in g.layout.tensors) for g in (known, group)]
    for name in ours:
        if name in theirs and ours[name] != theirs[name]:
            was, now = (count[name] for count in counts)
            tensors = f"{counted(now, 'tensor')} instead of {was}"
            found.append(f"{name} has {tensors if was != now else 'another structure'}")
    facts = {str(p): fact for p, fact in zip(known.layout.tensors, known.facts, strict=True)}
    for place, fact in zip(group.layout.tensors, group.facts, strict=True):
        other = facts.get(str(place), fact)
        if other != fact:
            found.append(
                f"{place} is {fact.dtype} of rank {fact.rank}, not {other.dtype} of {other.rank}"
            )
    if group.key.constants and known.layout.keys == group.layout.keys and not found:
        found.append("another value of a constant")
    return found


def _rows_like(variant: VariantFacts, now: Traffic) -> Rows:
    """The calls now that belong to a variant, by structure and conditions."""
    rows = now.rows_of(variant.group.key)
    for condition in variant.conditions:
        rows = rows.where(condition.among(rows)) if len(rows) else rows
    return rows


def _all_of(rows: Rows) -> Seen:
    return Seen(rows.calls, rows.first)


def _seen_where(rows: Rows, wanted: Sequence[bool]) -> Seen:
    return _all_of(rows.where(wanted))


class _Collected:
    """Changes of one variant's rows, of which those that differ in their place only become one."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.places: dict[tuple[str, str, Seen], list[str]] = {}
        self._outside: dict[tuple[int, tuple[int, int]], tuple[str, Seen] | None] = {}

    def outside(
        self, rows: Rows, column: Column, known: tuple[int, int]
    ) -> tuple[str, Seen] | None:
        """The sizes of a column that are not between two others, and their calls; once for all
        columns that never differed."""
        key = (rows.line(column), known)
        if key not in self._outside:
            low, high = known
            every = rows.sizes(column).items()
            found = {size: seen for size, seen in every if not low <= size <= high}
            sizes = sorted(found)
            shown = ", ".join(map(shown_value, sizes[:_MAX_SHOWN]))
            more = ", …" if len(sizes) > _MAX_SHOWN else ""
            self._outside[key] = (shown + more, together(found.values())) if found else None
        return self._outside[key]

    def add(self, kind: str, place: str, text: str, seen: Seen) -> None:
        self.places.setdefault((kind, text, seen), []).append(place)

    def __iter__(self) -> Iterator[Change]:
        for (kind, text, seen), places in self.places.items():
            yield _change(self.traffic, kind, listed(places, 4), text, seen)


def _sizes(before: Traffic, now: Traffic, variant: VariantFacts, rows: Rows) -> Iterator[Change]:
    """Sizes and ints that the variant's dimensions do not allow."""
    found = _Collected(now)
    counters = variant.counters
    for column, decided in variant.dimensions.items():
        if decided.reason == "counter":
            _check_counter(found, variant, column, counters[column.place], rows)
            continue
        values = variant.every.distinct(column)
        known = min(values), max(values)
        if decided.dynamic:
            pooled = before.pooled.get(Pools.key(variant.group, column), known)
            known = min(known[0], pooled[0]), max(known[1], pooled[1])
        _check_sizes(found, variant, column, known, rows)
    yield from found


def _check_sizes(
    found: _Collected,
    variant: VariantFacts,
    column: Column,
    known: tuple[int, int],
    rows: Rows,
) -> None:
    low, high = known
    outside = found.outside(rows, column, known)
    if outside is None:
        return
    shown, seen = outside
    kind = "int" if column.axis is None else "size"
    if low == high:
        kind = "int" if column.axis is None else "dimension"
        text = f"now {shown}; always {shown_value(low)} before"
    else:
        text = f"now {shown}; {shown_span(known)} before"
    name = column_name(variant.group.layout, column)
    found.add(kind, name, f"{text}, in {variant.name}", seen)


def _check_counter(
    found: _Collected, variant: VariantFacts, column: Column, counted_by: Column, rows: Rows
) -> None:
    layout = variant.group.layout
    pairs = zip(rows.values(column), rows.values(counted_by), strict=True)
    broken = [count != size for count, size in pairs]
    if any(broken):
        text = f"no longer counts {column_name(layout, counted_by)}, as it always did"
        name = column_name(layout, column)
        found.add("relation", name, f"{text} in {variant.name}", _seen_where(rows, broken))


def _broken_symbols(now: Traffic, variant: VariantFacts, rows: Rows) -> Iterator[Change]:
    """Dimensions that were always equal, and are not now."""
    for symbol in variant.symbols:
        lines: dict[int, list[Column]] = {}
        for column in symbol.columns:
            lines.setdefault(rows.line(column), []).append(column)
        if len(lines) == 1:
            continue
        every = [rows.values(columns[0]) for columns in lines.values()]
        broken = [len(set(values)) > 1 for values in zip(*every, strict=True)]
        example = broken.index(True)
        parts = [
            f"{_names(variant, columns)} is {shown_value(values[example])}"
            for columns, values in zip(lines.values(), every, strict=True)
        ]
        text = f"no longer equal, as they always were in {variant.name}: {', '.join(parts[:4])}"
        yield _change(now, "symbol", symbol.name, text, _seen_where(rows, broken))


def _names(variant: VariantFacts, columns: Sequence[Column]) -> str:
    return listed([column_name(variant.group.layout, column) for column in columns])


def _broken_relations(now: Traffic, variant: VariantFacts, rows: Rows) -> Iterator[Change]:
    """Sums and multiples that always held, and do not now."""
    for symbol in variant.symbols:
        if symbol.relation is None:
            continue
        values = rows.values(symbol.columns[0])
        expected = _expected(symbol.relation, variant, rows)
        broken = [a != b for a, b in zip(expected, values, strict=True)]
        if any(broken):
            at = broken.index(True)
            text = (
                f"no longer {expression(variant, symbol)}, as always in {variant.name}: "
                f"{shown_value(values[at])} instead of {shown_value(expected[at])}"
            )
            where = f"{symbol.name} ({_names(variant, symbol.columns)})"
            yield _change(now, "relation", where, text, _seen_where(rows, broken))


def _expected(relation: Relation, variant: VariantFacts, rows: Rows) -> list[int]:
    """What a relation gives in each row."""
    made = [relation.constant] * len(rows)
    for factor, i in relation.terms:
        values = rows.values(variant.symbols[i].columns[0])
        made = [known + factor * value for known, value in zip(made, values, strict=True)]
    return made


def _sizes_of_new(before: Traffic, now: Traffic, variant: VariantFacts) -> Iterator[Change]:
    """Sizes in calls of a new structure that the same dimension had in no structure before."""
    found = _Collected(now)
    for column in variant.every.columns:
        known = before.pooled.get(Pools.key(variant.group, column))
        if known:
            _check_sizes(found, variant, column, known, variant.every)
    yield from found


def _settled_symbols(before: Traffic, variant: VariantFacts, rows: Rows) -> Iterator[Change]:
    """Dimensions that varied, and are constant now."""
    every = _all_of(variant.every)
    for symbol in variant.symbols:
        values = {value for column in symbol.columns for value in rows.distinct(column)}
        if symbol.varied and len(values) == 1:
            span = shown_span(variant.every.distinct(symbol.columns[0]))
            text = f"{span} in {variant.name} before, now always {shown_value(values.pop())}"
            where = f"{symbol.name} ({_names(variant, symbol.columns)})"
            yield _change(before, "dimension", where, text, every)


def _spans(before: Traffic, now: Traffic) -> Iterator[Change]:
    wider = {
        place: known
        for place, span in now.spans.items()
        if (known := before.spans.get(place)) is not None and known.merge(span) != known
    }
    beyond = now.calls_beyond(wider)
    for place, known in wider.items():
        if place in beyond:
            span = now.spans[place]
            text = f"elements {span.min}..{span.max}; {known.min}..{known.max} before"
            yield _change(now, "range", place, text, beyond[place])


def _errors(before: Traffic, now: Traffic) -> Iterator[Change]:
    if now.observations.raised and not before.observations.raised:
        seen = now.calls_where(lambda call: call.record.error is not None)
        if seen is not None:
            what = f"{counted(seen.calls, 'call')} raised, and none did before"
            yield _change(now, "error", "the model", what, seen)
