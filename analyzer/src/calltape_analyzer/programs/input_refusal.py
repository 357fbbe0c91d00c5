"""Why a model does not take the inputs of a call, and which dimension is in the way."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["InputRefusal", "dimension_in"]


class InputRefusal(NamedTuple):
    """Why a call is refused.

    Attributes:
        reason: in words.
        dimension: the declared dimension that is in the way (``input_ids[1]``), if it is one.
    """

    reason: str
    dimension: str | None = None

    @classmethod
    def of(cls, reason: str) -> InputRefusal:
        """A refusal for a reason that names a dimension, or none."""
        return cls(reason, dimension_in(reason))


# A word is matched once and as a whole: one expression for everything would begin at every dot of
# ``a.a.a`` and read to the end each time.
_WORD = re.compile(r"[\w.]+")
_INDICES = re.compile(r"(?:\[\d+\])+")
# From the first letter that begins a word: ``3.x`` is no name, and ``x`` in it is one.
_NAME_IN = re.compile(r"\b[A-Za-z_][\w.]*")


def dimension_in(reason: str) -> str | None:
    """The dimension that a condition is about, as ``input_ids[1]``; None if it is about none."""
    for word in _WORD.finditer(reason):
        indices = _INDICES.match(reason, word.end())
        named = _NAME_IN.search(word[0]) if indices is not None else None
        if named is not None and indices is not None:
            return named[0] + indices[0]
    return None
