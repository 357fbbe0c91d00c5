"""What a person should know of patterns that matched nothing: a mistyped one withholds nothing.

In come the patterns of ``values=``. Out go those that no signature can match, and
words about those that no recorded call matched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from calltape_schema.records import Parameter

__all__ = ["strange_patterns", "unmatched_words"]

_MOST_NAMED = 10
_WITHHELD_NOTHING = (
    "nothing was withheld there. If a name is wrong, values that you meant may be on the tape"
)


def strange_patterns(
    values: Sequence[tuple[str, str]], parameters: Sequence[Parameter]
) -> list[str]:
    """The patterns that match no parameter. A signature with ``**kwargs`` takes any name, so only
    its calls can tell."""
    if not parameters or any(p.kind.startswith("VAR_") for p in parameters):
        return []
    known = {"args", "kwargs", "outputs", *(parameter.name for parameter in parameters)}
    firsts = ((pattern, pattern.partition(".")[0]) for pattern, _ in values)
    return [
        pattern for pattern, first in firsts if not any(fnmatchcase(name, first) for name in known)
    ]


def unmatched_words(
    values: Sequence[tuple[str, str]], unmatched: Collection[str], *, outputs: bool
) -> Iterator[str]:
    """What came of the patterns that no recorded call matched.

    Args:
        values: all patterns, each with what it does.
        unmatched: these.
        outputs: whether outputs are recorded. If not, none can match.
    """
    for has_kept, effect in ((False, _WITHHELD_NOTHING), (True, "nothing was kept for it")):
        patterns = [
            pattern
            for pattern, kept in values
            if pattern in unmatched
            and (kept == "all") is has_kept
            and (outputs or pattern.partition(".")[0] != "outputs")
        ]
        if patterns:
            named = ", ".join(map(repr, patterns[:_MOST_NAMED]))
            if len(patterns) > _MOST_NAMED:
                named += f" and {len(patterns) - _MOST_NAMED} more"
            yield f"no call that was recorded has a value at {named}: {effect}"
