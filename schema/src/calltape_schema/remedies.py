"""Advice in two wordings: for callers in Python, and for users of the command.

An option has two spellings: ``overwrite=True`` in Python, ``--force`` on the command line. A
message that names an option contains a :class:`Remedy`. The reader decides the wording: the command
sets it while it runs, and otherwise the reader calls functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias

Reader: TypeAlias = Literal["python", "command"]

_reader: ContextVar[Reader] = ContextVar("reader", default="python")


@dataclass(frozen=True)
class Remedy:
    """Advice; ``str()`` gives the text for the current reader.

    Attributes:
        python: for callers in Python.
        command: for users of the command; empty if there is nothing to say.
    """

    python: str
    command: str

    def __str__(self) -> str:
        return self.command if _reader.get() == "command" else self.python

    def after(self, text: str) -> Remedy:
        """The same advice after a text for both readers."""
        return Remedy(f"{text}{self.python}", f"{text}{self.command}")

    def then(self, text: str) -> Remedy:
        """The same advice before a text for both readers."""
        return Remedy(f"{self.python}{text}", f"{self.command}{text}")


@contextmanager
def told_to(reader: Reader) -> Iterator[None]:
    """Words remedies for this reader while the block runs."""
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)


def reader() -> Reader:
    """The current reader."""
    return _reader.get()
