"""The traffic on one tape, arranged for a comparison with another's.

In comes a tape. Out go its variants, its groups by key, the ranges of its integer tensors, and the
calls of which something is true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from calltape_analyzer.observing.fixed_values import fixed_values
from calltape_analyzer.observing.groups import Group, GroupKey
from calltape_analyzer.observing.layout import varying_ints
from calltape_analyzer.observing.size_table import SizeTable
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.observing.tallies import Seen, Span
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.text import shown_value
from calltape_analyzer.variant import find_variants
from calltape_analyzer.variants.derivation import Pools
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.splitting import Split
from calltape_schema.records import Range

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape


__all__ = [
    "Facet",
    "SimilarGroups",
    "TapeTraffic",
    "together",
]


_MAX_COMPARED = 64


class SimilarGroups:
    """Groups by their arguments and tensors.

    Args:
        groups: in order.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._having: dict[Hashable, list[int]] = {}
        if len(groups) > _MAX_COMPARED:
            for at, group in enumerate(groups):
                for feature in dict.fromkeys(_features(group)):
                    self._having.setdefault(feature, []).append(at)

    def to(self, group: Group) -> list[Group]:
        """The groups that are worth a comparison with another one, in order: all if they are few,
        else the groups that share its rarest features."""
        if len(self._groups) <= _MAX_COMPARED:
            return list(self._groups)
        shared = [self._having.get(feature, []) for feature in dict.fromkeys(_features(group))]
        shares: Counter[int] = Counter()
        for having in sorted(shared, key=len):
            if len(shares) >= _MAX_COMPARED:
                break
            shares.update(having[:_MAX_COMPARED])
        # A group without rare features is compared with the first one.
        chosen = sorted({at for at, _ in shares.most_common(_MAX_COMPARED)} | {0})
        return [self._groups[at] for at in chosen]


def _features(group: Group) -> Iterator[Hashable]:
    yield from group.layout.keys
    for place, facts in zip(group.layout.tensors, group.facts, strict=True):
        yield str(place), facts


class Facet(NamedTuple):
    """A question about a path that each call answers, such as its dtype or its rank.

    Attributes:
        kind: what is asked: ``argument``, ``kind``, ``dtype``, ``rank``, ``layout``, ``constant``.
        place: the path.
    """

    kind: str
    place: str


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
        self.observations = tape._observed(sorter)
        self.variants: list[VariantFacts] = [variant.facts for variant in tape.variants()]
        if not varying <= _varying_on(tape):
            self.variants = [found.facts for found in find_variants(tape, sorter)]

    @classmethod
    def of_both(cls, one: Tape, other: Tape) -> tuple[TapeTraffic, TapeTraffic]:
        """The traffic on two tapes, with equal keys for equal calls."""
        varying = _varying_on(one) | _varying_on(other)
        return cls(one, varying), cls(other, varying)

    @cached_property
    def pools(self) -> Pools:
        """The same dimension over all variants."""
        return Pools([Split(variant.group, variant.every) for variant in self.variants])

    @cached_property
    def facets(self) -> dict[Facet, dict[str, Seen]]:
        """The answers to each question, with their calls."""
        found: dict[Facet, dict[str, Seen]] = {}
        for group in self.observations.parts():
            seen = Seen(group.calls, group.first)
            for kind, place, answer in _answers(group):
                answers = found.setdefault(Facet(kind, place), {})
                known = answers.get(answer)
                answers[answer] = seen if known is None else together((known, seen))
        return found

    @cached_property
    def spans(self) -> dict[str, Span]:
        """The smallest and largest element of each integer tensor, by path."""
        found: dict[str, Span] = {}
        for group in self.observations.groups.values():
            for i, span in group.ranges.items():
                place = str(group.layout.tensors[i])
                found[place] = found[place].merge(span) if place in found else span
        return found

    @cached_property
    def _structures(self) -> dict[Hashable, list[Group]]:
        """The groups by the parts of their key that are not constants. Groups can have equal calls
        only within one of these lists, which are short."""
        found: dict[Hashable, list[Group]] = {}
        for key, group in self.observations.groups.items():
            found.setdefault(key[:2], []).append(group)
        return found

    def _meeting(self, key: GroupKey) -> Iterator[Group]:
        return (group for group in self._structures.get(key[:2], ()) if group.key.meets(key))

    def rows_of(self, key: GroupKey) -> SizeTable:
        """The distinct calls that a group of any tape has here; an empty table for none."""
        found = SizeTable()
        for group in self._meeting(key):
            found = found.merge(group.rows)
        return found

    def has(self, key: GroupKey) -> bool:
        """Whether there are calls here that a group of any tape takes."""
        return any(True for _ in self._meeting(key))

    @cached_property
    def names(self) -> dict[GroupKey, list[str]]:
        """The names of the variants of each group."""
        found: dict[GroupKey, list[str]] = {}
        for variant in self.variants:
            found.setdefault(variant.group.key, []).append(variant.name)
        return found

    @cached_property
    def similar(self) -> SimilarGroups:
        """The groups, to find the ones that are similar to another."""
        return SimilarGroups(self.observations.in_order())

    @cached_property
    def pooled(self) -> dict[Hashable, tuple[int, int]]:
        """The smallest and largest value of each dimension over all variants."""
        return {key: (min(found), max(found)) for key, found in self.pools.values.items() if found}

    def path_of(self, ref: CallRef) -> str | None:
        """The file of a call, if the tape is several files."""
        return self.tape.calls.path(ref) if len(self.tape.paths) > 1 else None

    def raised(self) -> Seen | None:
        """The calls that raised; None for none."""
        inputs = self.tape.calls.by_inputs()
        found = [Seen(seen.calls, seen.first) for seen in inputs if seen.raised]
        return together(found) if found else None

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
                for given in inputs.ranges
                for place in places.get(given.leaf, ())
                if place in spans and not _is_within(given, spans[place])
            }
            for place in beyond:
                seen = Seen(calls, first)
                found[place] = together((found[place], seen)) if place in found else seen
        return found


def _varying_on(tape: Tape) -> frozenset[str]:
    layouts = (variant.facts.group.layout for variant in tape.variants())
    return varying_ints(layouts, tape.signature)


def _is_within(given: Range, span: Span) -> bool:
    return span.min <= given.min <= given.max <= span.max


def _answers(group: Group) -> Iterator[tuple[str, str, str]]:
    """What the calls of a group answer, as (kind of the facet, path, answer)."""
    for name in group.layout.arguments:
        yield "argument", name, "passed"
    for place, facts in zip(group.layout.tensors, group.facts, strict=True):
        yield "kind", str(place), place.kind
        yield "dtype", str(place), facts.dtype
        yield "rank", str(place), str(facts.rank)
        yield "layout", str(place), facts.layout
    for place in group.ints:
        yield "kind", str(place), "int"
    for value in fixed_values(group):
        yield "kind", value.place, value.kind
        yield "constant", value.place, value.text


def together(seen: Iterable[Seen]) -> Seen:
    """The sum of calls, none of which is counted twice."""
    every = list(seen)
    return Seen(sum(one.calls for one in every), min(one.first for one in every))


def shown_span(values: Iterable[int]) -> str:
    """``4..9``, or ``4``."""
    every = list(values)
    low, high = min(every), max(every)
    return shown_value(low) if low == high else f"{shown_value(low)}..{shown_value(high)}"
