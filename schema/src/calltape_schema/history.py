"""What was done to a tape after it was recorded: the steps that made it from other tapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from calltape_schema.bounds import MAX_OPTIONS, MAX_PARTS, MAX_SOURCES
from calltape_schema.fields import Count, Many, Record, Short, TapeId

__all__ = [
    "Parts",
    "Redacted",
    "Source",
    "Step",
    "joined_parts",
    "redacted_of_all",
    "redacted_of_steps",
]

Redacted = Literal["all", "part"]
"""How much of a tape was redacted."""

Parts = tuple[tuple[int, int], ...]
"""Runs of numbers, each from its first to its last one."""

_TAKES_ONLY_SOURCES = frozenset({"filter", "merge", "recover", "minimise", "replay", "survey"})
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
        host: that recorded it, if it says so (of a survey only).
        parts: of which of its files a survey has the calls: the first and the last number of each
            run of them, ascending. None for all.
    """

    tape: TapeId
    files: Annotated[Many[Short], Field(max_length=16)] = ()
    other_files: Count = 0
    calls: Count = 0
    left_out: Count | None = None
    first: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0
    redacted: Redacted | None = None
    host: Short | None = None
    parts: Annotated[Many[tuple[Count, Count]], Field(max_length=MAX_PARTS)] | None = None

    def shares(self, tape: bytes, parts: Parts | None) -> bool:
        """Whether some files of a recording are among its own.

        Args:
            tape: the id of the recording.
            parts: the numbers of the files, as :attr:`parts`.
        """
        if tape != self.tape:
            return False
        if self.parts is None or parts is None:
            return True
        return any(a <= last and first <= b for a, b in self.parts for first, last in parts)


def joined_parts(parts: Iterable[tuple[int, int]]) -> Parts:
    """Runs of numbers as a :class:`Source` has them. Of too many runs, those with the smallest gaps
    between them become one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(parts):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    while len(found) > MAX_PARTS:
        at = min(range(1, len(found)), key=lambda at: found[at][0] - found[at - 1][1])
        found[at - 1 : at + 1] = [(found[at - 1][0], found[at][1])]
    return tuple(found)


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
