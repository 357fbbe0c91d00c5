"""The reference to a call: what tells one call apart from all other calls of all tapes."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CallRef"]


class CallRef(NamedTuple):
    """Refers to a call: the id of its tape, and the call's number on that tape."""

    tape: bytes
    number: int

    def __str__(self) -> str:
        """Its address: the first 8 digits of the tape's id, and the number (``3f9a01bc:12``)."""
        return f"{self.tape.hex()[:8]}:{self.number}"
