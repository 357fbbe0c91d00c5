"""Which new calls will be served, in words."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from calltape_analyzer.facts import Fact
from calltape_analyzer.programs.variant_verdicts import Scope, VariantVerdict
from calltape_analyzer.text import counted, named, printable, some_of

__all__ = ["WORDS", "last_lines"]

_MAX_LINES = 4
_MAX_NAMED = 4
_MAX_REASON = 240


def last_lines(verdicts: Sequence[VariantVerdict]) -> list[str]:
    """The verdicts, the worst last; of many variants a line for each scope."""
    order: tuple[Scope, ...] = ("general", "recorded sizes only", "rejected")
    if len(verdicts) <= _MAX_LINES:
        return [str(one) for one in sorted(verdicts, key=lambda one: order.index(one.scope))]
    lines: list[str] = []
    for scope in order:
        own = [one for one in verdicts if one.scope == scope]
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
        beside = f" (takes {found.taken} of {found.tried} sizes beside the recorded ones)"
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
    return printable(named(names, _MAX_NAMED))


WORDS: dict[type[Fact], Any] = {
    VariantVerdict: lambda found: f"{found.scope}: {printable(found.variant)}: {_new_calls(found)}"
}
