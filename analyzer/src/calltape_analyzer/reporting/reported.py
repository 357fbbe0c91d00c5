"""What people look at: the report page of a tape, and its pictures. ``Tape`` has both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import bounded
from calltape_analyzer.text import listed, variant_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calltape_analyzer.reporting.page import ReportPage
    from calltape_analyzer.reporting.tape_parts import Outcomes, ReportedTape

__all__ = ["Reported"]

_MAX_NAMED = 12


class Reported:
    """A tape that people can look at."""

    @bounded()
    def report(
        self: ReportedTape,
        *,
        scan: bool | None = None,
        outcomes: Mapping[str, Outcomes] | None = None,
    ) -> ReportPage:
        """One HTML file that shows what was recorded: coverage, calls and latency over time,
        variants with their arguments, sizes and evidence, errors.
        It needs no network. ``tape.report().write("report.html")`` writes it.

        Args:
            scan: whether the record of each call is read, for latency and errors. By
                default only if there are few calls; then what the ends of the files say is enough.
            outcomes: what came of checks, by any name: ``{"replay": replay(tape, programs)}``. The
                page shows them call by call.

        Raises:
            TapeError: as :meth:`Tape.variants`.
            UsageError: jinja2 or matplotlib is not installed (the extra ``report``).
        """
        from calltape_analyzer.reporting.page import ReportPage, require_libraries
        from calltape_analyzer.reporting.tape_parts import contents_of

        require_libraries()
        return ReportPage.of(contents_of([self], scan=scan, outcomes=outcomes))

    @bounded()
    def plot(self: ReportedTape, what: str, *, variant: str | None = None) -> Figure:
        """One picture of the report page, as a figure of matplotlib: notebooks show it, and
        ``figure.savefig("sizes.png")`` writes it.

        Args:
            what: the name of a symbol, for how many calls had which size; ``"calls"`` or
                ``"latency"`` for these over time, which reads the record of each call.
            variant: the name of the variant; by default the first that has this symbol.

        Raises:
            UsageError: there is no such symbol or variant, or matplotlib is not installed (the
                extra ``report``).
        """
        from calltape_analyzer.reporting.charts import size_chart
        from calltape_analyzer.reporting.variant_parts import histogram_of

        every = self.variants()
        names = {one.name: one for one in every}
        if variant is not None and variant not in names:
            shown = variant_names(list(names), _MAX_NAMED) or "none"
            raise UsageError(f"there is no variant {variant!r:.100}", advice=f"there are: {shown}")
        meant = every if variant is None else [names[variant]]
        symbols = [(one.facts, symbol) for one in meant for symbol in one.facts.symbols]
        for facts, symbol in symbols:
            if symbol.name == what:
                return size_chart(histogram_of(facts, symbol), name=what)
        if what in ("calls", "latency"):
            return _times_picture(self, what)
        there = listed(list(dict.fromkeys(symbol.name for _, symbol in symbols)), _MAX_NAMED)
        raise UsageError(
            f"there is no symbol {what!r:.100}",
            advice=f"the symbols are: {there or 'none'}; or 'calls' or 'latency'",
        )


def _times_picture(tape: ReportedTape, what: str) -> Figure:
    """Calls or latency over time.

    Raises:
        UsageError: there is nothing to draw.
    """
    from calltape_analyzer.reporting.charts import calls_chart, latency_chart
    from calltape_analyzer.reporting.recorded_times import CallTimes, ends_timeline

    found = CallTimes(tape).timeline() if tape.calls.are_single else ends_timeline(tape)
    if found is None:
        if not tape.calls:
            raise UsageError("there is no call to draw", advice="open a tape that has calls")
        raise UsageError("no call has a time", advice="ask for a symbol")
    if what == "calls":
        return calls_chart(found)
    if not found.median:
        raise UsageError("no latency is known", advice="open the tapes themselves for this")
    return latency_chart(found)
