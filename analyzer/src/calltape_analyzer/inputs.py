"""What a call was made with, and where that stands in a tree."""

from __future__ import annotations

from typing import Any, NamedTuple

from calltape_analyzer.printable import printable_lines
from calltape_schema.tree import DictNode, Node, SequenceNode

__all__ = ["Inputs", "parts_of_inputs"]


class Inputs(NamedTuple):
    """What a call was made with: ``model(*args, **kwargs)``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __repr__(self) -> str:
        return printable_lines(f"Inputs(args={self.args!r}, kwargs={self.kwargs!r})")


def parts_of_inputs(root: Node) -> tuple[SequenceNode, DictNode] | None:
    """The args tuple and the kwargs dict, where ``root`` is one of inputs; None otherwise."""
    if not isinstance(root, SequenceNode) or root.kind != "tuple" or len(root.children) != 2:
        return None
    args, kwargs = root.children
    if not isinstance(args, SequenceNode) or args.kind != "tuple":
        return None
    if not isinstance(kwargs, DictNode) or not all(type(key) is str for key in kwargs.keys):
        return None
    plain = root.type is None and args.type is None and kwargs.type is None
    return (args, kwargs) if plain else None
