"""Names that are to differ from each other."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["UniqueNames"]


class UniqueNames:
    """Gives out each name once: what comes again gets a number, from 2 on.

    Names that collide are not tried from the first number on each time: a stranger's tape may have
    thousands of paths that read alike.

    Args:
        names: those that are given out already.
        numbered: how a name and a number are put together.
    """

    def __init__(self, names: Iterable[str] = (), *, numbered: str = "{}_{}") -> None:
        self.names = set(names)
        self._numbered = numbered
        self._next: dict[str, int] = {}

    def add(self, name: str) -> str:
        """The name, or one like it with a number, that is nobody else's from now on."""
        made, count = name, self._next.get(name, 2)
        while made in self.names:
            made, count = self._numbered.format(name, count), count + 1
            self._next[name] = count
        self.names.add(made)
        return made
