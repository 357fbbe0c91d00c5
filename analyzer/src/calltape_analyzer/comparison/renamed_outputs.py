"""Outputs that a library has renamed since a tape was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["as_recorded"]

_NAMES = (("past_key_values", "cache"), ("cache_params", "cache"))
"""Fields of transformers' outputs until 5.23, and since: docs/decisions/guards-and-verdicts.md."""


def as_recorded(expected: Mapping[str, Any], got: Mapping[str, Any]) -> Mapping[str, Any]:
    """What came out by the names that the tape has for it.

    Args:
        expected: what was recorded, by path: ``.past_key_values.layers.0.keys``.
        got: what came out, by path. A field has its other name only where this side has no field
            of the recorded name, and the tape none of the other.
    """
    recorded, found = _fields(expected), _fields(got)
    for pair in _NAMES:
        for name, other in (pair, pair[::-1]):
            if name in recorded - found and other in found - recorded:
                return {_renamed(path, other, name): value for path, value in got.items()}
    return got


def _fields(leaves: Mapping[str, Any]) -> set[str]:
    return {path.split(".", 2)[1] for path in leaves if path.startswith(".")}


def _renamed(path: str, name: str, other: str) -> str:
    head, dot, rest = path[1:].partition(".")
    return f".{other}{dot}{rest}" if path.startswith(".") and head == name else path
