"""What is to become of the values at each path of a call.

In come patterns of paths, as a user gives them. Out goes the treatment of a path.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from calltape_analyzer.editing.withholding import names_of_path
from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.signature import Signature
from calltape_schema.privacy import is_exact, matches_whole, specificity

__all__ = ["Treatment", "Treatments", "Way"]

Way = Literal["keep", "hash", "permute", "noise", "shapes_only"]
"""What becomes of a value, from the most open way to the most private one: it stays; it gets a
pseudonym; whole numbers are permuted; floats are drawn anew in the same range; or nothing stays of
it but its shape."""


class Treatment:
    """The patterns of one way that a user asked for.

    Attributes:
        way: what is done.
        pattern: of paths, in the language of the recorder's ``values=``.
        names_one: whether the pattern has no wildcards, and so takes numbers too.
    """

    __slots__ = ("names_one", "pattern", "way")

    def __init__(self, way: Way, pattern: str, *, names_one: bool | None = None) -> None:
        self.way: Way = way
        self.pattern = pattern
        self.names_one = is_exact(pattern) if names_one is None else names_one

    def order(self) -> tuple[int, int]:
        """The most specific pattern comes last; of equally specific ones the most private."""
        return specificity(self.pattern), get_args(Way).index(self.way)

    def matches(self, names: Sequence[str]) -> bool:
        """Whether the pattern is that of a path with these names, or of one above it."""
        return matches_whole(self.pattern, names)


class Treatments:
    """All that was asked for.

    The pattern with the most characters that are no wildcards decides; of equally long ones the
    more private.

    Args:
        asked: for each way its patterns.
        signature: names the positional arguments.

    Raises:
        UsageError: a pattern is empty.
    """

    def __init__(self, asked: dict[Way, Sequence[str]], signature: Signature) -> None:
        found = [Treatment(way, pattern) for way, given in asked.items() for pattern in given]
        if not all(one.pattern for one in found):
            raise UsageError("a path that is empty names no value")
        self._latest_first = sorted(found, key=Treatment.order, reverse=True)
        self._signature = signature
        self._met: set[str] = set()
        self._withheld: frozenset[str] = frozenset()

    def withholding(self, places: frozenset[str]) -> Treatments:
        """The same, but nothing stays of the values at some places, as the analysis names them.
        Nobody asked for that: it is no option."""
        made = copy.copy(self)
        made._withheld = places
        return made

    def of(self, path: str) -> Treatment | None:
        """The treatment of a path; None if nothing was asked for."""
        return self._of(list(names_of_path(path, self._signature)))

    def of_place(self, place: str) -> Treatment | None:
        """The same of a place as the analysis names it: from the name of the parameter on."""
        names = [place, f"kwargs.{place}"]
        for position, parameter in enumerate(self._signature.parameters):
            below = place.removeprefix(parameter.name)
            if below != place and below[:1] in ("", "."):
                names.append(f"args.{position}{below}")
        return self._of(names)

    def _of(self, names: Sequence[str]) -> Treatment | None:
        matching = [one for one in self._latest_first if one.matches(names)]
        self._met.update(one.pattern for one in matching)
        for place in self._withheld.intersection(names) if self._withheld else ():
            return Treatment("shapes_only", place, names_one=True)
        return matching[0] if matching else None

    @property
    def unmet(self) -> list[str]:
        """The patterns that named nothing so far."""
        every = (one.pattern for one in reversed(self._latest_first))
        return [pattern for pattern in dict.fromkeys(every) if pattern not in self._met]

    def options(self) -> dict[str, Any]:
        """What was asked for, as the history of a tape has it."""
        found: dict[str, Any] = {}
        for one in reversed(self._latest_first):
            found.setdefault(one.way, []).append(one.pattern)
        return found

    def has(self, way: Way) -> bool:
        """Whether anything is asked to be treated in this way."""
        return any(one.way == way for one in self._latest_first)

    def __iter__(self) -> Iterator[Treatment]:
        return iter(self._latest_first)
