"""The traffic on one tape, arranged for a comparison with another's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from calltape_analyzer.explanation import shown_value
from calltape_analyzer.fixed_values import fixed_values
from calltape_analyzer.gathering import Gatherer
from calltape_analyzer.observations import Group, Key
from calltape_analyzer.rows import Rows
from calltape_analyzer.splitting import Split
from calltape_analyzer.tallies import CallRef, Seen, Span
from calltape_analyzer.variants import Pools, VariantFacts

if TYPE_CHECKING:
    from calltape_analyzer.call import Call
    from calltape_analyzer.tape import Tape

__all__ = ["Facet", "Traffic", "together"]


class Facet(NamedTuple):
    """A question about a place that each call answers: its dtype, its rank, ..."""

    kind: str
    place: str


class Traffic:
    """Everything of a tape that a comparison looks at."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.observations = tape.observations()
        self.variants: list[VariantFacts] = [variant.facts for variant in tape.variants()]

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
        """The smallest and largest element of each integer tensor, by place."""
        found: dict[str, Span] = {}
        for group in self.observations.groups.values():
            for i, span in group.ranges.items():
                place = str(group.layout.tensors[i])
                found[place] = found[place].merge(span) if place in found else span
        return found

    def rows_of(self, key: Key) -> Rows:
        """The distinct calls of a group of any tape; none where there are no such calls here."""
        found = Rows()
        for known, group in self.observations.groups.items():
            if known.meets(key):
                found = found.merge(group.rows)
        return found

    def has(self, key: Key) -> bool:
        """Whether there are calls of a group of any tape."""
        return any(known.meets(key) for known in self.observations.groups)

    def path_of(self, ref: CallRef) -> str | None:
        """The file of a call, where the tape is several."""
        return self.tape.calls.at(ref).path if len(self.tape.paths) > 1 else None

    def calls_where(self, is_it: Callable[[Call], bool]) -> Seen | None:
        """The calls of which something is true; reads all records."""
        found = [Seen(1, call.ref) for call in self.tape.calls if is_it(call)]
        return together(found) if found else None

    def calls_beyond(self, place: str, span: Span) -> Seen | None:
        """The calls in which an integer tensor has elements outside a span."""
        gatherer = Gatherer.of(self.tape)

        def is_beyond(call: Call) -> bool:
            inputs = call.record.inputs
            numbers = {
                tensor.number
                for tensor in gatherer.sorted(inputs).layout.tensors
                if str(tensor) == place
            }
            return any(
                given.leaf in numbers and not span.min <= given.min <= given.max <= span.max
                for given in inputs.ranges
            )

        return self.calls_where(is_beyond)


def _answers(group: Group) -> Iterator[tuple[str, str, str]]:
    """Kind of facet, place and answer."""
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
    """Calls that do not overlap, as one."""
    every = list(seen)
    return Seen(sum(one.calls for one in every), min(one.first for one in every))


def shown_span(values: Iterable[int]) -> str:
    """``4..9``, or ``4``."""
    every = list(values)
    low, high = min(every), max(every)
    return shown_value(low) if low == high else f"{shown_value(low)}..{shown_value(high)}"
