"""What was done to a tape after it was recorded: the steps that made it from other tapes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from typing_extensions import Self

from calltape_schema.fields import Count, Record, Short, TapeId

__all__ = ["MAX_OPTIONS", "MAX_SOURCES", "MAX_STEPS", "Source", "Step"]

MAX_STEPS = 100
MAX_SOURCES = 1000
MAX_OPTIONS = 100


class Source(Record):
    """A recording that a step read.

    Attributes:
        tape: its id.
        files: the names of its files, without their folders.
        other_files: how many more files it had.
        calls: how many calls were read from it.
        left_out: how many of these the result does not have; None if the step did not know that
            when it began.
        first: call ``n`` of it is call ``first + n`` of the result.
    """

    tape: TapeId
    files: Annotated[tuple[Short, ...], Field(max_length=16)] = ()
    other_files: Count = 0
    calls: Count = 0
    left_out: Count | None = None
    first: Count = 0


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
    options: Annotated[tuple[tuple[Short, Short], ...], Field(max_length=MAX_OPTIONS)] = ()
    sources: Annotated[tuple[Source, ...], Field(max_length=MAX_SOURCES)] = ()

    @model_validator(mode="after")
    def _sources_are_distinct(self) -> Self:
        if len({source.tape for source in self.sources}) != len(self.sources):
            raise ValueError("a step that read the same recording twice")
        return self
