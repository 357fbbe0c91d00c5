"""A call as bytes, on its way to a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from calltape_schema.framing import BLOCK, blob_name, member_header, padding, record_name
from calltape_schema.gathered import LARGEST_GATHERED
from calltape_schema.summing import CallFacts

__all__ = ["EncodedCall", "member"]

_ZEROS = bytes(BLOCK)


class EncodedCall(NamedTuple):
    """A call as bytes.

    Attributes:
        blob: the content of its blob, in parts; empty without a blob.
        record: the content of its record: bytes, or something of a known length whose bytes are
            made later.
        facts: what the summary of its file needs of it.
        payload: of the record, if the call has no blob.
    """

    blob: list[Any]
    record: Any
    facts: CallFacts
    payload: bytes | None = None

    @property
    def number(self) -> int:
        """The call's number."""
        return self.facts.number

    @property
    def size(self) -> int:
        """The size of its members, in bytes."""
        return _member_bytes(len(self.record)) + (
            _member_bytes(self.facts.tensor_bytes) if self.blob else 0
        )

    @property
    def is_small(self) -> bool:
        """Whether the call is one record that may share a member with others."""
        return self.payload is not None and len(self.payload) <= LARGEST_GATHERED

    def members(self) -> list[Any]:
        """Its members, as parts for one write."""
        parts = member(record_name(self.number), [self.record], len(self.record))
        if self.blob:
            name = blob_name(self.number)
            parts = member(name, self.blob, self.facts.tensor_bytes) + parts
        return parts


def member(name: str, content: Sequence[Any], size: int) -> list[Any]:
    """Header, content and padding of one member, as parts for one write."""
    parts = [member_header(name, size), *content]
    fill = padding(size)
    if fill:
        parts.append(_ZEROS[:fill])
    return parts


def _member_bytes(size: int) -> int:
    return BLOCK + size + padding(size)
