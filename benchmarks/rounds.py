"""Interleaved measurement: every contender takes its turn in every round, so that a machine that
slows down slows them all, and a ratio of medians holds where an absolute time would not. The order
is drawn anew for every round: none finds the caches always as the same other one left them."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Samples", "measure", "measure_paced", "processor_seconds"]


@dataclass(frozen=True)
class Samples:
    """Seconds per turn of each contender, in turn order."""

    seconds: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def added(self, name: str, base: str) -> float:
        """Seconds that ``name`` takes over ``base``: the median of the differences turn by turn."""
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return statistics.median(a - b for a, b in pairs)


def processor_seconds() -> float:
    """The processor time of this process, and of the commands that it ran and waited for. Others on
    the machine do not count."""
    return sum(os.times()[:4])


def _orders(names: Iterable[str], rounds: int) -> Iterator[list[str]]:
    drawn, order = random.Random(0), list(names)
    for _ in range(rounds):
        drawn.shuffle(order)
        yield list(order)


def measure(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    repeat: int = 1,
    prepare: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Times each contender once a round; ``repeat`` calls in a tight loop make one turn, whose time
    is divided by their number. ``prepare`` runs untimed before every turn; ``clock`` tells the
    time, such as :func:`processor_seconds`."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for order in _orders(contenders, rounds):
        for name in order:
            contender = contenders[name]
            if prepare is not None:
                prepare()
            begin = clock()
            for _ in range(repeat):
                contender()
            seconds[name].append((clock() - begin) / repeat)
    return Samples(seconds)


def measure_paced(
    contenders: Mapping[str, Callable[[], object]],
    calls: int,
    *,
    rate: float = 1000.0,
    prepare: Callable[[], object] | None = None,
) -> Samples:
    """Times calls one by one, ``rate`` of them a second over all contenders, as a server sees
    them: what a recorder does in the background finds its time between the calls."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    due = time.perf_counter()
    for order in _orders(contenders, calls):
        for name in order:
            if prepare is not None:
                prepare()
            due = max(due + 1 / rate, time.perf_counter())
            while (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
            begin = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - begin)
    return Samples(seconds)
