"""What came of recorded calls, and which new calls will be served, in words."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from calltape_analyzer.comparison import reports
from calltape_analyzer.comparison.reports import CallsKind
from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.traffic_counters import left_out_note
from calltape_analyzer.programs.attempts import Scope, VariantVerdict
from calltape_analyzer.pytree.nodes import BESIDE, POLICY
from calltape_analyzer.pytree.placeholder import unmade_advice
from calltape_analyzer.reading.segment import UNDER_WAY_WORDS
from calltape_analyzer.text import counted, joined, listed, printable, some_of
from calltape_analyzer.wording.notes import drawing

__all__ = ["WORDS", "last_lines"]

_MAX_LINES = 4
_MAX_NAMED = 4
_MAX_REASON = 240


def last_lines(found: Sequence[VariantVerdict]) -> list[str]:
    """The verdicts on variants, the worst last; of many variants a line for each scope."""
    order: tuple[Scope, ...] = ("general", "recorded sizes only", "rejected")
    if len(found) <= _MAX_LINES:
        return [str(one) for one in sorted(found, key=lambda one: order.index(one.scope))]
    lines: list[str] = []
    for scope in order:
        own = [one for one in found if one.scope == scope]
        if own:
            names = some_of([printable(one.variant) for one in own], _MAX_NAMED)
            lines.append(f"{scope}: {counted(len(own), 'variant')} ({names}): {_new_calls(own[0])}")
    return lines


def _new_calls(found: VariantVerdict) -> str:
    """What a verdict means for new calls."""
    reason = "" if found.reason is None else printable(str(found.reason))
    why = f": {shorten(reason, _MAX_REASON, placeholder=' ...')}" if reason else ""
    if found.scope == "rejected":
        return f"no program{why}"
    if found.scope == "general":
        beside = f" (accepts {found.taken} of {counted(found.tried, 'unrecorded size')})"
        return f"new calls may have any {_listed(found.open)}{beside if found.tried else ''}"
    parts = []
    if found.constant:
        alone = "each for that one only" if found.constant > 1 else "for that one only"
        parts.append(
            f"{found.constant} of {counted(found.sizes, 'recorded size')} "
            f"{_have(found.constant)} a program {alone}"
        )
    if found.rejected:
        parts.append(f"{found.rejected} of {found.sizes} {_have(found.rejected)} none")
    if found.lacks_values:
        parts.append("some recorded values have none")
    if not parts and found.closed:
        free = f", with any {_listed(found.open)}" if found.open else ""
        parts.append(f"new calls need a recorded {_listed(found.closed)}{free}")
    if not parts:
        same = f"no size varied in {counted(found.calls, 'call')}, and new calls need the same"
        parts.append(same)
    return f"{', '.join(parts)}{why}"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _listed(names: Sequence[str]) -> str:
    return printable(joined(names, _MAX_NAMED))


_MAX_PARTS = 3
_CALLS = {
    CallsKind.UNDER_WAY: f"{UNDER_WAY_WORDS}: left out",
    CallsKind.INTERRUPTED: "ended because of an interruption: left out",
    CallsKind.UNTIMED: "may take any time: the tape has no duration",
    CallsKind.CONTIGUOUS: "got contiguous copies of tensors that were recorded in another layout: "
    "the package computes with the strides it was compiled for and does not look at those of its "
    "inputs, so pass it contiguous tensors, or it returns other values",
    CallsKind.IN_ORDER: "reproduced in order, each from the state that the call before left",
}
"""What is said of some calls, after how many they are."""


def _other_outputs(found: reports.OtherOutputs) -> str:
    pairs = (("missing:", found.missing), ("unexpected:", found.unexpected))
    parts = [f"{what} {', '.join(paths)}" for what, paths in pairs if paths]
    return f"other outputs ({'; '.join(parts)})"


def _leaf_difference(found: reports.LeafDifference) -> str:
    if not found.differing:
        return f"{found.path} is {found.got} instead of {found.recorded}"
    return (
        f"{found.path}: {found.differing} of {found.total} elements differ by up to "
        f"{found.max_abs:.3g} (relative {found.max_rel:.3g})"
    )


def _incomparable(found: reports.Incomparable) -> str:
    if not found.type_name:
        return f"{found.path} has no value on the tape, only a dtype and a shape"
    if found.reason == BESIDE:
        return f"{found.path} is an attribute of a {found.type_name} beside what is recorded of it"
    if found.reason == POLICY:
        return f"{found.path} ({found.type_name}) has no value on the tape"
    return f"{found.path} ({found.type_name}) cannot be described: {found.reason}"


def _not_verified(found: reports.NotVerified) -> str:
    what = "not verified" if found.is_any else "nothing was compared"
    # A call that returned None was made for what it does, and a program that does nothing returns
    # None as well.
    nothing = (
        "the model returns nothing of what was recorded"
        if found.is_omitted
        else "the outputs hold no tensor and no value, and what the call did beside returning is "
        "not on the tape"
    )
    shown = "; ".join(map(str, found.first[:_MAX_PARTS])) or nothing
    more = found.total - _MAX_PARTS
    return f"{what}: {shown}{f'; and {more} more' if more > 0 else ''}"


def _other_exception(found: reports.OtherException) -> str:
    if found.raised is None:
        return f"returned, instead of raising {found.recorded}"
    unknown = "" if found.is_known else ", a class that is not loaded here"
    return f"{found.raised}, instead of {found.recorded}{unknown}"


def _arguments_unmade(found: reports.ArgumentsUnmade) -> str:
    pairs = zip(found.classes, found.reasons, strict=False)
    some = listed([f"{name} ({reason})" for name, reason in pairs])
    return f"not tried: its arguments hold objects that cannot be rebuilt: {some}"


def _slow(found: reports.SlowCall) -> str:
    allowed = f"at most {_seconds(found.most)}"
    if found.times is not None:
        allowed += f", which is {found.times:g} times the recorded duration"
    return f"took {_seconds(found.seconds)} in the fastest of {found.runs} runs ({allowed})"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _doubted(found: reports.Doubted) -> str:
    synthetic = " (with synthetic arguments: the tape has no values)" * found.is_synthetic
    missing = f"; the call has {found.missing}" if found.missing else ""
    draws = "; the call draws random numbers" * found.draws
    return f"{found.why}{synthetic}{missing}{draws}"


def _some_calls(note: reports.SomeCalls) -> str:
    if note.kind is CallsKind.RAISED:
        return left_out_note(note.count)
    calls = counted(note.count, "call")
    if note.kind is CallsKind.SYNTHETIC:
        return (
            f"the arguments of {calls} were synthetic, in whole or in part, because the tape lacks "
            "them; output values were not compared"
        )
    if note.kind is CallsKind.CLASS_ONLY:
        which = counted(note.count, "exception")
        return f"of {which} only the class was compared: the message is not on the tape"
    if note.kind is CallsKind.UNWRITTEN:
        return f"{counted(note.count, 'failing call')} could not be written: corrupted"
    return f"{calls} {_CALLS[note.kind]}"


def _calls_unmade(note: reports.CallsUnmade) -> str:
    verb = "was" if note.count == 1 else "were"
    advice = unmade_advice(dict(zip(note.classes, note.reasons, strict=False)))
    return f"{counted(note.count, 'call')} {verb} not tried: {advice}"


def _parts_uncompared(note: reports.PartsUncompared) -> str:
    what = "not on the tape, so compared in dtype and shape only"
    if note.is_omitted:
        what = "not compared, because the model does not return them"
    return f"{what}: {some_of(list(note.paths), 5)}"


def _unsteady(note: reports.Unsteady) -> str:
    why = "the model is not deterministic (dropout, random numbers)"
    if note.generators:
        why = drawing(note.generators)
    return (
        f"call {note.call} gives other values each time it is run: {why}, so no tape can be "
        "reproduced"
    )


WORDS: dict[type[Fact], Any] = {
    VariantVerdict: lambda found: f"{found.scope}: {printable(found.variant)}: {_new_calls(found)}",
    reports.ElementDifference: "recorded {recorded}, got {got}",
    reports.LeafDifference: _leaf_difference,
    reports.OtherOutputs: _other_outputs,
    reports.Incomparable: _incomparable,
    reports.NotVerified: _not_verified,
    reports.NothingCompared: "no value was compared in any call: what came out is empty, or not a "
    "number",
    reports.OtherException: _other_exception,
    reports.NoOutputs: lambda found: (
        "its outputs are not on the tape" + (f" ({printable(found.why)})" if found.why else "")
    ),
    reports.ArgumentsUnmade: _arguments_unmade,
    reports.SlowCall: _slow,
    reports.Doubted: _doubted,
    reports.SomeCalls: _some_calls,
    reports.CallsUnmade: _calls_unmade,
    reports.PartsUncompared: _parts_uncompared,
    reports.Unsteady: _unsteady,
    reports.CorruptedTape: lambda note: (
        f"the tape is corrupted in {counted(note.places, 'place')}: the calls there were left out, "
        "or could not be tried"
    ),
}
