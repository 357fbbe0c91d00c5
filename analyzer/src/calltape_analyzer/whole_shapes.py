"""What the counters of the whole traffic say of an inference: sizes that no call on the tape has.

They are told, and decide nothing: which dimensions are dynamic is what the calls on the tape show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from calltape_analyzer.explanation import alike, counted
from calltape_analyzer.printable import some_of
from calltape_analyzer.tallies import Span
from calltape_analyzer.traffic_counters import CountedGroup, Counters, Kind

if TYPE_CHECKING:
    from calltape_analyzer.alignment import Row
    from calltape_analyzer.evidence import Evidence
    from calltape_analyzer.patterns import Pattern

__all__ = ["WholeShapes"]

_MAX_SHOWN = 6


@dataclass
class WholeShapes:
    """The tensors of an inference over all calls that were counted.

    Attributes:
        calls: how many calls there were of the structures that are on the tape.
        elsewhere: calls of structures of which none is on the tape.
        spans: per tensor (in flattening order) and axis the smallest and largest size, where that
            is more than the calls on the tape show.
    """

    calls: int = 0
    elsewhere: int = 0
    spans: dict[tuple[int, int], Span] = field(default_factory=dict)

    @classmethod
    def of(cls, counters: Counters, evidence: Evidence) -> WholeShapes:
        """Those of a tape.

        Args:
            counters: of all calls but those that are no evidence, as far as these are known.
            evidence: the calls on the tape.
        """
        made = cls()
        known: dict[Kind, Pattern] = {}
        for pattern in evidence.patterns:
            known.setdefault(Kind.of(evidence.calls[pattern.first].record.inputs), pattern)
        for kind, group in counters.groups.items():
            if kind in known:
                made.calls += group.calls
                made._add(group, evidence.alignment.row(known[kind]))
        made.elsewhere = counters.calls - made.calls
        for place, span in list(made.spans.items()):
            sizes = evidence.tracks[place[0]].sizes(place[1])
            if min(sizes) <= span.min and span.max <= max(sizes):
                del made.spans[place]
            else:
                made.spans[place] = span.merge(Span(min(sizes), max(sizes)))
        return made

    def _add(self, group: CountedGroup, row: Row) -> None:
        for i, cell in enumerate(row):
            if cell is None or cell[0].given is not None:
                continue
            for axis, values in enumerate(group.leaves[cell[1]]):
                span = Span(values.min, values.max)
                known = self.spans.get((i, axis))
                self.spans[i, axis] = span if known is None else known.merge(span)

    def notes(
        self, kept: int, names: Sequence[str], is_dynamic: Callable[[int, int], bool]
    ) -> Iterator[str]:
        """For people, where the tape has not all calls.

        Args:
            kept: how many calls are on the tape.
            names: of the tensors.
            is_dynamic: of a tensor and an axis.
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
            yield f"{counted(self.elsewhere, 'call')} of structures that no kept call has"

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
