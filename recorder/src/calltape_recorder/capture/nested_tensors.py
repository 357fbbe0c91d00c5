"""Notes nested tensors as objects whose parts are plain tensors.

Those in the jagged layout have a class of their own, by which a walk finds them. Those in the
strided layout look like plain tensors until somebody asks for their shape. So a walk takes them for
plain ones, and what reads the shapes later raises :class:`NestedLeaf`: then
:mod:`calltape_recorder.snapshot.nested_parts` puts the parts in their places. In this way calls
with plain tensors pay nothing for the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from calltape_recorder.capture.scalars import Walk, boolean, integer, tensor
from calltape_schema.nested_tensors import jagged_parts

__all__ = ["NestedLeaf", "check_unnested", "jagged", "nested_token"]

_Tensor = torch.Tensor


class NestedLeaf(Exception):  # noqa: N818 - a signal between two functions, not an error
    """A leaf that seemed to be a plain tensor is a nested one in the strided layout."""


def check_unnested(leaves: Iterable[Any]) -> None:
    """Raises NestedLeaf if one of these is a nested tensor in the strided layout."""
    for leaf in leaves:
        if type(leaf) is _Tensor and leaf.is_nested:
            raise NestedLeaf


def nested_token(names: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The token of a nested tensor; those of its parts follow it."""
    return "nested", tuple(names)


def jagged(walk: Walk, value: Any) -> None:
    """Notes a nested tensor in the jagged layout. If its parts are not those that we know, it is
    noted as a tensor, of which the tape will have neither bytes nor shape."""
    parts = None if walk.context else _parts(value, of_input=walk.nested is None)
    if parts is None or len(walk.tokens) + len(walk.scalars) + len(parts) > walk.limit:
        tensor(walk, value)
        return
    walk.tokens.append(nested_token(parts))
    for part in parts.values():
        if type(part) is bool:
            boolean(walk, part)
        elif type(part) is int:
            integer(walk, part)
        else:
            tensor(walk, part)


def _parts(value: Any, *, of_input: bool) -> dict[str, Any] | None:
    try:
        # Neither a mode of the host nor the class itself sees what is read.
        with torch._C.DisableTorchFunction():
            return jagged_parts(value, of_input=of_input)
    except Exception:  # another torch may have it otherwise
        return None
