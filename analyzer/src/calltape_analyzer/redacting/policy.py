"""What becomes of each fact of a call: one function of its place and its kind.

Takes patterns of paths, as a user gives them; returns the fate of a fact: it stays, something that
says less takes its place, or nothing stays of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from calltape_analyzer.editing.omission import names_of_path
from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.redacting.vocabulary import is_default
from calltape_schema.privacy import is_exact, is_setting, matches_whole, specificity
from calltape_schema.remedies import Remedy

__all__ = [
    "FATES", "KEEP", "SHAPES_ONLY", "Fact", "Fate", "Policy", "Request",
    "most_private", "number_fact",
]  # fmt: skip

Fact = Literal[
    "elements", "range", "text", "setting", "size", "number", "key", "enum value", "returned"
]  # fmt: skip
"""A kind of fact. A number in an argument is a setting, a size, or else data."""

Fate = Literal["kept", "replaced", "omitted"]
"""From open to private. What replaces a text or a key is an ordinal; a range, that of all calls.
Of a text that is omitted the length stays."""

FATES: tuple[Fate, ...] = ("kept", "replaced", "omitted")

_FATES: Mapping[Fact, tuple[Fate, Fate]] = {
    "range": ("replaced", "omitted"),
    "text": ("replaced", "omitted"),
    "key": ("replaced", "replaced"),
    "setting": ("kept", "kept"),
    "size": ("kept", "omitted"),
}
"""What becomes of a fact by default, and under ``shapes_only``. One without an entry is omitted."""

_Option = Literal["keep", "shapes_only"]
KEEP, SHAPES_ONLY = Remedy("keep", "--keep"), Remedy("shapes_only", "--shapes-only")
"""What the options are called."""


def number_fact(value: object, sizes: Collection[int], defaults: Collection[object]) -> Fact:
    """What a number in an argument is. One that equals a size of a tensor beside it, or the default
    of a parameter, tells nothing that the tape does not tell anyway.

    Args:
        value: a number, or a complex one as it stands on a tape.
        sizes: of the tensors of the same call.
        defaults: of the recorded method's parameters, each with its type.
    """
    parts: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    if all(map(is_setting, parts)) or (type(value), value) in defaults:
        return "setting"
    return "size" if type(value) is int and value in sizes else "number"


def most_private(*fates: Fate) -> Fate:
    """The most private of several fates."""
    return FATES[max(map(FATES.index, fates))]


class Request(NamedTuple):
    """A pattern that a user gave for an option."""

    option: _Option
    pattern: str


class Policy:
    """What becomes of which fact.

    The pattern with the most characters that are no wildcards decides; of equally long ones the
    more private.

    Args:
        signature: names the positional arguments.
        keep: patterns of paths whose values stay, in the language of the recorder's ``values=``.
        shapes_only: patterns of paths of which nothing stays but shapes.

    Attributes:
        signature: the same.
        defaults: of the parameters, each with its type: they are code.

    Raises:
        UsageError: a pattern is empty.
    """

    def __init__(
        self, signature: Signature, keep: Sequence[str] = (), shapes_only: Sequence[str] = ()
    ) -> None:
        self.signature = signature
        defaults = (one.default for one in signature.parameters)
        self.defaults = frozenset((type(one), one) for one in defaults if is_default(one))
        self._given: dict[_Option, Sequence[str]] = {"keep": keep, "shapes_only": shapes_only}
        requests = [Request(o, pattern) for o, given in self._given.items() for pattern in given]
        if not all(one.pattern for one in requests):
            raise UsageError("a path that is empty names no value")
        self._by_precedence = sorted(
            requests,
            key=lambda one: (specificity(one.pattern), one.option == "shapes_only"),
            reverse=True,
        )
        self._matched: set[str] = set()

    def fate(self, path: str, fact: Fact) -> Fate:
        """What becomes of a fact at a path."""
        request = self.request(path)
        by_default, closed = _FATES.get(fact, ("omitted", "omitted"))
        if request is None:
            return by_default
        if request.option == "keep":
            return "kept"
        # A pattern without wildcards says "this is private", and takes settings too.
        return "omitted" if fact == "setting" and is_exact(request.pattern) else closed

    def request(self, path: str) -> Request | None:
        """The pattern that decides about a path; None if there is none."""
        names = list(names_of_path(path, self.signature)) if path else []
        matching = [one for one in self._by_precedence if matches_whole(one.pattern, names)]
        self._matched.update(one.pattern for one in matching)
        return matching[0] if matching else None

    def name(self, path: str) -> str:
        """A path as people read it: from the name of the parameter on."""
        return list(names_of_path(path, self.signature))[-1]

    @property
    def unmatched(self) -> list[str]:
        """The patterns that named nothing so far."""
        every = (pattern for given in self._given.values() for pattern in given)
        return [pattern for pattern in dict.fromkeys(every) if pattern not in self._matched]

    @property
    def options(self) -> dict[str, list[str]]:
        """What was asked for, as the history of a tape has it."""
        return {option: list(given) for option, given in self._given.items() if given}
