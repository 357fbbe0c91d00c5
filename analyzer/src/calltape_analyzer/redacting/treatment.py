"""What is to become of each fact of a call: one function of its path and its kind.

In come patterns of paths, as a user gives them. Out goes whether a fact stays, another one takes
its place, or nothing stays of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from calltape_analyzer.editing.withholding import names_of_path
from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.signature import Signature
from calltape_schema.privacy import is_exact, matches_whole, specificity
from calltape_schema.remedies import Remedy

__all__ = ["FATES", "KEEP", "SHAPES_ONLY", "Fact", "Fate", "Treatment", "Treatments", "Way"]

Way = Literal["keep", "shapes_only"]
"""What a user may ask for: values stay as they are; or nothing stays of them but the shape."""

KEEP, SHAPES_ONLY = Remedy("keep", "--keep"), Remedy("shapes_only", "--shapes-only")
"""What these are called."""

Fact = Literal["elements", "range", "text", "setting", "number", "key", "enum value", "returned"]
"""A kind of fact. A setting is a number that looks like one from code; other numbers are data."""

Fate = Literal["kept", "replaced", "withheld"]
"""From open to private: as it is; another one (a pseudonym, the range of all calls); only the
length of a text, or nothing."""

FATES: tuple[Fate, ...] = ("kept", "replaced", "withheld")

_FATES: dict[Fact, tuple[Fate, Fate]] = {
    "range": ("replaced", "withheld"),
    "text": ("replaced", "withheld"),
    "number": ("replaced", "withheld"),
    "setting": ("kept", "kept"),
    "key": ("replaced", "replaced"),
}
"""What becomes of a fact by default, and under ``shapes_only``. One without an entry is
withheld."""


class Treatment(NamedTuple):
    """A pattern that a user asked for.

    Attributes:
        way: what is done.
        pattern: of paths, in the language of the recorder's ``values=``.
        names_one: whether the pattern has no wildcards, and so takes settings too.
    """

    way: Way
    pattern: str
    names_one: bool


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

    def __init__(self, asked: Mapping[Way, Sequence[str]], signature: Signature) -> None:
        found = [
            Treatment(way, pattern, is_exact(pattern))
            for way, given in asked.items()
            for pattern in given
        ]
        if not all(one.pattern for one in found):
            raise UsageError("a path that is empty names no value")
        self._latest_first = sorted(found, key=_order, reverse=True)
        self._signature = signature
        self._met: set[str] = set()
        self._withheld: frozenset[str] = frozenset()

    def withholding(self, places: frozenset[str]) -> Treatments:
        """The same, but nothing stays of the values at some places, as the analysis names them.
        Nobody asked for that: it is no option."""
        made = copy.copy(self)
        made._withheld = places
        return made

    def fate(self, path: str, fact: Fact) -> Fate:
        """What becomes of a fact at a path."""
        treatment = self.of(path) if path else None
        by_default, closed = _FATES.get(fact, ("withheld", "withheld"))
        if treatment is None:
            return by_default
        if treatment.way == "keep":
            return "kept"
        return "withheld" if fact == "setting" and treatment.names_one else closed

    def of(self, path: str) -> Treatment | None:
        """The treatment of a path; None if nothing was asked for."""
        return self._of(list(names_of_path(path, self._signature)))

    def keeps_place(self, place: str) -> bool:
        """Whether values stay at a place as the analysis names it: from the name of the parameter
        on."""
        signature = self._signature.complete
        names = [*names_of_path(f"kwargs.{place}", signature)]
        for position, parameter in enumerate(signature.parameters):
            below = place.removeprefix(parameter.name)
            if below == place or below[:1] not in ("", "."):
                continue
            if parameter.kind == "VAR_POSITIONAL":
                first, dot, rest = below[1:].partition(".")
                if first.isdecimal():
                    names.append(f"args.{position + int(first)}{dot}{rest}")
            elif parameter.kind.startswith("POSITIONAL"):
                names.append(f"args.{position}{below}")
        treatment = self._of(names)
        return treatment is not None and treatment.way == "keep"

    def _of(self, names: Sequence[str]) -> Treatment | None:
        matching = [one for one in self._latest_first if matches_whole(one.pattern, names)]
        self._met.update(one.pattern for one in matching)
        for place in self._withheld.intersection(names):
            return Treatment("shapes_only", place, names_one=True)
        return matching[0] if matching else None

    @property
    def unmet(self) -> list[str]:
        """The patterns that named nothing so far."""
        every = (one.pattern for one in reversed(self._latest_first))
        return [pattern for pattern in dict.fromkeys(every) if pattern not in self._met]

    def options(self) -> dict[str, list[str]]:
        """What was asked for, as the history of a tape has it."""
        found: dict[str, list[str]] = {}
        for one in reversed(self._latest_first):
            found.setdefault(one.way, []).append(one.pattern)
        return found

    def __iter__(self) -> Iterator[Treatment]:
        return iter(self._latest_first)


def _order(one: Treatment) -> tuple[int, bool]:
    """The most specific pattern comes last; of equally specific ones the more private."""
    return specificity(one.pattern), one.way == "shapes_only"
