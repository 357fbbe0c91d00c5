"""The inputs of a call: its args and kwargs.

In comes the root node of a call's inputs; out go the nodes of its args and of its kwargs.
"""

from __future__ import annotations

import reprlib
from itertools import islice
from typing import Any, NamedTuple

from calltape_analyzer.text import printable_lines
from calltape_schema.tree import DictNode, Node, SequenceNode

__all__ = ["Inputs", "parts_of_inputs"]


class Inputs(NamedTuple):
    """The arguments of a call, ``model(*args, **kwargs)``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __repr__(self) -> str:
        shown = _Short()
        return printable_lines(
            f"Inputs(args={shown.repr(self.args)}, kwargs={shown.repr(self.kwargs)})"
        )


class _Short(reprlib.Repr):
    """Like ``repr()``, except that long values are cut: a tape may refer to one long text in
    thousands of places."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 100
        self.maxtuple = self.maxlist = self.maxset = self.maxfrozenset = self.maxdeque = 1000
        self.maxdict = 1000
        self.maxstring = self.maxother = self.maxlong = 10_000

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 1024 else f"<int of {x.bit_length()} bits>"

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x) if len(x) <= self.maxother else f"{x[: self.maxother]!r}..."

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        pairs = [  # reprlib would sort the keys
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in islice(x.items(), self.maxdict)
        ]
        return f"{{{', '.join([*pairs, '...'] if len(x) > self.maxdict else pairs)}}}"


def parts_of_inputs(root: Node) -> tuple[SequenceNode, DictNode] | None:
    """The nodes of the args tuple and the kwargs dict; None if ``root`` is no root of inputs."""
    if not isinstance(root, SequenceNode) or root.kind != "tuple" or len(root.children) != 2:
        return None
    args, kwargs = root.children
    if not isinstance(args, SequenceNode) or args.kind != "tuple":
        return None
    if not isinstance(kwargs, DictNode) or not {*map(type, kwargs.keys)} <= {str}:
        return None
    plain = root.type is None and args.type is None and kwargs.type is None
    return (args, kwargs) if plain else None
