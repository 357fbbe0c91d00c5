"""What was done to a tape after it was recorded: the steps that made it from other tapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from calltape_schema.bounds import MAX_OPTIONS, MAX_SOURCES, MAX_STEPS
from calltape_schema.fields import Count, Many, Record, Short, TapeId

__all__ = [
    "MAX_OPTIONS",
    "MAX_SOURCES",
    "MAX_STEPS",
    "Redacted",
    "Source",
    "Step",
    "redacted_of_all",
    "redacted_of_steps",
]

Redacted = Literal["all", "part"]
"""How much of a tape was redacted."""

_TAKES_ONLY_SOURCES = frozenset({"filter", "merge", "recover", "minimise", "replay"})
"""Steps whose result has nothing that nobody redacted, if their sources had nothing."""


class Source(Record):
    """A recording that a step read.

    Attributes:
        tape: its id.
        files: the names of its files, without their folders.
        other_files: how many more files it had.
        calls: how many calls these files have, each counted once.
        left_out: how many of these were not wanted; None if the step did not know that when it
            began. What was damaged, the coverage of the result tells.
        first: call ``n`` of it is call ``first + n`` of the result.
        redacted: whether all that was read of it was redacted before, or a part; None for nothing.
    """

    tape: TapeId
    files: Annotated[Many[Short], Field(max_length=16)] = ()
    other_files: Count = 0
    calls: Count = 0
    left_out: Count | None = None
    first: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0
    redacted: Redacted | None = None


class Step(Record):
    """One thing that was done.

    Attributes:
        verb: what was done: ``filter``, ``merge``, ...
        tool, version: what did it.
        tape: the id of the tape that it made.
        options: what was asked for, as pairs of a name and a text.
        sources: the recordings that it read, in the order of the result.
    """

    verb: Short
    tool: Short
    version: Short
    tape: TapeId
    options: Annotated[Many[tuple[Short, Short]], Field(max_length=MAX_OPTIONS)] = ()
    sources: Annotated[Many[Source], Field(max_length=MAX_SOURCES)] = ()

    @model_validator(mode="after")
    def _sources_are_distinct(self) -> Self:
        if len({source.tape for source in self.sources}) != len(self.sources):
            raise ValueError("a step that read the same recording twice")
        return self


def redacted_of_steps(steps: Sequence[Step]) -> Redacted | None:
    """How much of a tape was redacted, as its history says; None for nothing.

    Args:
        steps: the history, the oldest first.
    """
    if not steps:
        return None
    last = steps[-1]
    if last.verb == "redact":
        return "all"
    found = redacted_of_all(source.redacted for source in last.sources)
    if found == "all" and last.verb not in _TAKES_ONLY_SOURCES:
        return "part"  # what another step wrote, nobody redacted: new outputs, or what is not known
    return found


def redacted_of_all(parts: Iterable[Redacted | None]) -> Redacted | None:
    """How much of a whole was redacted, from how much of each part was; None for nothing."""
    found = set(parts)
    if found <= {None}:
        return None
    return "all" if found == {"all"} else "part"
