"""What to do about something, in the words of Python and in those of the command.

An option has two spellings: ``overwrite=True`` for who calls functions, ``--force`` for who types
commands. A message has a :class:`Remedy` where it would name one. Who reads the message decides
which words it has: the command says so while it runs, everybody else calls functions.
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
    """What to do. ``str()`` of it is text for the current reader.

    Attributes:
        python: for who calls functions.
        command: for who types commands; empty if there is nothing to say.
    """

    python: str
    command: str

    def __str__(self) -> str:
        return self.command if _reader.get() == "command" else self.python

    def after(self, text: str) -> Remedy:
        """The same after words that hold for both."""
        return Remedy(f"{text}{self.python}", f"{text}{self.command}")

    def then(self, text: str) -> Remedy:
        """The same before words that hold for both."""
        return Remedy(f"{self.python}{text}", f"{self.command}{text}")


@contextmanager
def told_to(reader: Reader) -> Iterator[None]:
    """Words remedies for a reader, as long as the block runs."""
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)


def reader() -> Reader:
    """Who reads now."""
    return _reader.get()
