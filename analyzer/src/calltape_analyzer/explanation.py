"""An explanation: data for programs, whose ``str()`` is text for people."""

from __future__ import annotations

from collections.abc import Iterator

from calltape_analyzer.observing.memory_layout import LayoutSeen, layouts_in_words
from calltape_analyzer.plain_data import PlainData, Sketch, Text, Texts
from calltape_analyzer.text import counted, listed, printable, shown_value
from calltape_analyzer.variants.facts import CountedRange, Reason

__all__ = ["DimensionExplanation", "Explanation", "PartExplanation", "Sighting"]

_MAX_LISTED, _MAX_HEAD = 12, 80


class Sighting(PlainData):
    """One size of a dimension, or one value of an int.

    Attributes:
        value: the size, or the int.
        calls: how many calls had it.
        first_call: the number of the first of them.
        path: the file of that call, if the tape is several files.
        address: the address of that call, if the tape is of several recordings.
    """

    value: int
    calls: int
    first_call: int
    path: Text | None = None
    address: str | None = None

    def __str__(self) -> str:
        where = f" of {self.path}" if self.path else ""
        first = "" if self.calls == 1 else "first "
        number = self.address or self.first_call
        calls = f"{counted(self.calls, 'call')}, {first}call {number}{where}"
        return f"{shown_value(self.value)} ({calls})"


class DimensionExplanation(PlainData):
    """Why one dimension of a tensor, or an int, is dynamic or constant.

    Attributes:
        axis: of the tensor; None for an int.
        dynamic, reason: as in :class:`~calltape_analyzer.variants.facts.DimensionDecision`.
        seen: the values seen in this variant, smallest first; of more than 64 the smallest 32 and
            the largest 32.
        distinct: how many values were seen.
        why: the reason in words.
        symbol: the name of its symbol, if it has one.
        equals: the other dimensions and ints of this symbol: they were always equal to this one.
        expression: how the symbol always followed from other symbols, if it did.
        holds: in how many calls the expression holds.
        related: in words, what the symbols of the expression stand for, and which symbols follow
            from this one.
        warnings: what has thin evidence.
        whole: its range over the whole traffic, if that is known to be wider.
    """

    axis: int | None
    dynamic: bool
    reason: Reason
    seen: tuple[Sighting, ...]
    distinct: int
    why: Text
    symbol: Text | None = None
    equals: Texts = ()
    expression: Text | None = None
    holds: int = 0
    related: Texts = ()
    warnings: Texts = ()
    whole: CountedRange | None = None

    def lines(self, calls: int) -> Iterator[str]:
        """For people; ``calls`` is the number of calls of the variant."""
        what = "the int" if self.axis is None else f"dimension {self.axis}"
        yield f"{what} is {'dynamic' if self.dynamic else 'constant'}: {self.why}"
        if self.dynamic or self.distinct > 1:
            shown = [str(sighting) for sighting in self.seen]
            if len(shown) > _MAX_LISTED:
                half = _MAX_LISTED // 2
                shown[half:-half] = [f"… ({self.distinct - 2 * half} more)"]
            yield f"  seen: {', '.join(shown)}"
        if self.whole is not None:
            yield f"  {self.whole}"
        if self.symbol is not None:
            equal = f", always equal to {listed(self.equals)}" if self.equals else ""
            yield f"  symbol: {self.symbol}{equal}"
        if self.expression is not None:
            yield f"  always {self.expression}, in {self.holds} of {counted(calls, 'call')}"
        yield from (f"  {text}" for text in self.related)
        yield from (f"  warning: {text}" for text in self.warnings)


class PartExplanation(PlainData):
    """What was asked about, in one variant.

    Attributes:
        variant: the variant's name.
        calls: how many calls it has.
        first_call: the number of the first of them.
        address: the address of that call, if the tape is of several recordings.
        places: the paths of the tensors or values for which all of this holds.
        kind: ``tensor``, ``int``, ``float``, ``bool``, ``list``, ...
        dtype: of a tensor.
        value: of a constant, as text.
        varies: whether it is a text or a number that varies from call to call.
        dimensions: those of a tensor; a single one for an int.
        layouts: of a tensor, how many calls had which layout in memory, as in
            :class:`~calltape_analyzer.TensorFinding`.
        context: the autocast that the calls are under, in words; None without one, and if the name
            of the variant says it.
    """

    variant: Text
    calls: int
    first_call: int
    places: Texts
    kind: str
    dtype: Text | None = None
    value: Text | None = None
    varies: bool = False
    dimensions: tuple[DimensionExplanation, ...] = ()
    address: str | None = None
    layouts: tuple[LayoutSeen, ...] = ()
    context: str | None = None

    def lines(self) -> Iterator[str]:
        """For people."""
        what = f"{self.kind} {self.dtype}" if self.dtype else self.kind
        shown = f"{what} {self.value}" if self.value is not None else what
        number = self.address or self.first_call
        first = f"first call {number}" if self.calls > 1 else f"call {number}"
        calls = f"{counted(self.calls, 'call')}, {first}"
        calls += "" if self.context is None else f", {self.context}"
        yield f"in {self.variant} ({calls}): {listed(self.places)}: {shown}"
        if self.varies:
            yield "  calls with other values are of the same variant"
        elif self.value is not None and not self.dimensions:
            yield "  constant: calls with another value are another variant"
        if (layouts := layouts_in_words(self.layouts)) is not None:
            yield f"  layout in memory: {layouts}"
        for dimension in self.dimensions:
            yield from (f"  {text}" for text in dimension.lines(self.calls))


class Explanation(PlainData):
    """Why something is what it is; ``str()`` of it is text for people.

    Attributes:
        subject: what was asked about.
        axis: the dimension that was asked about, counted from 0; None for all.
        parts: what was found, variant by variant.
        notes: what else a reader should know, such as how many calls leave the argument out.
    """

    subject: Text
    axis: int | None
    parts: tuple[PartExplanation, ...]
    notes: Texts = ()

    def __str__(self) -> str:
        """Text with everything from the tape made printable."""
        lines = [self._head, *(line for part in self.parts for line in part.lines())]
        return "\n".join(printable(line) for line in (*lines, *self.notes))

    @property
    def _head(self) -> str:
        return self.subject if self.axis is None else f"{self.subject}[{self.axis}]"

    def __repr__(self) -> str:
        head = printable(self._head[:_MAX_HEAD])
        dimensions = [dimension for part in self.parts for dimension in part.dimensions]
        dynamic = sum(dimension.dynamic for dimension in dimensions)
        variants = counted(len({part.variant for part in self.parts}), "variant")
        dynamic_text = f"{dynamic} of {counted(len(dimensions), 'dimension')} dynamic"
        return f"<Explanation of {head}: in {variants}, {dynamic_text}>"

    def _sketch(self) -> Sketch:
        lines = [line for part in self.parts for line in part.lines()]
        return Sketch(f"Explanation of {self._head}", lines=(*lines, *self.notes))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has thin evidence, by variant."""
        return tuple(
            f"{part.variant}: {text}"
            for part in self.parts
            for dimension in part.dimensions
            for text in dimension.warnings
        )
