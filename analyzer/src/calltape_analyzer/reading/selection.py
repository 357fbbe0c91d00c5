"""Which calls are meant: by number, by range, or by an address that no other call has.

In comes what a person writes (``3``, ``0..99``, ``3f9a01bc:12``). Out go the files of a tape with
these calls only, or the one call.
"""

from __future__ import annotations

import copy
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.reading.damage import no_single_call
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.text import some_of
from calltape_schema.errors import TapeError

__all__ = ["CallRange", "ChosenCalls", "call_at", "only_calls", "only_known", "ranges_of"]

ChosenCalls: TypeAlias = "str | int | CallRef | Call | Iterable[str | int | CallRef | Call]"
"""Numbers, ranges and addresses of calls: ``"0..99,3f9a01bc:120"``, ``7``, ``[3, 5]``."""

_FORM = re.compile(
    r"(?:(?P<recording>[0-9a-f]{4,32}):)?(?P<first>\d{0,20})(?P<dots>\.\.)?(?P<last>\d{0,20})",
    re.ASCII,
)
_ADVICE = "write numbers, ranges and addresses, such as 3, 0..99 or 3f9a01bc:12"
_MAX_NAMED = 4


class CallRange(NamedTuple):
    """Calls by their numbers.

    Attributes:
        recording: the first hexadecimal digits of a tape id; empty for every recording.
        first, last: the smallest and the largest number, both included; None for no bound.
    """

    recording: str
    first: int
    last: int | None

    def __str__(self) -> str:
        of = f"{self.recording}:" if self.recording else ""
        if self.first == self.last:
            return f"{of}{self.first}"
        return f"{of}{self.first}..{'' if self.last is None else self.last}"

    def is_of(self, tape: bytes) -> bool:
        """Whether the calls of a recording are meant."""
        return tape.hex().startswith(self.recording)

    def has(self, number: int) -> bool:
        """Whether a number is in the range."""
        return self.first <= number and (self.last is None or number <= self.last)


def ranges_of(calls: ChosenCalls) -> list[CallRange]:
    """What is meant by numbers, ranges and addresses.

    Raises:
        UsageError: for anything else, and for a text that names none. A list may be empty.
    """
    is_one = isinstance(calls, str | CallRef) or not isinstance(calls, Iterable)
    given: Iterable[object] = [calls] if is_one else calls  # type: ignore[assignment]
    found = [part for one in given for part in _parsed(one)]
    if is_one and not found:
        raise UsageError("no call is named", advice=_ADVICE)
    return found


def _parsed(one: object) -> list[CallRange]:
    if isinstance(one, Call):
        one = one.ref
    if isinstance(one, CallRef):
        return [CallRange(one.tape.hex(), one.number, one.number)]
    if isinstance(one, int) and not isinstance(one, bool) and one >= 0:
        return [CallRange("", one, one)]
    if isinstance(one, str):
        return [_range(part.strip()) for part in one.split(",")]
    raise UsageError(f"{one!r:.100} names no call", advice=_ADVICE)


def _range(text: str) -> CallRange:
    found = _FORM.fullmatch(text)
    first, last = (found["first"], found["last"]) if found else ("", "")
    if found is None or not (first or last or found["dots"]):
        raise UsageError(f"{text!r:.100} names no call", advice=_ADVICE)
    if not found["dots"]:
        number = int(first + last)
        return CallRange(found["recording"] or "", number, number)
    low, high = int(first or 0), int(last) if last else None
    if high is not None and high < low:
        raise UsageError(f"{text!r:.100} has no call: it ends before it begins", advice=_ADVICE)
    return CallRange(found["recording"] or "", low, high)


def only_calls(segments: Sequence[Segment], ranges: Sequence[CallRange]) -> list[Segment]:
    """The files, each with the calls that are meant. They share what they read from with the given
    ones.

    Raises:
        UsageError: a range has no call.
    """
    unmet = set(ranges)

    def meant_of(tape: bytes) -> Callable[[int], bool] | None:
        own = [r for r in ranges if r.is_of(tape)]
        spans = [r for r in own if r.first != r.last]
        single: dict[int, list[CallRange]] = {}
        for one in own:
            if one.first == one.last:
                single.setdefault(one.first, []).append(one)

        def is_meant(number: int) -> bool:
            having = [*single.get(number, ()), *(r for r in spans if r.has(number))]
            unmet.difference_update(having)
            return bool(having)

        return is_meant if own else None

    meant = {tape: meant_of(tape) for tape in {one.manifest.tape for one in segments}}
    made = [_part(segment, meant[segment.manifest.tape]) for segment in segments]
    if unmet:
        raise _no_call(some_of([str(r) for r in ranges if r in unmet], _MAX_NAMED))
    return made


def only_one(segments: Sequence[Segment], call: Call) -> list[Segment]:
    """The files, without all calls but one of them; no other call is looked at.

    Raises:
        UsageError: the call is not of these files.
    """
    made = [_part(segment, None) for segment in segments]
    for segment in made:
        if segment.path == call.path and segment.manifest.tape == call.ref.tape:
            segment.order = array("Q", [call.position])
            return made
    raise _no_call(call.address)


def only_known(segments: Sequence[Segment], calls: Iterable[CallRef]) -> list[Segment]:
    """The files, each with the calls that are among these."""
    numbers: dict[bytes, set[int]] = {}
    for ref in calls:
        numbers.setdefault(ref.tape, set()).add(ref.number)
    every = ((segment, numbers.get(segment.manifest.tape)) for segment in segments)
    return [_part(segment, own.__contains__ if own else None) for segment, own in every]


def _part(segment: Segment, is_meant: Callable[[int], bool] | None) -> Segment:
    order = segment.order if is_meant is not None else ()
    made = copy.copy(segment)
    kept = (p for p in order if is_meant is not None and is_meant(segment.number(p)))
    made.order = array("Q", kept)
    return made


def call_at(calls: Calls, recordings: Iterable[bytes], address: int | str) -> Call:
    """The call of a number or an address.

    Args:
        calls: of the tape.
        recordings: the ids of its recordings.
        address: a number, or an address as commands print it (``3f9a01bc:12``).

    Raises:
        UsageError: for anything else; no call, or calls of several recordings, have it.
    """
    wanted = ranges_of(address)
    if len(wanted) != 1 or wanted[0].first != wanted[0].last:
        raise UsageError(f"{address!r} is not one call", advice="write 12 or 3f9a01bc:12")
    found: list[Call] = []
    for tape in dict.fromkeys(recordings):
        if wanted[0].is_of(tape):
            try:
                found.append(calls.at(CallRef(tape, wanted[0].first)))
            except TapeError as error:
                if error.kind != "usage":
                    raise
    if len(found) == 1:
        return found[0]
    if not found:
        raise _no_call(str(wanted[0])) if calls.are_single else no_single_call()
    named = some_of([f"{call.address} ({call.path})" for call in found], _MAX_NAMED)
    raise UsageError(
        f"call {wanted[0]} is in several recordings: {named}", advice="write one of these addresses"
    )


def _no_call(what: str) -> UsageError:
    return UsageError(f"no call {what} on this tape", advice="`calltape ls` shows which there are")
