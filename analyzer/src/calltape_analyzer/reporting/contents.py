"""What a report page says, as plain data. Every text is printable, and nothing is long.

Whatever a tape holds, its report page is bounded: what is left out is counted, and said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise

from calltape_analyzer.text import (
    MAX_EXAMPLES,
    counted,
    printable,
    shown_range,
    shown_value,
    some_of,
)

__all__ = [
    "Cell",
    "Contents",
    "Histogram",
    "SymbolPart",
    "Table",
    "TapePart",
    "Timeline",
    "TreeNode",
    "VariantPart",
    "Verdict",
    "cut",
    "table",
]

_MAX_TEXT = 200

Cell = str | int | float | None
"""A number sorts as a number. None stands for what is not known, or for what is not there."""


def cut(text: str, most: int = _MAX_TEXT) -> str:
    """The text, printable, on one line and not longer than ``most`` characters."""
    shown = printable(" ".join(text[: 4 * most].split()))
    return shown if len(shown) <= most else f"{shown[:most]}…"


@dataclass(frozen=True)
class Table:
    """Rows of cells below heads.

    Attributes:
        caption: what the rows are.
        head: the names of the columns.
        rows: the cells.
        more: how many rows were left out.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Per column whether it has numbers."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.head)
        return tuple(any(isinstance(cell, (int, float)) for cell in column) for column in columns)


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[Cell]], most: int = 50
) -> Table:
    """The table of the first ``most`` rows, whose texts are cut, without columns that are empty in
    all of them."""
    every = list(rows)
    shown = [
        tuple(cut(cell) if isinstance(cell, str) else cell for cell in row) for row in every[:most]
    ]
    full = [not shown or any(row[at] not in (None, "") for row in shown) for at in range(len(head))]
    cells = tuple(tuple(compress(row, full)) for row in shown)
    return Table(caption, tuple(compress(head, full)), cells, max(0, len(every) - most))


@dataclass
class TreeNode:
    """A part of an argument.

    Attributes:
        name: of the argument, the key or the position.
        said: dtype and shape, or the value; empty for a container.
        children: what is in it, by name.
    """

    name: str
    said: str = ""
    children: dict[str, TreeNode] = field(default_factory=dict)


@dataclass(frozen=True)
class Histogram:
    """How many calls had which sizes.

    Attributes:
        bins: smallest size, largest size and calls of each bar. Of few sizes each that came has
            one; of many, ranges without gaps, some of which may have no call.
        distinct: how many sizes there were.
        counts: which calls these are, in words.
        common: the most common sizes.
        is_drawn: whether the sizes are small enough for a picture.
    """

    bins: tuple[tuple[int, int, int], ...]
    distinct: int
    counts: str
    common: Table
    is_drawn: bool = True

    def text(self) -> str:
        """The same as a sentence."""
        low, high = self.bins[0][0], self.bins[-1][1]
        said = f"{counted(self.distinct, 'size')} from {shown_value(low)} to {shown_value(high)}"
        most = max(calls for *_, calls in self.bins)
        common = [shown_range(a, b) for a, b, calls in self.bins if calls == most]
        if self.is_by_size and len(common) == self.distinct > 1:
            return f"{said}, {counted(most, 'call')} each"
        each = " each" if len(common) > 1 else ""
        return f"{said}; most calls, {most:,}{each}, had {some_of(common, MAX_EXAMPLES)}"

    @property
    def is_by_size(self) -> bool:
        """Whether each size that came has a bar of its own."""
        return sum(calls > 0 for *_, calls in self.bins) == self.distinct

    @property
    def has_gaps(self) -> bool:
        """Whether sizes that no call had are left out between two bars."""
        return any(a[1] + 1 < b[0] for a, b in pairwise(self.bins))

    def sizes(self) -> Table:
        """The same as a table, without what no call had."""
        rows = [(a if a == b else shown_range(a, b), calls) for a, b, calls in self.bins if calls]
        return table(f"{self.counts}: sizes and calls", ("size", "calls"), rows)


@dataclass(frozen=True)
class Timeline:
    """Calls over time, in steps of equal length, or one step for each file.

    Attributes:
        begin: the time of the first call, as text.
        edges: of the steps, in seconds after that.
        calls: per step, or, if ``is_rate``, calls per second.
        is_rate: whether the steps are files, of which only the ends were read.
        median, most: the latency per step in milliseconds, None without a call; empty if unknown.
        said: what it is, in words.
        slowest: the calls that took longest.
    """

    begin: str
    edges: tuple[float, ...]
    calls: tuple[float, ...]
    is_rate: bool
    median: tuple[float | None, ...]
    most: tuple[float | None, ...]
    said: str
    slowest: Table | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether any time passed."""
        return self.edges[-1] > self.edges[0]

    def steps(self) -> Table:
        """The same as a table."""
        head = ["from s", "to s", "calls per s" if self.is_rate else "calls"]
        columns: list[Sequence[Cell]] = [self.edges[:-1], self.edges[1:], self.calls]
        if self.median:
            head += ["median ms", "longest ms"]
            columns += [self.median, self.most]
        rows = zip(*columns, strict=True)
        return table(f"seconds after {self.begin}", head, rows, most=len(self.calls))


@dataclass(frozen=True)
class SymbolPart:
    """A symbol of a variant: its dimensions, sizes and evidence.

    Attributes:
        name: of the symbol.
        said: what it stands for, its range and what it follows from.
        evidence: the lines of its explanation.
        warnings: for which conclusions there is little evidence.
        histogram: its sizes; None if it follows from other symbols, or never varied.
    """

    name: str
    said: str
    evidence: tuple[str, ...]
    warnings: tuple[str, ...]
    histogram: Histogram | None = None


@dataclass(frozen=True)
class VariantPart:
    """A variant.

    Attributes:
        name: of the variant.
        facts: names and texts.
        arguments: its inputs as a tree.
        symbols: its dynamic dimensions.
        ints, constants: its scalars.
        notes: what limits the findings, and what was left out of the page.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    arguments: tuple[TreeNode, ...]
    symbols: tuple[SymbolPart, ...]
    ints: Table
    constants: Table
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What came of a check, or of running the calls.

    Attributes:
        name: of what was done.
        ok: whether every call is fine.
        summary: one line.
        rows: call by call, those that failed first.
        notes: what a reader should know.
    """

    name: str
    ok: bool
    summary: str
    rows: Table
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TapePart:
    """What was recorded of one target.

    Attributes:
        target: its class and method.
        facts: names and texts.
        coverage: how much of the traffic is there, in words and as a table.
        timeline: calls over time; None without calls.
        variants: the programs that can serve the calls; ``overview`` has a row for each.
        errors: a table, with what is known without it.
        verdicts: what came of checks.
        damage: what is wrong with the files.
        notes: what is not on the page, and why.
    """

    target: str
    facts: tuple[tuple[str, str], ...]
    coverage: tuple[str, Table]
    timeline: Timeline | None
    overview: Table
    variants: tuple[VariantPart, ...]
    errors: tuple[str, Table | None]
    verdicts: tuple[Verdict, ...] = ()
    damage: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contents:
    """Everything that a report page says.

    Attributes:
        title: what it is about.
        parts: one for each target.
        version: of calltape.
        notes: what is not on the page, and why.
    """

    title: str
    parts: tuple[TapePart, ...]
    version: str
    notes: tuple[str, ...] = field(default=())
