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
    found = [wanted] if wanted in there else [name for name in there if wanted in name]
    if len(found) == 1:
        return found[0]
    if found:
        reason = f"{len(found)} targets have {wanted!r:.100} in their names: {_listed(found)}"
        raise UnknownTargetError(reason, advice="name more of one of them")
    reason = f"no tape here is of a target with {wanted!r:.100} in its name"
    raise UnknownTargetError(reason, advice=f"there are {_listed(there)}")


def common_target(segments: Iterable[Segment]) -> Target | None:
    """The target of several files; None if none of them says what was recorded.

    Raises:
        TargetsError: they are of different classes or methods.
    """
    found: dict[str, tuple[Target, str]] = {}
    for segment in segments:
        target = segment.manifest.target
        if target is not None:
            path = os.path.basename(segment.path)
            found.setdefault(target.name, (target, path))
    if len(found) > 1:
        names = sorted(f"{target_name(target):.200} ({path})" for target, path in found.values())
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
    return next((target for target, _ in found.values()), None)


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
    found: list[CallRange] = []
    for one in given:
        if isinstance(one, Call | CallRef):
            ref = one.ref if isinstance(one, Call) else one
            found.append(CallRange(ref.tape.hex(), ref.number, ref.number))
        elif isinstance(one, int) and not isinstance(one, bool) and one >= 0:
            found.append(CallRange("", one, one))
        elif isinstance(one, str):
            found += [_range(part.strip()) for part in one.split(",")]
        else:
            raise UsageError(f"{one!r:.100} names no call", advice=_ADVICE)
    if is_one and not found:
        raise UsageError("no call is named", advice=_ADVICE)
    return found


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
        raise no_call(some_of([str(r) for r in ranges if r in unmet], _MAX_NAMED))
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
    raise no_call(call.address)


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
    kept = (p for p in order if is_meant is not None and is_meant(segment.numbers[p]))
    made.order = array("Q", kept)
    return made


def no_call(what: str) -> UsageError:
    return UsageError(f"no call {what} on this tape", advice="`calltape ls` shows which there are")
