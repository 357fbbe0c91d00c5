"""``Novelty``: keeps a call only if it adds evidence to the calls that it kept before.

What an analysis learns from sizes are relations that always hold: a size is constant, two are
equal, one is the sum or a multiple of others. All of these are affine: a relation that holds for
some points holds for every point in their affine span. So a call whose sizes lie in the span
of the kept calls cannot refute any relation that these satisfy, and a call outside of the span
refutes a relation. Therefore an analysis of the kept calls finds the same relations as an analysis
of all calls. At most one call more is kept than there are independent sizes.

Two kinds of evidence are not affine: which sizes are 0 or 1 (broadcasting, empty caches), and which
sizes are equal (a sliding window that is full). Calls are first sorted by this pattern and by their
constants, and each pattern has a span of its own.

An application may make calls whose sizes have no pattern and no relation, as lists of a thousand
ragged tensors do. So what is held, and the time that a call waits for it, have bounds. Beyond
these, less is evidence (:class:`Novelty` says what).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

from calltape_recorder.bounds import (
    MAX_NOVELTY_CALLS,
    MAX_NOVELTY_CONSTANTS,
    MAX_NOVELTY_NUMBERS,
    MAX_NOVELTY_SPAN,
    MAX_NOVELTY_STRUCTURES,
)
from calltape_recorder.keep.policies import NOVEL, CallView, Decider, Keep, Verdict
from calltape_recorder.threads import RLock
from calltape_schema import TapeError
from calltape_schema.affine_span import AffineSpan


@dataclass(frozen=True)
class Novelty(Keep):
    """Keeps calls that show something new.

    A call is novel if one of these is true:

    - The structure, a dtype or a constant is new.
    - A size breaks an equality, a sum or a multiple that held for all kept calls.
    - A size is 0 or 1, and was different in all kept calls.
    - A size or int is at least ``growth`` times the largest kept one, or at most the smallest kept
      one divided by ``growth``. The end of the tape has the exact extremes over all calls.

    If the constants (text, float) of a structure never repeat, the first 256 are kept. Dict keys
    that never recur, such as request ids, count as data: neither these keys nor their values make a
    call novel. If a kept call is lost (the queue was full, the disk failed, its file was deleted),
    novelty starts over. The more often files with novel calls are deleted for lack of space, the
    less often it does so. Files without novel calls are deleted first.

    The recorder remembers at most 262,144 numbers about all calls. Once it has these, a new pattern
    of equal sizes or a broken sum or multiple no longer makes a call novel. For the relations of
    one pattern, it remembers at most 16,384 numbers, which suffices for 127 unrelated sizes; beyond
    that, a broken sum or multiple of this pattern no longer makes a call novel. Growth always does.
    New structures, dtypes and constants do, up to limits of their own.

    Args:
        growth: a number above 1.

    Raises:
        TapeError: ``usage`` for anything but a number above 1.
    """

    growth: float = 2.0

    def __post_init__(self) -> None:
        if type(self.growth) not in (int, float) or not 1 < self.growth < float("inf"):
            raise TapeError("usage", f"Novelty({self.growth!r})", advice="pass more than 1")

    def decider(self) -> Decider:
        return _Decider(self.growth)

    def __str__(self) -> str:
        return "novelty()" if self.growth == Novelty.growth else f"novelty(growth={self.growth})"


class _Decider:
    def __init__(self, growth: float) -> None:
        # Exact, because a float has no room for an int of a thousand bits.
        self._growth = Fraction(str(growth)).as_integer_ratio()
        self._lock = RLock()
        # Only hashes are kept: the sizes of a large cache take kilobytes, and a text has no bound.
        self._exact: set[int] = set()
        self._kinds: dict[int, _KindEvidence] = {}
        self._numbers = 0  # of all kinds

    def __call__(self, number: int, view: CallView) -> Verdict:
        core = view.structure.core
        if core is None:  # checked here, because nearly all calls run this
            structure, outline, scalars = hash(view.structure.encoded), view.outline, view.scalars
        else:
            structure = core.structure_hash
            outline, scalars = view.without_data_keys()
        keys = [_hash_key(value) for value in scalars] if scalars else scalars
        exact = hash((structure, outline, tuple(keys)))
        if exact in self._exact:  # nearly all calls
            return False
        values = zip(scalars, keys, strict=True)
        constants = hash(tuple([key for value, key in values if type(value) is not int]))
        with self._lock:
            if len(self._exact) >= MAX_NOVELTY_CALLS:
                self._exact.clear()
            types, numbers = _split(outline)
            kind = hash((structure, types))
            evidence = self._kinds.get(kind)
            if evidence is None and len(self._kinds) < MAX_NOVELTY_STRUCTURES:
                evidence = _KindEvidence(self._growth)
            may_grow = self._numbers < MAX_NOVELTY_NUMBERS
            news = evidence.news(numbers, constants, may_grow=may_grow) if evidence else None
            if evidence is None or news is None:
                self._exact.add(exact)
                return False
            return partial(self._keep, exact, kind, evidence, news)

    def _keep(self, exact: int, kind: int, evidence: _KindEvidence, news: _News) -> int:
        with self._lock:
            if exact in self._exact:  # another thread kept the same meanwhile
                return False
            # If novelty started over meanwhile, nothing from before may come back.
            current = self._kinds.get(kind)
            if current is None and not evidence.constants:
                current = self._kinds[kind] = evidence
            if current is not None:
                self._exact.add(exact)
                self._numbers += current.add(news)
        return NOVEL

    def start_over(self) -> None:
        """Forgets all evidence, as if nothing was kept so far."""
        with self._lock:
            self._kinds.clear()
            self._numbers = 0
            self._exact.clear()


def _hash_key(value: Any) -> Any:
    """A value whose hash differs for different scalars of one type. The scalars themselves do not
    serve: in Python -1 and -2 have the same hash, also as floats, and so have 3 and 2^63 - 1."""
    kind = type(value)
    if kind is int:
        return value, value.bit_length()
    if kind is float:
        return value.hex()
    if kind is tuple:  # the two parts of a complex number
        return tuple([part.hex() for part in value])
    return value


def _split(outline: Sequence[Any]) -> tuple[tuple[Any, ...], list[int]]:
    """Splits an outline into dtypes and ranks, and the numbers."""
    types: list[Any] = []
    numbers: list[int] = []
    for part in outline:
        if isinstance(part, tuple):
            types.append(len(part))
            numbers += part
        elif type(part) is int:
            types.append(int)
            numbers.append(part)
        else:
            types.append(part)
    return tuple(types), numbers


_NUMBERS_OF_PATTERN = 16  # about what a pattern takes without its numbers


class _KindEvidence:
    """The evidence of the kept calls of one kind: of one structure with the same dtypes and ranks.

    Attributes:
        constants: hashes of the constants of the kept calls; empty before the first kept call.
    """

    def __init__(self, growth: tuple[int, int]) -> None:
        self._growth = growth
        self.constants: set[int] = set()
        self._patterns: dict[int, _Pattern] = {}

    def news(self, numbers: list[int], constants: int, *, may_grow: bool) -> _News | None:
        """What to remember if this call is kept; None if it adds no evidence. ``constants`` is a
        hash. What takes more numbers is evidence only if ``may_grow`` is true."""
        is_new = constants not in self.constants and len(self.constants) < MAX_NOVELTY_CONSTANTS
        places: dict[int, int] = {}
        equal_to = tuple([places.setdefault(number, i) for i, number in enumerate(numbers)])
        values = list(places)
        # Calls with other constants belong to another program, and are no evidence for this one.
        of_program = constants if is_new or constants in self.constants else None
        key = hash((equal_to, tuple([v if v in (0, 1) else None for v in values]), of_program))
        known = self._patterns.get(key)
        if known is not None:
            pattern = known.with_point(values, self._growth, may_widen=may_grow)
        else:
            pattern = _Pattern.of(values) if may_grow else None
        return _News(constants, key, pattern) if pattern or is_new else None

    def add(self, news: _News) -> int:
        """Remembers a call that is kept. Returns how many numbers that takes."""
        constants, key, pattern = news
        if len(self.constants) < MAX_NOVELTY_CONSTANTS:
            self.constants.add(constants)
        if pattern is None:
            return 0
        # Another thread may have kept a call of the pattern meanwhile. If that is forgotten here, a
        # call like it is kept again.
        known = self._patterns.get(key)
        self._patterns[key] = pattern
        return pattern.size - (known.size if known else 0)


class _News(NamedTuple):
    """What a call adds to the evidence of its kind: its constants (a hash), and the pattern that
    has its numbers, if it adds any, at its key."""

    constants: int
    key: int
    pattern: _Pattern | None


class _Pattern(NamedTuple):
    """The affine span of the kept points (the distinct numbers of a call), and their bounds.

    Attributes:
        size: how many numbers it takes.
    """

    low: list[int]
    high: list[int]
    span: AffineSpan
    size: int

    @classmethod
    def of(cls, values: list[int]) -> _Pattern:
        """The pattern of one point."""
        span = AffineSpan(MAX_NOVELTY_SPAN)
        span.add(values)
        return cls(values, values, span, _NUMBERS_OF_PATTERN + 3 * len(values))

    def with_point(
        self, values: list[int], growth: tuple[int, int], *, may_widen: bool
    ) -> _Pattern | None:
        """The pattern with one more point; None if that adds nothing: the point is in the span,
        unless ``may_widen`` is false, and no number is far beyond its bounds."""
        span, size = self.span, self.size
        if may_widen:
            span = span.copy()
            if span.add(values):
                size += len(values)
        # With the signs changed, a lower bound is an upper one.
        low = [
            value if value < bound and _is_beyond(-value, -bound, *growth) else bound
            for value, bound in zip(values, self.low, strict=True)
        ]
        high = [
            value if value > bound and _is_beyond(value, bound, *growth) else bound
            for value, bound in zip(values, self.high, strict=True)
        ]
        is_same = size == self.size and low == self.low and high == self.high
        return None if is_same else _Pattern(low, high, span, size)


def _is_beyond(value: int, bound: int, growth: int, unit: int) -> bool:
    """Whether a number is ``growth / unit`` times as far as its bound, or further."""
    return value * unit >= bound * growth if bound > 0 else value * growth >= bound * unit
