"""Which calls and which targets are meant: calls by number, by range, or by an address that no
other call has; targets by a part of their names that no other one has.

Takes what a person writes (``3``, ``0..99``, ``3f9a01bc:12``); returns the files of a tape with
these calls only, or the one call.
"""

from __future__ import annotations

import copy
import os
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.text import some_of
from calltape_schema.errors import TapeError
from calltape_schema.records import Target
from calltape_schema.remedies import Remedy

__all__ = [
    "ChosenCalls",
    "TargetsError",
    "UnknownTargetError",
    "chosen_target",
    "common_target",
    "no_call",
    "only_calls",
    "only_known",
    "outside_words",
    "ranges_of",
    "target_name",
]

UNKNOWN = "unknown"
"""The name of the target of tapes that do not say what was recorded."""

_MOST_NAMED = 20


class TargetsError(TapeError):
    """Files of several targets were to be one tape."""


class UnknownTargetError(UsageError):
    """No target, or several, have the name that somebody gave."""


def target_name(target: Target | None) -> str:
    """The class and the method, such as ``app:Llama.forward``; of a function its module."""
    return UNKNOWN if target is None else target.name


def chosen_target(names: Iterable[str], wanted: str) -> str:
    """The target that somebody means.

    Args:
        names: of the targets that there are.
        wanted: one of them, or a part that only one of them has.

    Raises:
        UnknownTargetError: none of them has it, or several have; it lists the targets.
    """
    there = sorted(set(names))
    matching = [wanted] if wanted in there else [name for name in there if wanted in name]
    if len(matching) == 1:
        return matching[0]
    if matching:
        reason = f"{len(matching)} targets have {wanted!r:.100} in their names: {_listed(matching)}"
        raise UnknownTargetError(reason, advice="name more of one of them")
    reason = f"no tape here is of a target with {wanted!r:.100} in its name"
    raise UnknownTargetError(reason, advice=f"there are {_listed(there)}")


def common_target(segments: Iterable[Segment]) -> Target | None:
    """The target of several files; None if none of them says what was recorded.

    Raises:
        TargetsError: they are of different classes or methods.
    """
    targets: dict[str, tuple[Target, str]] = {}
    for segment in segments:
        target = segment.manifest.target
        if target is not None:
            path = os.path.basename(segment.path)
            targets.setdefault(target.name, (target, path))
    if len(targets) > 1:
        names = sorted(f"{target_name(target):.200} ({path})" for target, path in targets.values())
        raise TargetsError(
            "usage",
            f"these are tapes of different models: {some_of(names, _MOST_NAMED)}",
            advice=Remedy(
                "open one of them with target=, a name or a part of it; recordings(path) says what "
                "there is",
                "choose one of them with --target, a name or a part of it; `calltape info` says "
                "what there is",
            ),
        )
    return next((target for target, _ in targets.values()), None)


def outside_words(names: Sequence[str]) -> str:
    """What follows from the variables that the code of a target reads."""
    are = "is no argument" if len(names) == 1 else "are no arguments"
    return (
        f"its code reads {_listed(names)}, which {are}: what an engine sets there for a call (the "
        "state of a step, metadata of attention, a cache) is not on a tape, and without it the "
        "model may fail, or return something else"
    )


def _listed(names: Sequence[str]) -> str:
    return some_of([name[:200] for name in names], _MOST_NAMED)


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
        recording = f"{self.recording}:" if self.recording else ""
        if self.first == self.last:
            return f"{recording}{self.first}"
        return f"{recording}{self.first}..{'' if self.last is None else self.last}"

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
    given_calls: Iterable[object] = [calls] if is_one else calls  # type: ignore[assignment]
    ranges: list[CallRange] = []
    for given_call in given_calls:
        if isinstance(given_call, Call | CallRef):
            ref = given_call.ref if isinstance(given_call, Call) else given_call
            ranges.append(CallRange(ref.tape.hex(), ref.number, ref.number))
        elif isinstance(given_call, int) and not isinstance(given_call, bool) and given_call >= 0:
            ranges.append(CallRange("", given_call, given_call))
        elif isinstance(given_call, str):
            ranges += [_range(part.strip()) for part in given_call.split(",")]
        else:
            raise UsageError(f"{given_call!r:.100} names no call", advice=_ADVICE)
    if is_one and not ranges:
        raise UsageError("no call is named", advice=_ADVICE)
    return ranges


def _range(text: str) -> CallRange:
    match = _FORM.fullmatch(text)
    first, last = (match["first"], match["last"]) if match else ("", "")
    if match is None or not (first or last or match["dots"]):
        raise UsageError(f"{text!r:.100} names no call", advice=_ADVICE)
    if not match["dots"]:
        number = int(first + last)
        return CallRange(match["recording"] or "", number, number)
    low, high = int(first or 0), int(last) if last else None
    if high is not None and high < low:
        raise UsageError(f"{text!r:.100} has no call: it ends before it begins", advice=_ADVICE)
    return CallRange(match["recording"] or "", low, high)


def only_calls(segments: Sequence[Segment], ranges: Sequence[CallRange]) -> list[Segment]:
    """The files, each with the calls that are meant. They share what they read from with the given
    ones.

    Raises:
        UsageError: a range has no call.
    """
    unmet = set(ranges)

    def meant_of(tape: bytes) -> Callable[[int], bool] | None:
        ranges_here = [r for r in ranges if r.is_of(tape)]
        spans = [r for r in ranges_here if r.first != r.last]
        single: dict[int, list[CallRange]] = {}
        for range_ in ranges_here:
            if range_.first == range_.last:
                single.setdefault(range_.first, []).append(range_)

        def is_meant(number: int) -> bool:
            having = [*single.get(number, ()), *(r for r in spans if r.has(number))]
            unmet.difference_update(having)
            return bool(having)

        return is_meant if ranges_here else None

    is_meant_on = {tape: meant_of(tape) for tape in {segment.manifest.tape for segment in segments}}
    parts = [_part(segment, is_meant_on[segment.manifest.tape]) for segment in segments]
    if unmet:
        raise no_call(some_of([str(r) for r in ranges if r in unmet], _MAX_NAMED))
    return parts


def only_one(segments: Sequence[Segment], call: Call) -> list[Segment]:
    """The files, without all calls but one of them; no other call is looked at.

    Raises:
        UsageError: the call is not of these files.
    """
    parts = [_part(segment, None) for segment in segments]
    for segment in parts:
        if segment.path == call.path and segment.manifest.tape == call.ref.tape:
            segment.order = array("Q", [call.position])
            return parts
    raise no_call(call.address)


def only_known(segments: Sequence[Segment], calls: Iterable[CallRef]) -> list[Segment]:
    """The files, each with the calls that are among these."""
    numbers: dict[bytes, set[int]] = {}
    for ref in calls:
        numbers.setdefault(ref.tape, set()).add(ref.number)
    numbered = ((segment, numbers.get(segment.manifest.tape)) for segment in segments)
    return [_part(segment, chosen.__contains__ if chosen else None) for segment, chosen in numbered]


def _part(segment: Segment, is_meant: Callable[[int], bool] | None) -> Segment:
    order = segment.order if is_meant is not None else ()
    part = copy.copy(segment)
    positions = (p for p in order if is_meant is not None and is_meant(segment.numbers[p]))
    part.order = array("Q", positions)
    return part


def no_call(what: str) -> UsageError:
    return UsageError(f"no call {what} on this tape", advice="`calltape ls` shows which there are")
