"""Why a call is rejected, in words."""

from __future__ import annotations

from calltape_analyzer.foreign_errors import AssertionFailed, OtherAssertion
from calltape_analyzer.programs import reasons
from calltape_analyzer.pytree.classes import is_never_made
from calltape_analyzer.pytree.placeholder import LEFT_OUT
from calltape_analyzer.text import printable
from calltape_analyzer.variants.facts import ExcludedSize, FixedSize, NewZeros, OtherVariant
from calltape_analyzer.wording.guards import assertion_in_words, guard_in_words
from calltape_schema.remedies import Remedy

__all__ = ["WORDS"]

_MAX_NAME = 200
_MAX_REASON = 160
_MAX_ERROR = 240
_FOR_CALLS = "the program is for calls in which"


def _excluded(found: ExcludedSize) -> str:
    what = "values" if found.is_int else "sizes"
    return f"{found.place} is {found.got}; it is for other {what}"


def _zeros(found: NewZeros) -> str:
    are = "is" if len(found.places) == 1 else "are"
    told = f"{', '.join(found.places)} {are} 0, which was never recorded"
    return told if found.why is None else f"{told}; {found.why}"


def _unknown_class(found: reasons.UnknownClass) -> str:
    shown = printable(found.type_name[:_MAX_NAME])
    told = f"{found.argument} {'is' if found.is_whole else 'holds'} a Placeholder for {shown}"
    if is_never_made(found.type_name):
        return f"{told}, of which no object is made; pass an object of that class"
    short = shown.rpartition(":")[2]
    how = Remedy(f"load_programs(..., classes=[{short}])", f"pass --classes {shown}")
    return f"{told}, which was not known when the programs were loaded; {how}"


def _range(found: reasons.OutOfRange) -> str:
    bound = f"least {found.least}" if found.least is not None else f"most {found.most}"
    return f"{found.place} is {found.got}; the program takes at {bound}"


def _value(found: reasons.OtherValue) -> str:
    own = "another" if found.wanted is None else found.wanted
    return f"{found.place} is {found.got}; this program has {own}"


def _unverified(found: reasons.Unverified) -> str:
    only = "" if found.only is None else f"; it {found.only}"
    if found.recorded:
        return f"calls of these sizes were recorded, and it was not verified with them{only}"
    return f"it was not verified at these sizes{only}"


def _not_exported(found: reasons.NotExported) -> str:
    why = str(found.why)
    cut = why if len(why) <= _MAX_REASON else f"{why[:_MAX_REASON]}…"
    return f"not exported: {cut}"


def _assertion(found: AssertionFailed) -> str:
    place = f": {found.place}" if found.place else ""
    return f"{_FOR_CALLS} {assertion_in_words(found.condition)}{place}"


WORDS = {
    FixedSize: "{place} is {got}; it was {wanted} in every recorded call of this variant",
    OtherVariant: "not {condition}",
    ExcludedSize: _excluded,
    NewZeros: _zeros,
    reasons.OtherCall: "{difference}",
    reasons.UnknownClass: _unknown_class,
    reasons.LeftOut: lambda found: f"{', '.join(found.names)} is passed, which {LEFT_OUT} left out",
    reasons.OtherDtype: "{place} is {got}; the {by} takes {wanted}",
    reasons.OtherRank: "{place} has rank {got}; the {by} takes {wanted}",
    reasons.OtherSize: "{place} is {got}; the {by} takes {wanted}",
    reasons.UnequalSizes: "{place} is {got}; the program wants {wanted}, as elsewhere",
    reasons.UnequalNames: "{place} is {got} and {other} is {wanted}, both {name}",
    reasons.OutOfRange: _range,
    reasons.GuardFails: lambda found: f"{_FOR_CALLS} {guard_in_words(found.guard, found.named)}",
    reasons.ByTrace: "{condition} (a condition of its trace)",
    reasons.OtherValue: _value,
    reasons.SharesMemory: "{place} has memory of the model, by its {own}, and the model returns "
    "something else than for a copy",
    reasons.Unverified: _unverified,
    reasons.RunFailed: lambda found: str(found.why)[:_MAX_ERROR],
    reasons.NotExported: _not_exported,
    reasons.NoProgram: lambda found: "; ".join(
        f"{name}: {why}" for name, why in zip(found.names, found.whys, strict=False)
    ),
    reasons.FilledState: "the call has a filled {name}, which is not an input of the model",
    AssertionFailed: _assertion,
    OtherAssertion: "{said}",
}
