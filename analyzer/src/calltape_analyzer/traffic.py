"""The traffic of a tape, as it is compared with that of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from calltape_analyzer.observing.distinctions import fixed_values
from calltape_analyzer.observing.groups import Group, GroupKey
from calltape_analyzer.observing.layout import varying_ints
from calltape_analyzer.observing.size_table import Seen, SizeTable, Span
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.tape import Tape
from calltape_analyzer.variant import find_variants
from calltape_analyzer.variants.derivation import Pools
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["TapeTraffic", "sum_of_seen"]

MAX_COMPARED = 64


class SimilarGroups:
    """Groups by their arguments and tensors.

    Args:
        groups: in order.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._having: dict[Hashable, list[int]] = {}
        if len(groups) > MAX_COMPARED:
            for i, group in enumerate(groups):
                for feature in dict.fromkeys(_features(group)):
                    self._having.setdefault(feature, []).append(i)

    def to(self, group: Group) -> list[Group]:
        """The groups that are worth a comparison with another one, in order: all if they are few,
        else the groups that share its rarest features."""
        if len(self._groups) <= MAX_COMPARED:
            return list(self._groups)
        shared = [self._having.get(feature, []) for feature in dict.fromkeys(_features(group))]
        shares: Counter[int] = Counter()
        for having in sorted(shared, key=len):
            if len(shares) >= MAX_COMPARED:
                break
            shares.update(having[:MAX_COMPARED])
        # A group without rare features is compared with the first one.
        chosen = sorted({i for i, _ in shares.most_common(MAX_COMPARED)} | {0})
        return [self._groups[i] for i in chosen]


def _features(group: Group) -> Iterator[Hashable]:
    yield from group.layout.keys
    for place, facts in zip(group.layout.tensors, group.facts, strict=True):
        yield str(place), facts


class TapeTraffic:
    """Everything of a tape that a comparison looks at.

    Args:
        tape: any tape.
        varying: the ints with a default that vary on one of the tapes that are compared. They are
            arguments of each call here too.
    """

    def __init__(self, tape: Tape, varying: frozenset[str]) -> None:
        self.tape = tape
        sorter = CallSorter.of(tape).with_varying(varying)
        self.observations = tape.observations(sorter)
        self.variants: list[VariantFacts] = [variant.facts for variant in tape.variants()]
        if not varying <= _varying_on(tape):
            self.variants = [variant.facts for variant in find_variants(tape, sorter)]

    @classmethod
    def of_both(cls, before: Tape, now: Tape) -> tuple[TapeTraffic, TapeTraffic]:
        """The traffic on two tapes, with equal keys for equal calls."""
        varying = _varying_on(before) | _varying_on(now)
        return cls(before, varying), cls(now, varying)

    @cached_property
    def facets(self) -> dict[tuple[str, str], dict[str, Seen]]:
        """What each call has at a path, such as a dtype or a rank, with the calls that have it; by
        what it is (``argument``, ``kind``, ``dtype``, ``rank``, ``layout``, ``constant``) and the
        path."""
        facets: dict[tuple[str, str], dict[str, Seen]] = {}
        for group in self.observations.parts():
            seen = Seen(group.calls, group.first)
            for kind, place, answer in _answers_of(group):
                answers = facets.setdefault((kind, place), {})
                seen_before = answers.get(answer)
                answers[answer] = seen if seen_before is None else sum_of_seen((seen_before, seen))
        return facets

    @cached_property
    def spans(self) -> dict[str, Span]:
        """The smallest and largest element of each integer tensor, by path."""
        spans: dict[str, Span] = {}
        for group in self.observations.groups.values():
            for i, span in group.ranges.items():
                place = str(group.layout.tensors[i])
                spans[place] = span.merge(spans.get(place))
        return spans

    @cached_property
    def _structures(self) -> dict[Hashable, list[Group]]:
        """The groups by the parts of their key that are not constants. Groups can have equal calls
        only within one of these lists, which are short."""
        structures: dict[Hashable, list[Group]] = {}
        for key, group in self.observations.groups.items():
            structures.setdefault(key[:2], []).append(group)
        return structures

    def _meeting(self, key: GroupKey) -> Iterator[Group]:
        return (group for group in self._structures.get(key[:2], ()) if group.key.overlaps(key))

    def rows_of(self, key: GroupKey) -> SizeTable:
        """The distinct calls that a group of any tape has here; an empty table for none."""
        rows = SizeTable()
        for group in self._meeting(key):
            rows = rows.merge(group.rows)
        return rows

    def has(self, key: GroupKey) -> bool:
        """Whether there are calls here that a group of any tape takes."""
        return any(True for _ in self._meeting(key))

    @cached_property
    def names(self) -> dict[GroupKey, list[str]]:
        """The names of the variants of each group."""
        names: dict[GroupKey, list[str]] = {}
        for variant in self.variants:
            names.setdefault(variant.group.key, []).append(variant.name)
        return names

    @cached_property
    def similar(self) -> SimilarGroups:
        """The groups, to find the ones that are similar to another."""
        return SimilarGroups(self.observations.in_order())

    @cached_property
    def pooled(self) -> dict[Hashable, tuple[int, int]]:
        """The smallest and largest value of each dimension over all variants."""
        pools = Pools([VariantFacts(variant.group, variant.all_rows) for variant in self.variants])
        return {key: (min(sizes), max(sizes)) for key, sizes in pools.values.items() if sizes}

    def calls_beyond(self, spans: Mapping[str, Span]) -> dict[str, Seen]:
        """The calls in which an integer tensor has elements outside its span, by path. Reads all
        records once. Of a survey, all calls with equal inputs count if one of them has."""
        sorter = CallSorter.of(self.tape)
        found: dict[str, Seen] = {}
        for inputs, calls, first in self.tape.calls.inputs_seen() if spans else ():
            places: dict[int, list[str]] = {}
            for tensor in sorter.sorted(inputs).layout.tensors:
                places.setdefault(tensor.number, []).append(str(tensor))
            beyond = {
                place
                for range_ in inputs.ranges
                for place in places.get(range_.leaf, ())
                if place in spans
                and not spans[place].min <= range_.min <= range_.max <= spans[place].max
            }
            for place in beyond:
                seen = Seen(calls, first)
                found[place] = sum_of_seen((found[place], seen)) if place in found else seen
        return found


def _varying_on(tape: Tape) -> frozenset[str]:
    layouts = (variant.facts.group.layout for variant in tape.variants())
    return varying_ints(layouts, tape.signature)


def _answers_of(group: Group) -> Iterator[tuple[str, str, str]]:
    """What the calls of a group have: what it is, the path, and which one."""
    for name in group.layout.arguments:
        yield "argument", name, "passed"
    for place, facts in zip(group.layout.tensors, group.facts, strict=True):
        yield "kind", str(place), place.kind
        yield "dtype", str(place), facts.dtype
        yield "rank", str(place), str(facts.rank)
        yield "layout", str(place), facts.layout
    for place in group.layout.ints:
        yield "kind", str(place), "int"
    for value in fixed_values(group):
        yield "kind", value.place, value.kind
        yield "constant", value.place, value.text


def sum_of_seen(seen: Iterable[Seen]) -> Seen:
    """The sum of calls that have none in common."""
    counts = list(seen)
    return Seen(sum(count.calls for count in counts), min(count.first for count in counts))
