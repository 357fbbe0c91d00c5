"""A call as bytes, on its way to a file."""

from __future__ import annotations

from typing import Any, NamedTuple

from calltape_schema.summing import CallFacts

__all__ = ["EncodedCall"]


class EncodedCall(NamedTuple):
    """A call as bytes.

    Attributes:
        parts: of its members, for one write.
        size: of the members, in bytes.
        facts: what the summary of its file needs of it.
    """

    parts: list[Any]
    size: int
    facts: CallFacts

    @property
    def number(self) -> int:
        """The call's number."""
        return self.facts.number
