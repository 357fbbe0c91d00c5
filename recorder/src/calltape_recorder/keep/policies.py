"""Policies decide which calls are kept, and can be combined.

``a & b`` keeps a call if both keep it, ``a | b`` if at least one keeps it. The left policy is asked
first, and the right one only if the answer is still open. So a limit belongs on the right:
``Novelty() | Rate(0.01) & PerSecond(5)`` keeps every call that adds evidence, and of a hundredth of
the others at most five a second. The manifest says ``str(policy)``.

A flight recorder (:mod:`calltape_recorder.keep.flight_recorder`) decides later about the calls that
no policy keeps.
"""

from __future__ import annotations

import abc
import math
import sys
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Any, Literal

from calltape_recorder.bounds import MAX_POLICY_STRUCTURES
from calltape_recorder.threads import Count, RLock, new_count
from calltape_schema import TapeError

if TYPE_CHECKING:  # these import torch, and calltape-record reads policies without it
    from calltape_recorder.capture.structures import Structure
    from calltape_recorder.snapshot.side import Outline


@dataclass(eq=False, slots=True)
class CallView:
    """One call, before the model runs.

    Attributes:
        number: how many calls were seen before it.
        args, kwargs: its arguments. They must not be changed.
        structure: the structure of its inputs.
        outline: see :data:`Outline`.
        scalars: the values of its scalars, in order.
    """

    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    structure: Structure
    outline: Outline
    scalars: list[Any]

    @property
    def structure_hash(self) -> int:
        """A hash, equal for calls of one structure: policies remember thousands, and a structure
        may have megabytes. The keys of dicts that are data are no part of it."""
        core = self.structure.core
        return hash(self.structure.encoded) if core is None else core.structure_hash

    def without_data_keys(self) -> tuple[Outline, list[Any]]:
        """The outline and the scalars, without those in dicts at keys that are data."""
        core = self.structure.core
        assert core is not None  # else that is all of them
        leaves = len(self.outline) - len(self.scalars)
        places = (*core.leaves, *[leaves // 2 + i for i in core.leaves])
        numbers = [self.outline[leaves + i] for i in core.scalars]
        return (*[self.outline[i] for i in places], *numbers), [
            self.scalars[i] for i in core.scalars
        ]


NOVEL = 2
"""The answer of a decider that keeps a call because none before was like it. Its file is deleted
last."""

Verdict = int | Callable[[], int]
Decider = Callable[[int, Any], Verdict]
"""Tells by a call's number and its :class:`CallView` whether the call is kept: False, True, or
:data:`NOVEL`. Several threads of the application call it at once. The decider of a policy
``by_number`` gets no view, and answers with no function.

If it remembers what it kept, it answers with a function, because another policy may still reject
the call. The function is called if none does. It remembers the call and returns the answer, which
is False if other threads kept enough meanwhile. Such a decider has a method ``start_over()``. This
is called when kept calls were lost, so that calls like these are kept again.

If it knows in advance what it will not keep, it has a method ``gap(number)``. This returns the
first number and the end of a range in which no call is kept; ``number`` is in the range unless it
is kept.
"""


class Keep(abc.ABC):
    """A policy. It starts counting from zero in each process and for each recorder."""

    by_number = False
    """Whether it decides by a call's number and the time only. Then the recorder need not look at a
    call that is not kept."""

    @abc.abstractmethod
    def decider(self) -> Decider:
        """Makes a decider that has seen no call."""

    def __and__(self, other: Keep) -> Keep:
        return _Composed(self, "&", other) if isinstance(other, Keep) else NotImplemented

    def __or__(self, other: Keep) -> Keep:
        return _Composed(self, "|", other) if isinstance(other, Keep) else NotImplemented


@dataclass(frozen=True)
class _Composed(Keep):
    left: Keep
    sign: Literal["&", "|"]
    right: Keep

    @property
    def by_number(self) -> bool:  # type: ignore[override]
        return self.left.by_number and self.right.by_number

    def decider(self) -> Decider:
        return _Pair(self.left.decider(), self.right.decider(), both=self.sign == "&")

    def __str__(self) -> str:
        parts = [
            f"({part})"
            if self.sign == "&" and isinstance(part, _Composed) and part.sign == "|"
            else str(part)
            for part in (self.left, self.right)
        ]
        return f" {self.sign} ".join(parts)


@dataclass(frozen=True)
class Every(Keep):
    """Keeps every call."""

    by_number = True

    def decider(self) -> Decider:
        return lambda number, view: True

    def __str__(self) -> str:
        return "every()"


@dataclass(frozen=True)
class First(Keep):
    """Keeps the first ``calls`` calls that reach it.

    Raises:
        TapeError: ``usage`` for anything but an int of 0 or more.
    """

    calls: int
    by_number = True

    def __post_init__(self) -> None:
        _check_count("First", self.calls)

    def decider(self) -> Decider:
        asked = new_count()  # one step, so it needs no lock
        return lambda number, view: next(asked) < self.calls

    def __str__(self) -> str:
        return f"first({self.calls})"


@dataclass(frozen=True)
class Rate(Keep):
    """Keeps a share of the calls. It decides by call number, so the same seed keeps the same calls.

    Args:
        fraction: a number from 0 to 1.
        seed: any int.

    Raises:
        TapeError: ``usage`` for anything else.
    """

    fraction: float
    seed: int = 0
    by_number = True

    def __post_init__(self) -> None:
        if type(self.fraction) not in (int, float) or not 0 <= self.fraction <= 1:
            raise TapeError("usage", f"Rate({self.fraction!r})", advice="pass a fraction, 0 to 1")
        if type(self.seed) is not int:
            raise TapeError("usage", f"Rate(seed={self.seed!r})", advice="pass an int")

    def decider(self) -> Decider:
        # An even sample of the calls, by their numbers alone.
        offset = ((self.seed & _MASK) * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) & _MASK
        if self.fraction <= _SPARSE:
            return _Sparse(self.fraction, offset)
        limit = int(self.fraction * 2**64)
        return lambda number, view: _random(number, offset) < limit

    def __str__(self) -> str:
        return f"rate({self.fraction}, seed={self.seed})"


@dataclass(frozen=True)
class PerSecond(Keep):
    """Keeps at most ``calls`` calls per second on average, and at most that many in a burst. The
    number may be below 1: 0.1 keeps a call every ten seconds.

    Raises:
        TapeError: ``usage`` for anything but a positive number.
    """

    calls: float
    by_number = True

    def __post_init__(self) -> None:
        if type(self.calls) not in (int, float) or not 0 < self.calls < float("inf"):
            raise TapeError("usage", f"PerSecond({self.calls!r})", advice="pass a positive number")

    def decider(self) -> Decider:
        return _Bucket(self.calls)

    def __str__(self) -> str:
        return f"per_second({self.calls})"


@dataclass(frozen=True)
class PerStructure(Keep):
    """Keeps the first ``calls`` calls of each structure, that is, with the same nesting, keys,
    classes and bools.

    Raises:
        TapeError: ``usage`` for anything but an int of 0 or more.
    """

    calls: int

    def __post_init__(self) -> None:
        _check_count("PerStructure", self.calls)

    def decider(self) -> Decider:
        return _StructureLimit(self.calls)

    def __str__(self) -> str:
        return f"per_structure({self.calls})"


@dataclass(frozen=True)
class When(Keep):
    """Keeps the calls for which ``predicate(args, kwargs)`` is true.

    The predicate runs during the call, before the model, in every thread that calls the model. It
    must be fast, and must not change its arguments. If it raises, the call is not kept, and a
    warning is logged once.
    """

    predicate: Callable[[tuple[Any, ...], dict[str, Any]], object]

    def __post_init__(self) -> None:
        if not callable(self.predicate):
            reason = f"When({self.predicate!r:.100})"
            raise TapeError("usage", reason, advice="pass a function of args and kwargs")

    def decider(self) -> Decider:
        return lambda number, view: bool(self.predicate(view.args, view.kwargs))

    def __str__(self) -> str:
        name = getattr(self.predicate, "__qualname__", type(self.predicate).__name__)
        return f"when({name[:200]})"


def settled(verdict: Verdict) -> int:
    """The answer about a call that no other policy rejects."""
    return verdict() if callable(verdict) else verdict


def start_over(decider: Decider) -> None:
    """Tells a decider that kept calls were lost."""
    forget = getattr(decider, "start_over", None)
    if forget is not None:
        forget()


class _Pair:
    """Two deciders. No lock is held while they decide, because they may run a predicate of the
    application."""

    def __init__(self, left: Decider, right: Decider, *, both: bool) -> None:
        self._left = left
        self._right = right
        self._both = both

    def __call__(self, number: int, view: Any) -> Verdict:
        left = self._left(number, view)
        if bool(left) is not self._both:  # the answer of the right one does not matter
            return left
        right = self._right(number, view)
        if not (left and right):
            return right
        if not (callable(left) or callable(right)):
            return max(left, right)

        def settled_both() -> int:
            first = settled(left)
            second = first and settled(right)
            return second and max(first, second)

        return settled_both

    def start_over(self) -> None:
        start_over(self._left)
        start_over(self._right)


class _StructureLimit:
    def __init__(self, calls: int) -> None:
        self._calls = min(calls, sys.maxsize)
        self._left: dict[int, Count] = {}  # of each structure as many steps as calls may be kept

    def __call__(self, number: int, view: CallView) -> Verdict:
        key = view.structure_hash
        left = self._left.get(key)
        has_room = len(self._left) < MAX_POLICY_STRUCTURES if left is None else length_hint(left)
        return partial(self._take, key) if has_room else False

    def _take(self, key: Any) -> int:
        # Another thread may be first.
        left = self._left.get(key) or self._left.setdefault(key, iter(range(self._calls)))
        return False if next(left, None) is None else NOVEL

    def start_over(self) -> None:
        self._left.clear()


class _Bucket:
    """Gets ``rate`` permits a second, and holds at most ``rate``, or 1 if that is more. A call that
    it lets through takes a permit."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(rate, 1.0)
        self._permits = self._most
        self._filled = time.monotonic()
        self._lock = RLock()

    def __call__(self, number: int, view: Any) -> bool:
        with self._lock:
            now = time.monotonic()
            self._permits = min(self._most, self._permits + (now - self._filled) * self._rate)
            self._filled = now
            if self._permits < 1:
                return False
            self._permits -= 1
            return True


_MASK = 2**64 - 1


class _Sparse:
    """A small sample. It is drawn for a block of numbers at once, because most calls are not in
    it, and then need not ask."""

    def __init__(self, fraction: float, offset: int) -> None:
        self._scale = 1 / math.log1p(-fraction) if fraction >= _LEAST else 0.0
        self._offset = offset
        self._drawn = -1, [0]

    def __call__(self, number: int, view: Any) -> bool:
        return number < self.gap(number)[0]

    def gap(self, number: int) -> tuple[int, int]:
        """The first number and the end of a range that has no number of the sample. ``number`` is
        in the range or, if it is in the sample, right before it."""
        begin, edges = self._drawn  # read at once, because several threads are in here
        if begin != number - number % _BLOCK:
            begin = number - number % _BLOCK
            edges = [begin - 1, *self._sample(begin), begin + _BLOCK]
            self._drawn = begin, edges
        place = bisect_right(edges, number)
        return edges[place - 1] + 1, edges[place]

    def _sample(self, begin: int) -> list[int]:
        sample: list[int] = []
        number = begin
        while self._scale:
            # The distance between two numbers of the sample is distributed geometrically.
            gap = math.log((_random(begin + len(sample), self._offset) + 1) / 2**64) * self._scale
            if gap >= begin + _BLOCK - number:
                break
            number += int(gap)
            sample.append(number)
            number += 1
        return sample


_SPARSE = 1 / 16
_LEAST = 1e-300  # a smaller fraction keeps no call
_BLOCK = 256


def _random(number: int, offset: int) -> int:
    """A number from 0 to 2**64 - 1: a multiplicative hash, with its high bits folded in once. It
    makes regular numbers look random."""
    mixed = number * 0x9E3779B97F4A7C15 + offset
    return (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & _MASK


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise TapeError("usage", f"{name}({value!r})", advice="pass an int, 0 or more")
