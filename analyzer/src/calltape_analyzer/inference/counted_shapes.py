"""Sizes that the traffic counters have, and no call on the tape.

In come traffic counters and aligned calls. Out go ranges of dimensions, and notes for people. They
decide nothing: which dimensions are dynamic is what the calls on the tape show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from calltape_analyzer.inference.aligned_slots import AlignedSlot
from calltape_analyzer.inference.alignment import AlignedRow
from calltape_analyzer.observing.tallies import Span
from calltape_analyzer.observing.traffic_counters import CountedGroup, CountedKind, TrafficCounters
from calltape_analyzer.text import alike, counted, some_of

__all__ = ["CountedShapes"]

_MAX_SHOWN = 6


@dataclass
class CountedShapes:
    """The slots of an inference over all calls that were counted.

    Attributes:
        calls: how many counted calls have a structure that is on the tape.
        elsewhere: how many counted calls have another structure.
        unknown: of how many counted calls nothing but their number is known.
        spans: by slot (its place among all) and axis the smallest and largest size, if the calls
            on the tape have fewer sizes.
    """

    calls: int = 0
    elsewhere: int = 0
    unknown: int = 0
    spans: dict[tuple[int, int], Span] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        counters: TrafficCounters,
        rows: Mapping[CountedKind, AlignedRow],
        slots: Sequence[AlignedSlot],
    ) -> CountedShapes:
        """The counted shapes of a tape.

        Args:
            counters: of all calls, without the kept calls that are no evidence.
            rows: of the calls on the tape, by what counters know a call by.
            slots: what the calls on the tape have in each slot.
        """
        made = cls()
        for kind, group in counters.groups.items():
            if kind in rows:
                made.calls += group.calls
                made._add(group, rows[kind])
        made.unknown = counters.other_calls
        made.elsewhere = counters.calls - made.calls - made.unknown
        for (i, axis), span in list(made.spans.items()):
            sizes = slots[i].sizes(axis)
            if min(sizes) <= span.min and span.max <= max(sizes):
                del made.spans[i, axis]
            else:
                made.spans[i, axis] = span.merge(Span(min(sizes), max(sizes)))
        return made

    def _add(self, group: CountedGroup, row: AlignedRow) -> None:
        for i, found in enumerate(row):
            if found is None or found.argument.given is not None:
                continue
            for axis, values in enumerate(group.leaves[found.leaf]):
                span = Span(values.min, values.max)
                known = self.spans.get((i, axis))
                self.spans[i, axis] = span if known is None else known.merge(span)

    def notes(
        self, kept: int, names: Sequence[str], is_dynamic: Callable[[int, int], bool]
    ) -> Iterator[str]:
        """For people, if there were calls that are not on the tape.

        Args:
            kept: how many calls are on the tape.
            names: of the slots.
            is_dynamic: of a slot and an axis.
        """
        if kept < self.calls:
            wider = self._shown(names, is_dynamic, True)
            yield f"kept {kept:,} of {self.calls:,} calls; " + (
                f"sizes over all: {wider}" if wider else "the others have no further sizes"
            )
        fixed = self._shown(names, is_dynamic, False)
        if fixed:
            yield f"always the same in the kept calls, but not over all: {fixed}"
        if self.elsewhere:
            yield f"{counted(self.elsewhere, 'call')} of variants of which no call was kept"
        if self.unknown:
            yield f"{counted(self.unknown, 'more call')}, of which only the number is known"

    def _shown(
        self, names: Sequence[str], is_dynamic: Callable[[int, int], bool], which: bool
    ) -> str:
        wanted = [
            (f"{names[i]}[{axis}]", f"{span.min}..{span.max}")
            for (i, axis), span in self.spans.items()
            if is_dynamic(i, axis) == which
        ]
        shown = [f"{name} {span}" for name, span in alike(wanted)]
        return some_of(shown, _MAX_SHOWN)
