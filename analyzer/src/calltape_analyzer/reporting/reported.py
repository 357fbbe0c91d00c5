"""What people look at: the report page of a tape, and its pictures. ``Tape`` has both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from calltape_analyzer.errors import UsageError
from calltape_analyzer.text import listed, variant_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calltape_analyzer.reporting.page import ReportPage
    from calltape_analyzer.reporting.tape_parts import Outcomes, ReportedTape
    from calltape_analyzer.variant import Variant

__all__ = ["Reported"]

_MAX_NAMED = 12


class Reported:
    """A tape that people can look at."""

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
        from calltape_analyzer.reporting.report import contents_of

        require_libraries()
        return ReportPage.of(contents_of([self], scan=scan, outcomes=outcomes))

    def plot(
        self: ReportedTape, what: str, other: str | None = None, *, variant: str | None = None
    ) -> Figure:
        """One picture of the report page, as a figure of matplotlib: notebooks show it, and
        ``figure.savefig("sizes.png")`` writes it.

        Args:
            what: the name of a symbol, for how many calls had which size; ``"calls"`` or
                ``"latency"`` for these over time, which reads the record of each call.
            other: the name of another symbol, for how often sizes of both came together.
            variant: the name of the variant; by default the first that has these symbols.

        Raises:
            UsageError: there is no such symbol or variant, or matplotlib is not installed (the
                extra ``report``).
        """
        from calltape_analyzer.reporting.charts import size_chart
        from calltape_analyzer.reporting.pictures import pair_picture, times_picture
        from calltape_analyzer.reporting.size_histograms import histogram_of

        variants = self.variants()
        names = {symbol.name for one in variants for symbol in one.facts.symbols}
        if what in ("calls", "latency") and what not in names and other is None:
            return times_picture(self, what)
        found = _with_symbols(variants, [what] if other is None else [what, other], variant)
        if other is not None:
            return pair_picture(found.facts, what, other)
        symbol = next(one for one in found.facts.symbols if one.name == what)
        return size_chart(histogram_of(found.facts, symbol), name=what)


def _with_symbols(variants: list[Variant], wanted: list[str], name: str | None) -> Variant:
    """The first variant that has these symbols.

    Raises:
        UsageError: there is none.
    """
    known: dict[str, None] = {}
    for variant in variants:
        if name is not None and variant.name != name:
            continue
        own = {symbol.name for symbol in variant.facts.symbols}
        if own.issuperset(wanted):
            return variant
        known |= dict.fromkeys(symbol.name for symbol in variant.facts.symbols)
    if name is not None and name not in {variant.name for variant in variants}:
        names = variant_names([variant.name for variant in variants], _MAX_NAMED) or "none"
        raise UsageError(f"there is no variant {name!r:.100}", advice=f"there are: {names}")
    missing = next((one for one in wanted if one not in known), None)
    there = listed(list(known), _MAX_NAMED) or "none"
    if missing is None:
        reason = f"no variant has both {wanted[0]!r:.100} and {wanted[1]!r:.100}"
    else:
        reason = f"there is no symbol {missing!r:.100}"
    raise UsageError(reason, advice=f"the symbols are: {there}; or 'calls' or 'latency'")
