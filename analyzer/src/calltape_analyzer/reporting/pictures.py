"""Single pictures of a tape, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.call_source import CallSource
from calltape_analyzer.reporting.charts import calls_chart, latency_chart, pair_chart
from calltape_analyzer.reporting.recorded_times import CallTimes, ends_timeline
from calltape_analyzer.reporting.size_histograms import pair_of
from calltape_analyzer.variants.facts import VariantFacts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["pair_picture", "times_picture"]


def times_picture(tape: CallSource, what: str) -> Figure:
    """Calls or latency over time.

    Raises:
        UsageError: there is nothing to draw.
    """
    is_read = tape.calls.are_single
    found = CallTimes(tape).timeline() if is_read else ends_timeline(tape)
    if found is None:
        if not tape.calls:
            raise UsageError("there is no call to draw", advice="open a tape that has calls")
        raise UsageError("no call has a time", advice="ask for a symbol")
    if what == "calls":
        return calls_chart(found)
    if not found.median:
        raise UsageError("no latency is known", advice="open the tapes themselves for this")
    return latency_chart(found)


def pair_picture(facts: VariantFacts, one: str, other: str) -> Figure:
    """How often sizes of two symbols came together.

    Raises:
        UsageError: the sizes are too large to draw.
    """
    symbols = {symbol.name: symbol for symbol in facts.symbols}
    found = pair_of(facts, symbols[one], symbols[other])
    if found is None:
        raise UsageError(f"the sizes of {one} and {other} are too large to draw")
    return pair_chart(found, names=(one, other))
