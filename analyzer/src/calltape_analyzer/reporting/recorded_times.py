"""Calls and latency over time, and errors: what only the records of calls tell.

In come the calls of a tape, each record read once, or, of files of which only the ends were read,
what these say. Out go a timeline and tables.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from itertools import pairwise

from calltape_analyzer.observing.call_source import CallSource
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reporting.contents import Table, Timeline, cut, table
from calltape_analyzer.text import counted, time_text
from calltape_schema.errors import TapeError
from calltape_schema.records import ModelError

__all__ = ["CallTimes", "calls_text", "ends_timeline", "raised_by_inputs"]

_STEPS, _MAX_KINDS, _SLOWEST, _MAX_FILES = 60, 1000, 10, 200
_SECOND, _MILLISECOND = 1e9, 1e6


class CallTimes:
    """What the records of all calls say of times and errors.

    Args:
        tape: whose calls are read.
    """

    def __init__(self, tape: CallSource) -> None:
        self._tape = tape
        self._is_several = len({part.manifest.tape for part in tape.segments}) > 1
        self._begin = array("Q")
        self._took = array("d")  # milliseconds; -1 if it was not measured
        self._errors: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], str] = {}
        self._places = array("Q")
        self._other_errors = self._unread = 0
        self._read()

    def _read(self) -> None:
        for number, call in enumerate(self._tape.calls.every()):
            try:
                record = call.record
            except TapeError:
                self._unread += 1  # it stands in the damage of the tape
                continue
            took = -1.0 if record.duration_ns is None else record.duration_ns / _MILLISECOND
            self._begin.append(record.time_ns)
            self._took.append(took)
            self._places.append(number)
            if record.error is not None:
                self._add_error(record.error, call)

    def _name(self, call: Call) -> str:
        return call.address if self._is_several else str(call.number)

    def _add_error(self, error: ModelError, call: Call) -> None:
        key = cut(error.type), cut(error.message)
        if key in self._errors or len(self._errors) < _MAX_KINDS:
            self._errors[key] += 1
            self._first.setdefault(key, self._name(call))
        else:
            self._other_errors += 1

    def timeline(self) -> Timeline | None:
        """Calls per step, and their latency; None without calls."""
        if not self._begin:
            return None
        first, last = min(self._begin), max(self._begin)
        steps = min(_STEPS, len(self._begin)) if last > first else 1
        width = (last - first) / steps or 1.0
        took: list[list[float]] = [[] for _ in range(steps)]
        calls = [0] * steps
        for begin, milliseconds in zip(self._begin, self._took, strict=True):
            at = min(int((begin - first) / width), steps - 1)
            calls[at] += 1
            if milliseconds >= 0:
                took[at].append(milliseconds)
        for one in took:
            one.sort()
        measured = any(took)
        edges = tuple(round(at * width / _SECOND, 6) for at in range(steps + 1))
        unread = f"; {counted(self._unread, 'call')} could not be read" if self._unread else ""
        return Timeline(
            begin=time_text(first),
            edges=edges,
            calls=tuple(calls),
            is_rate=False,
            median=tuple(_rounded(one[len(one) // 2]) if one else None for one in took)
            if measured else (),
            most=tuple(_rounded(one[-1]) if one else None for one in took) if measured else (),
            said=f"{calls_text(len(self._begin))} that began from {time_text(first)} to "
            f"{time_text(last)}, read from their records{unread}",
            slowest=self._slowest_table() if measured else None,
        )  # fmt: skip

    def _slowest_table(self) -> Table:
        slowest = heapq.nlargest(_SLOWEST, range(len(self._took)), key=self._took.__getitem__)
        calls = self._tape.calls
        rows = [
            (self._name(calls[self._places[at]]), _rounded(self._took[at]))
            for at in slowest
            if self._took[at] >= 0
        ]
        return table("the calls that took longest", ("call", "ms"), rows)

    def errors(self) -> tuple[str, Table | None]:
        """What calls raised, the most frequent first."""
        calls = sum(self._errors.values()) + self._other_errors
        if not calls:
            return "No call raised.", None
        rows = [(*key, number, self._first[key]) for key, number in self._errors.most_common()]
        said = f"{calls_text(calls)} raised."
        if self._other_errors:
            said += f" {self._other_errors:,} of them raised something else than the first "
            said += f"{_MAX_KINDS:,} kinds of exceptions."
        head = ("exception", "message", "calls", "first call")
        return said, table("exceptions", head, rows)


def calls_text(count: int) -> str:
    """``1 call``, ``2,000 calls``."""
    return "1 call" if count == 1 else f"{count:,} calls"


def _rounded(milliseconds: float) -> float:
    return float(f"{milliseconds:.4g}")


def raised_by_inputs(tape: CallSource) -> str:
    """How many calls raised, by what the ends of files say."""
    raised = [seen for seen in tape.calls.by_inputs() if seen.raised]
    if not raised:
        return "No call raised."
    first = tape.calls.shown(min(seen.first.ref for seen in raised))
    return (
        f"{calls_text(sum(seen.calls for seen in raised))} raised, with "
        f"{counted(len(raised), 'different input')}; the first is call {first}."
    )


def ends_timeline(tape: CallSource) -> Timeline | None:
    """The mean rate of calls in each file, by what their ends say; None if they do not."""
    spans = [(*span, len(one)) for one in tape.segments if (span := one.span_ns) is not None]
    spans = sorted(one for one in spans if one[2])
    if not spans:
        return None
    first, last = spans[0][0], max(end for _, end, _ in spans)
    if len(spans) > _MAX_FILES or any(a[1] > b[0] for a, b in pairwise(spans)):
        # Files of several processes overlap: together they have one rate.
        spans = [(first, last, sum(calls for *_, calls in spans))]
    edges, rates, before = [0.0], [], first
    for begin, end, calls in spans:
        if begin > before:  # between two files
            edges.append((begin - first) / _SECOND)
            rates.append(0.0)
        before = max(end, begin + 1)
        edges.append((max(end, begin + 1) - first) / _SECOND)
        rates.append(_rounded(calls / (max(end - begin, 1) / _SECOND)))
    return Timeline(
        begin=time_text(first),
        edges=tuple(round(edge, 6) for edge in edges),
        calls=tuple(rates),
        is_rate=True,
        median=(),
        most=(),
        said=f"Calls from {time_text(first)} to {time_text(last)}: the mean rate of "
        f"{counted(len(spans), 'file')}, as their ends tell it.",
    )
