"""What an explanation says, as data and as text for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from calltape_analyzer.printable import printable, some_of

if TYPE_CHECKING:
    from calltape_analyzer.variants import Reason

__all__ = [
    "MAX_EXAMPLES",
    "DimensionExplanation",
    "Explanation",
    "Listing",
    "PartExplanation",
    "Sighting",
    "WholeTraffic",
    "alike",
    "collapsed",
    "counted",
    "listed",
    "shown_value",
]

L = TypeVar("L", bound=Hashable)

_MAX_LISTED = 12
MAX_EXAMPLES = 3


@dataclass(frozen=True)
class Sighting:
    """A size (or the value of an int): in how many calls, and the first of them; ``path`` is the
    file where that is, if the tape is several."""

    value: int
    calls: int
    first_call: int
    path: str | None = None

    def __str__(self) -> str:
        where = f" of {self.path}" if self.path else ""
        first = "" if self.calls == 1 else "first "
        calls = f"{counted(self.calls, 'call')}, {first}call {self.first_call}{where}"
        return f"{shown_value(self.value)} ({calls})"


@dataclass(frozen=True)
class WholeTraffic:
    """The smallest and largest value over all calls that were counted, where the calls on the tape
    had a smaller range. ``calls``: how many were counted; ``shared_with``: other variants whose
    calls are among them, as counters cannot tell them apart; ``kept_calls``, ``kept_min``,
    ``kept_max``: how many calls are on the tape, and their range, theirs included (more calls than
    were counted, where a file has no counters)."""

    min: int
    max: int
    calls: int
    kept_calls: int
    kept_min: int
    kept_max: int
    shared_with: tuple[str, ...] = ()

    def __str__(self) -> str:
        shared = f" (those of {listed(self.shared_with)} among them)" if self.shared_with else ""
        some = f"{self.kept_calls:,} of " if self.kept_calls < self.calls else ""
        kept = f"kept {some}{self.calls:,} calls{shared}: {_span(self.kept_min, self.kept_max)}"
        return f"{kept}; over all: {_span(self.min, self.max)}"


@dataclass(frozen=True)
class DimensionExplanation:
    """Why one dimension of a tensor, or an int, is dynamic or constant.

    Attributes:
        axis: of the tensor; None for an int.
        dynamic, reason: as in :class:`~calltape_analyzer.variants.Dimension`.
        seen: the values seen in this variant, smallest first; of more than 64 the smallest and the
            largest 32. ``distinct`` counts all.
        why: the reason in words.
        symbol: the name of what it is, with ``equals``: what else always is the same.
        expression: how it always followed from other symbols; ``holds``: in how many calls.
        related: what those symbols are, and which others follow from this one, in words.
        whole: its range over the whole traffic, where that is known to be wider.
        warnings: where the evidence is thin.
    """

    axis: int | None
    dynamic: bool
    reason: Reason
    seen: tuple[Sighting, ...]
    distinct: int
    why: str
    symbol: str | None = None
    equals: tuple[str, ...] = ()
    expression: str | None = None
    holds: int = 0
    related: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    whole: WholeTraffic | None = None

    def _shown(self) -> Iterator[str]:
        if len(self.seen) <= _MAX_LISTED:
            yield from map(str, self.seen)
            return
        half = _MAX_LISTED // 2
        yield from map(str, self.seen[:half])
        yield f"… ({self.distinct - 2 * half} more)"
        yield from map(str, self.seen[-half:])

    def lines(self, calls: int) -> Iterator[str]:
        """For people; ``calls`` is the number of calls of the variant."""
        what = "the int" if self.axis is None else f"dimension {self.axis}"
        yield f"{what} is {'dynamic' if self.dynamic else 'constant'}: {self.why}"
        if self.dynamic or self.distinct > 1:
            yield f"  seen: {', '.join(self._shown())}"
        if self.whole is not None:
            yield f"  {self.whole}"
        if self.symbol is not None:
            equal = f", always equal to {listed(self.equals)}" if self.equals else ""
            yield f"  symbol: {self.symbol}{equal}"
        if self.expression is not None:
            yield f"  always {self.expression}, in {self.holds} of {counted(calls, 'call')}"
        yield from (f"  {text}" for text in self.related)
        yield from (f"  warning: {text}" for text in self.warnings)


@dataclass(frozen=True)
class PartExplanation:
    """What was asked about, in one variant.

    Attributes:
        variant, calls, first_call: the variant's name, its calls and the number of the first.
        places: the tensors or values that this holds for alike.
        kind: ``tensor``, ``int``, ``float``, ``bool``, ``list``, ...
        dtype: of a tensor; value: of a constant, as text.
        dimensions: the dimensions of a tensor; of an int, one.
    """

    variant: str
    calls: int
    first_call: int
    places: tuple[str, ...]
    kind: str
    dtype: str | None = None
    value: str | None = None
    dimensions: tuple[DimensionExplanation, ...] = ()

    def lines(self) -> Iterator[str]:
        """For people."""
        what = f"{self.kind} {self.dtype}" if self.dtype else self.kind
        shown = f"{what} {self.value}" if self.value is not None else what
        first = f"first call {self.first_call}" if self.calls > 1 else f"call {self.first_call}"
        calls = f"{counted(self.calls, 'call')}, {first}"
        yield f"in {self.variant} ({calls}): {listed(self.places)}: {shown}"
        if self.value is not None and not self.dimensions:
            yield "  constant: calls with another value are another variant"
        for dimension in self.dimensions:
            yield from (f"  {text}" for text in dimension.lines(self.calls))


@dataclass(frozen=True)
class Explanation:
    """Why something is what it is; ``str()`` of it is text for people.

    Attributes:
        subject: what was asked about.
        axis: the dimension that was asked about, counted from 0; None for all.
        parts: per variant what was found.
        notes: what else is to be known, such as the calls that leave the argument out.
    """

    subject: str
    axis: int | None
    parts: tuple[PartExplanation, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Text with everything from the tape made printable."""
        head = self.subject if self.axis is None else f"{self.subject}[{self.axis}]"
        lines = [head, *(line for part in self.parts for line in part.lines())]
        return "\n".join(printable(line) for line in (*lines, *self.notes))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where the evidence is thin, by variant."""
        return tuple(
            f"{part.variant}: {text}"
            for part in self.parts
            for dimension in part.dimensions
            for text in dimension.warnings
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; ints of more than 64 bits as text."""
        made: dict[str, Any] = _plain(asdict(self))
        return made


# How things are put in words.


def shown_value(value: Any) -> str:
    """A scalar as Python shows it, cut where it is long."""
    if type(value) is int and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _span(low: int, high: int) -> str:
    return shown_value(low) if low == high else f"{shown_value(low)} to {shown_value(high)}"


def counted(count: int, what: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{count} {what}{'s' * (count != 1)}"


def collapsed(names: Sequence[str]) -> list[str]:
    """Places that differ in the numbers of list items only as one:
    ``past_key_values.layers.*.keys (32 of them)``."""
    by_pattern: dict[str, list[str]] = {}
    for name in names:
        by_pattern.setdefault(_pattern(name), []).append(name)
    return [
        same[0] if len(same) == 1 else f"{pattern} ({len(same)} of them)"
        for pattern, same in by_pattern.items()
    ]


def alike(places: Iterable[tuple[str, L]]) -> Iterator[tuple[str, L]]:
    """Places with what is said of each (any text or tuple of them), those that are alike as one:
    ``past_key_values.layers.*.keys (32 of them)`` where all of a list are, ``xs.0 and 3 like it``
    where others are not. No name comes twice."""
    lists: dict[str, dict[L, list[str]]] = {}
    for name, said in places:
        lists.setdefault(_pattern(name), {}).setdefault(said, []).append(name)
    taken: set[str] = set()
    again: Counter[str] = Counter()
    for looks in lists.values():
        for said, names in looks.items():
            (shown,) = collapsed(names) if len(looks) == 1 else names[:1]
            if len(names) > 1 < len(looks):
                shown = f"{shown} and {len(names) - 1} like it"
            # Keys 1 and "1" of a dict are one in a name.
            made = shown
            while made in taken:
                again[shown] += 1
                made = f"{shown} (again {again[shown]})"
            taken.add(made)
            yield made, said


def listed(names: Sequence[str], limit: int = MAX_EXAMPLES) -> str:
    """At most a few names, and how many more there are."""
    return some_of(collapsed(names), limit)


class Listing:
    """Many names of which each is to be told what the others are, without a look at all of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._alike: dict[str, list[tuple[int, str]]] = {}
        for at, name in enumerate(names):
            self._alike.setdefault(_pattern(name), []).append((at, name))

    def without(self, name: str) -> str:
        """What :func:`listed` says of all names but this one, which is among them."""
        pattern = _pattern(name)
        others = (group for key, group in self._alike.items() if key != pattern)
        found = [(*group[0], group) for group in islice(others, MAX_EXAMPLES)]
        own = self._alike[pattern]
        if len(own) > 1:
            found.append((*(own[0] if own[0][1] != name else own[1]), own[1:]))
        # A pattern stands where the first name of it does.
        found.sort(key=lambda one: one[0])
        shown = [
            first if len(group) == 1 else f"{_pattern(first)} ({len(group)} of them)"
            for _, first, group in found[:MAX_EXAMPLES]
        ]
        more = len(self._alike) - (len(own) == 1) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+", "*", name)


def _plain(value: Any) -> Any:
    """Containers for JSON; ints that other readers of JSON would round as text."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if type(value) is int and value.bit_length() > 64:
        return shown_value(value)
    return value
