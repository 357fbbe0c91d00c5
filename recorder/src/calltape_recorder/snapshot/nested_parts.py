"""Puts the parts of nested tensors in the strided layout in the places of the nested tensors.

In comes what a walk found, in which they seem to be plain tensors. Out goes the same with an object
for each of them.
"""

from __future__ import annotations

from typing import Any

import torch

from calltape_recorder.capture.nested_tensors import nested_token
from calltape_recorder.capture.walk import Capture
from calltape_recorder.snapshot.large_copies import unseen
from calltape_schema.interning import MAX_NODES
from calltape_schema.nested_tensors import STRIDED_FIELDS, strided_parts

__all__ = ["unfolded"]

_MAX_TOKENS = MAX_NODES - 1000  # as of a walk
_Tensor = torch.Tensor


def unfolded(captured: Capture) -> Capture:
    """A capture of which no leaf is a nested tensor in the strided layout. One whose parts torch
    does not give becomes a placeholder."""
    nested = [type(leaf) is _Tensor and leaf.is_nested for leaf in captured.leaves]
    most = len(captured.tokens) + len(STRIDED_FIELDS) * sum(nested)
    with unseen():
        parts = [
            _parts(leaf) if is_nested and most <= _MAX_TOKENS else None
            for leaf, is_nested in zip(captured.leaves, nested, strict=True)
        ]
    made = _Unfolding(captured.leaves, nested, parts)
    for token in captured.tokens:
        made.take(token)
    return Capture(tuple(made.tokens), made.unfolded, captured.scalars)


def _parts(leaf: Any) -> dict[str, Any] | None:
    try:
        return strided_parts(leaf)
    except Exception:  # another torch may have it otherwise
        return None


class _Unfolding:
    def __init__(
        self, leaves: list[Any], nested: list[bool], parts: list[dict[str, Any] | None]
    ) -> None:
        self._leaves = leaves
        self._nested = nested
        self._parts = parts
        self._met = 0
        self._places: dict[int, int] = {}  # id of a tensor -> its new leaf
        self.tokens: list[Any] = []
        self.unfolded: list[Any] = []

    def take(self, token: Any) -> None:
        kind = token if type(token) is str else token[0]
        if kind not in ("tensor", "ndarray"):
            self.tokens.append(token)
            return
        leaf = self._met if isinstance(token, str) else int(token[1])
        self._met = max(self._met, leaf + 1)
        if not self._nested[leaf]:
            self._put(kind, self._leaves[leaf])
            return
        parts = self._parts[leaf]
        if parts is not None:
            self.tokens.append(nested_token(parts))
            for part in parts.values():
                self._put("tensor", part)
            return
        if self.tokens and type(self.tokens[-1]) is tuple and self.tokens[-1][0] == "beside":
            del self.tokens[-1]  # a placeholder has no attributes
        self.tokens.append(("opaque", _Tensor, "a nested tensor"))

    def _put(self, kind: str, value: Any) -> None:
        count = len(self.unfolded)
        leaf = self._places.setdefault(id(value), count)
        if leaf == count:
            self.unfolded.append(value)
        is_first = kind == "tensor" and leaf == count
        self.tokens.append("tensor" if is_first else (kind, leaf))
