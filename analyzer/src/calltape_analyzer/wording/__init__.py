"""Facts as English sentences. Other code calls ``str()`` on a fact, and never parses the result.

Each kind of fact has a template with its fields, or a function. The name of an option depends on
whether the reader uses Python or the command (:class:`~calltape_schema.remedies.Remedy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calltape_analyzer.facts import Fact
from calltape_analyzer.wording import reasons, rejections, verdicts

__all__ = ["in_words"]

_WORDS: Mapping[type[Fact], Any] = {
    **reasons.WORDS, **rejections.WORDS, **verdicts.WORDS
}  # fmt: skip


def in_words(fact: Fact) -> str:
    """The sentence of a fact."""
    words = _WORDS[type(fact)]
    return str(words.format_map(vars(fact)) if isinstance(words, str) else words(fact))
