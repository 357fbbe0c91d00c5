"""Verdicts on replayed calls, and on the new calls that a variant's programs accept, as
sentences."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from calltape_analyzer.comparison import reports
from calltape_analyzer.comparison.reports import CallsKind
from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.traffic_counters import left_out_note
from calltape_analyzer.programs.attempts import Scope, VariantVerdict
from calltape_analyzer.programs.notes import Unwritten
from calltape_analyzer.pytree.nodes import BESIDE, POLICY
from calltape_analyzer.pytree.placeholder import unmade_advice
from calltape_analyzer.reading.segment import UNDER_WAY_WORDS
from calltape_analyzer.text import counted, joined, listed, printable, some_of
from calltape_analyzer.wording.reasons import draws_text

__all__ = ["WORDS", "last_lines"]

_MAX_LINES = 4
_MAX_NAMED = 4
_MAX_REASON = 240


def last_lines(variant_verdicts: Sequence[VariantVerdict]) -> list[str]:
    """The verdicts on variants, the worst last. Many variants get one line per scope."""
    order: tuple[Scope, ...] = ("general", "recorded sizes only", "results only", "rejected")
    if len(variant_verdicts) <= _MAX_LINES:
        return [
            str(verdict)
            for verdict in sorted(variant_verdicts, key=lambda verdict: order.index(verdict.scope))
        ]
    lines: list[str] = []
    for scope in order:
        variants = [verdict for verdict in variant_verdicts if verdict.scope == scope]
        if variants:
            names = some_of([printable(verdict.variant) for verdict in variants], _MAX_NAMED)
            count, calls = counted(len(variants), "variant"), _new_calls(variants[0])
            lines.append(f"{scope}: {count} ({names}): {calls}")
    return lines


def _new_calls(fact: VariantVerdict) -> str:
    """What a verdict means for calls that were not recorded."""
    reason = "" if fact.reason is None else printable(str(fact.reason))
    why = f": {shorten(reason, _MAX_REASON, placeholder=' ...')}" if reason else ""
    if fact.scope == "rejected":
        return f"no program{why}"
    if isinstance(fact.reason, Unwritten):
        return f"{_sizes(fact)}, and the program {reason}"
    return f"{_sizes(fact)}{why}"


def _sizes(fact: VariantVerdict) -> str:
    """Which sizes new calls may have."""
    parts = []
    if fact.constant:
        alone = "each for that one only" if fact.constant > 1 else "for that one only"
        parts.append(
            f"{fact.constant} of {counted(fact.sizes, 'recorded size')} "
            f"{_have(fact.constant)} a program {alone}"
        )
    if fact.rejected:
        parts.append(f"{fact.rejected} of {fact.sizes} {_have(fact.rejected)} none")
    if fact.lacks_values:
        parts.append("some recorded values have none")
    if not parts and fact.closed:
        free = f", with any {_listed(fact.open)}" if fact.open else ""
        parts.append(f"new calls need a recorded {_listed(fact.closed)}{free}")
    if not parts and fact.open:
        unrecorded = f" (accepts {fact.taken} of {counted(fact.tried, 'unrecorded size')})"
        parts.append(
            f"new calls may have any {_listed(fact.open)}{unrecorded if fact.tried else ''}"
        )
    if not parts:
        unvaried = f"no size varied in {counted(fact.calls, 'call')}, and new calls need the same"
        parts.append(unvaried)
    return ", ".join(parts)


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
"""The texts after the number of calls."""


def _other_outputs(fact: reports.OtherOutputs) -> str:
    pairs = (("missing:", fact.missing), ("unexpected:", fact.unexpected))
    parts = [f"{what} {', '.join(paths)}" for what, paths in pairs if paths]
    return f"other outputs ({'; '.join(parts)})"


def _leaf_difference(fact: reports.LeafDifference) -> str:
    if not fact.differing:
        return f"{fact.path} is {fact.got} instead of {fact.recorded}"
    return (
        f"{fact.path}: {fact.differing} of {fact.total} elements differ by up to "
        f"{fact.max_abs:.3g} (relative {fact.max_rel:.3g})"
    )


def _incomparable(fact: reports.Incomparable) -> str:
    if not fact.type_name:
        return f"{fact.path} has no value on the tape, only a dtype and a shape"
    if fact.reason == BESIDE:
        return f"{fact.path} is an attribute of a {fact.type_name} beside what is recorded of it"
    if fact.reason == POLICY:
        return f"{fact.path} ({fact.type_name}) has no value on the tape"
    return f"{fact.path} ({fact.type_name}) cannot be described: {fact.reason}"


def _not_verified(fact: reports.NotVerified) -> str:
    what = "not verified" if fact.is_any else "nothing was compared"
    # A call that returns None is made for its side effects, and a program without any also returns
    # None.
    nothing = (
        "the model returns nothing of what was recorded"
        if fact.is_omitted
        else "the outputs hold no tensor and no value, and what the call did beside returning is "
        "not on the tape"
    )
    shown = "; ".join(map(str, fact.first[:_MAX_PARTS])) or nothing
    more = fact.total - _MAX_PARTS
    return f"{what}: {shown}{f'; and {more} more' if more > 0 else ''}"


def _other_exception(fact: reports.OtherException) -> str:
    if fact.raised is None:
        return f"returned, instead of raising {fact.recorded}"
    unknown = "" if fact.is_known else ", a class that is not loaded here"
    return f"{fact.raised}, instead of {fact.recorded}{unknown}"


def _arguments_unmade(fact: reports.ArgumentsUnmade) -> str:
    pairs = zip(fact.classes, fact.reasons, strict=False)
    some = listed([f"{name} ({reason})" for name, reason in pairs])
    return f"not tried: its arguments hold objects that cannot be rebuilt: {some}"


def _slow(fact: reports.SlowCall) -> str:
    allowed = f"at most {_seconds(fact.most)}"
    if fact.times is not None:
        allowed += f", which is {fact.times:g} times the recorded duration"
    return f"took {_seconds(fact.seconds)} in the fastest of {fact.runs} runs ({allowed})"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _doubted(fact: reports.Doubted) -> str:
    synthetic = " (with synthetic arguments: the tape has no values)" * fact.is_synthetic
    missing = f"; the call has {fact.missing}" if fact.missing else ""
    draws = "; the call draws random numbers" * fact.draws
    return f"{fact.why}{synthetic}{missing}{draws}"


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
        why = draws_text(note.generators)
    return (
        f"call {note.call} gives other values each time it is run: {why}, so no tape can be "
        "reproduced"
    )


WORDS: dict[type[Fact], Any] = {
    VariantVerdict: lambda fact: f"{fact.scope}: {printable(fact.variant)}: {_new_calls(fact)}",
    reports.ElementDifference: "recorded {recorded}, got {got}",
    reports.LeafDifference: _leaf_difference,
    reports.OtherOutputs: _other_outputs,
    reports.Incomparable: _incomparable,
    reports.NotVerified: _not_verified,
    reports.NothingCompared: "no value was compared in any call: what came out is empty, or not a "
    "number",
    reports.OtherException: _other_exception,
    reports.NoOutputs: lambda fact: (
        "its outputs are not on the tape" + (f" ({printable(fact.why)})" if fact.why else "")
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
