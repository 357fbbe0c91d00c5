"""What was tried to export programs, as JSON documents and back: it is saved with them.

It may come from a stranger: it is text and numbers to print, and decides about no call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from calltape_analyzer.facts import MAX_TEXT
from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.variant_verdicts import VariantVerdict

__all__ = ["attempt_documents", "attempts_of", "verdict_documents", "verdicts_of"]


def attempt_documents(attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """Attempts as JSON, without what names rows and sizes of the export."""
    return [
        {name: _cut(value) for name, value in one.model_dump(mode="json").items()}
        | {"by_values": one.by_values}
        for one in attempts
    ]


def attempts_of(documents: Sequence[Any]) -> list[Attempt]:
    """The attempts of :func:`attempt_documents`."""
    return [Attempt.model_validate(document) for document in documents]


def verdict_documents(verdicts: Iterable[VariantVerdict]) -> list[dict[str, Any]]:
    """Verdicts as JSON."""
    return [
        {name: _cut(value) for name, value in one.model_dump(mode="json").items()}
        for one in verdicts
    ]


def verdicts_of(documents: Sequence[Any]) -> list[VariantVerdict]:
    """The verdicts of :func:`verdict_documents`."""
    return [VariantVerdict.model_validate(document) for document in documents]


def _cut(value: Any) -> Any:
    if isinstance(value, list):
        return [_cut(one) for one in value]
    return value[:MAX_TEXT] if isinstance(value, str) else value
