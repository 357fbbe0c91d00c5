"""The inputs of a call: its args and kwargs.

In comes the root node of a call's inputs; out go the nodes of its args and of its kwargs.
"""

from __future__ import annotations

import reprlib
from itertools import islice
from typing import Any, NamedTuple

from calltape_analyzer.text import printable_lines

__all__ = ["Inputs"]


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
