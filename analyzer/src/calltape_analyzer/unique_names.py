"""Names, each of which is given once."""

from __future__ import annotations

__all__ = ["UniqueNames"]


class UniqueNames:
    """Numbers the names that were given before, without a look at all of them for each.

    Args:
        numbered: how a name and a number are put together, as ``"{} ({})"``.
    """

    def __init__(self, numbered: str) -> None:
        self._numbered = numbered
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def of(self, name: str) -> str:
        """The name, with a number where it is taken."""
        made, count = name, self._counts.get(name, 1)
        while made in self._taken:
            count += 1
            made = self._numbered.format(name, count)
        self._counts[name] = count
        self._taken.add(made)
        return made
