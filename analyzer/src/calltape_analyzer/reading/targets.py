"""Which models the files of a place are tapes of.

In come files, and what somebody calls a target. Out goes its whole name, or an error that lists
the targets that there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.text import some_of
from calltape_schema.errors import TapeError
from calltape_schema.records import Target
from calltape_schema.remedies import Remedy

__all__ = [
    "UNKNOWN",
    "TargetsError",
    "UnknownTargetError",
    "chosen_target",
    "common_target",
    "outside_words",
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
