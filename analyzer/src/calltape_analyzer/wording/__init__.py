"""Facts as sentences. Only edges import it; all else asks for ``str()`` of a fact, and nobody reads
a sentence that was made here.

A kind of fact has a template that names its fields, or a function. What an option is called
depends on who reads (:class:`~calltape_schema.remedies.Remedy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calltape_analyzer.facts import Fact
from calltape_analyzer.wording import notes, reasons, rejections, verdicts

__all__ = ["in_words"]

_WORDS: Mapping[type[Fact], Any] = {
    **notes.WORDS, **reasons.WORDS, **rejections.WORDS, **verdicts.WORDS
}  # fmt: skip


def in_words(fact: Fact) -> str:
    """The sentence of a fact."""
    words = _WORDS[type(fact)]
    return str(words.format_map(vars(fact)) if isinstance(words, str) else words(fact))
