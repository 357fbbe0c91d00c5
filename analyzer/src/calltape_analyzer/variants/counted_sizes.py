"""The sizes of one column over all counted calls: sizes that no call on the tape may have."""

from __future__ import annotations

from dataclasses import dataclass

from calltape_analyzer.observing.tallies import Span
from calltape_analyzer.observing.traffic_counters import Values
from calltape_analyzer.plain_data import PlainData, Texts
from calltape_analyzer.text import MAX_EXAMPLES, shown_range, variant_names

__all__ = ["CountedRange", "CountedSizes"]


class CountedRange(PlainData):
    """What people are told of counted sizes that go beyond the sizes on the tape.

    Attributes:
        min, max: the smallest and largest value over all calls that were counted.
        calls: how many calls were counted.
        kept_calls: how many calls are on the tape, those of ``shared_with`` included. It may be
            more than were counted, if a file has no counters.
        kept_min, kept_max: the smallest and largest value in the calls on the tape.
        shared_with: other variants whose calls are among the counted ones, because counters cannot
            tell them apart.
    """

    min: int
    max: int
    calls: int
    kept_calls: int
    kept_min: int
    kept_max: int
    shared_with: Texts = ()

    def __str__(self) -> str:
        others = variant_names(self.shared_with, MAX_EXAMPLES)
        shared = f" (those of {others} among them)" if others else ""
        some = f"{self.kept_calls:,} of " if self.kept_calls < self.calls else ""
        kept = (
            f"kept {some}{self.calls:,} calls{shared}: {shown_range(self.kept_min, self.kept_max)}"
        )
        return f"{kept}; over all: {shown_range(self.min, self.max)}"


@dataclass(frozen=True)
class CountedSizes:
    """A dimension, or an int, over all counted calls.

    Attributes:
        values: its values in all calls that were counted.
        calls: how many calls were counted.
        shared_with: the names of other variants whose calls are among them.
        kept: its smallest and largest value in the calls on the tape, of all these variants.
        kept_calls: how many calls are on the tape, of all these variants.
    """

    values: Values
    calls: int
    shared_with: tuple[str, ...]
    kept: Span
    kept_calls: int

    @property
    def is_wider(self) -> bool:
        """Whether some counted values are outside the range of the calls on the tape."""
        return self.values.min < self.kept.min or self.values.max > self.kept.max

    def wider_range(self) -> CountedRange | None:
        """The range over all calls, if it is wider than the range of the calls on the tape."""
        if not self.is_wider:
            return None
        # A file without an end has calls, and no counters.
        low, high = min(self.values.min, self.kept.min), max(self.values.max, self.kept.max)
        return CountedRange(
            min=low,
            max=high,
            calls=self.calls,
            kept_calls=self.kept_calls,
            kept_min=self.kept.min,
            kept_max=self.kept.max,
            shared_with=self.shared_with,
        )
