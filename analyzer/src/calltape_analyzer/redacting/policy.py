"""The fate of each fact on a tape by its path and kind: kept, replaced or omitted.

Private texts, keys and threads are replaced by ordinals: the first text on a tape becomes ``text
1``. Ordinals show which values are equal. Of a text they also show whether it is a name, a word or
prose, because the analysis depends on it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from calltape_analyzer.editing.omission import names_of_path, shown_path
from calltape_analyzer.errors import RedactionError, UsageError
from calltape_analyzer.observing.groups import looks_like_name, may_be_switch
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.redacting.vocabulary import is_default
from calltape_schema.privacy import is_exact, is_setting, matches_whole, specificity
from calltape_schema.remedies import Remedy

__all__ = [
    "FATES",
    "KEEP",
    "SHAPES_ONLY",
    "Fate",
    "Ordinals",
    "Policy",
    "PrivateFact",
    "Request",
    "is_ordinal",
    "most_private",
    "number_fact",
]  # fmt: skip

PrivateFact = Literal[
    "elements", "range", "text", "setting", "size", "number", "key", "enum value", "returned"
]  # fmt: skip
"""A kind of fact. A number in an argument is a setting, a size, or data (``number``)."""

Fate = Literal["kept", "replaced", "omitted"]
"""What happens to a fact. Ordinals replace texts and keys, and the range over all calls replaces
that of one call. An omitted text leaves its length."""

FATES: tuple[Fate, ...] = ("kept", "replaced", "omitted")
"""From open to private."""

_FATES: Mapping[PrivateFact, tuple[Fate, Fate]] = {
    "range": ("replaced", "omitted"),
    "text": ("replaced", "omitted"),
    "key": ("replaced", "replaced"),
    "setting": ("kept", "kept"),
    "size": ("kept", "omitted"),
}
"""The fates of a fact by default and under ``shapes_only``. Facts without an entry are omitted."""

_Option = Literal["keep", "shapes_only"]
KEEP, SHAPES_ONLY = Remedy("keep", "--keep"), Remedy("shapes_only", "--shapes-only")

_MAX_ORDINALS = 2**20
"""These take about 200 MB of memory."""
_ORDINAL = re.compile(r"text ?[1-9]\d{0,6}|~[1-9]\d{0,6}|\([1-9]\d{0,6}\)", re.ASCII)


def number_fact(value: object, sizes: Collection[int], defaults: Collection[object]) -> PrivateFact:
    """The kind of a number in an argument. A number that equals a size of a tensor of the same
    call, or the default of a parameter, reveals nothing new.

    Args:
        value: a number, or the two parts of a complex one.
        sizes: the sizes of the tensors of the same call.
        defaults: the defaults of the recorded method's parameters, as pairs of type and value.
    """
    parts: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    if all(map(is_setting, parts)) or (type(value), value) in defaults:
        return "setting"
    return "size" if type(value) is int and value in sizes else "number"


def most_private(*fates: Fate) -> Fate:
    """The most private of several fates."""
    return FATES[max(map(FATES.index, fates))]


class Request(NamedTuple):
    """A pattern of the user, and the option that has it."""

    option: _Option
    pattern: str


class Policy:
    """Decides the fate of facts.

    If several patterns match a path, the one with the most characters other than wildcards decides;
    of equally long ones, the more private one.

    Args:
        signature: names the positional arguments.
        keep: path patterns of values to keep, as in the recorder's ``values=``.
        shapes_only: path patterns of values to reduce to their shapes.

    Attributes:
        signature: as given.
        defaults: the defaults of the parameters, as pairs of type and value. They are code.

    Raises:
        UsageError: a pattern is empty.
    """

    def __init__(
        self, signature: Signature, keep: Sequence[str] = (), shapes_only: Sequence[str] = ()
    ) -> None:
        self.signature = signature
        defaults = (parameter.default for parameter in signature.parameters)
        self.defaults = frozenset((type(d), d) for d in defaults if is_default(d))
        self._given: dict[_Option, Sequence[str]] = {"keep": keep, "shapes_only": shapes_only}
        requests = [Request(o, p) for o, patterns in self._given.items() for p in patterns]
        if not all(request.pattern for request in requests):
            raise UsageError("a path that is empty names no value")
        self._by_precedence = sorted(
            requests,
            key=lambda request: (specificity(request.pattern), request.option == "shapes_only"),
            reverse=True,
        )
        self._matched: set[str] = set()

    def fate(self, path: str, fact: PrivateFact) -> Fate:
        """The fate of a fact at a path."""
        request = self.request(path)
        by_default, shapes_only = _FATES.get(fact, ("omitted", "omitted"))
        if request is None:
            return by_default
        if request.option == "keep":
            return "kept"
        # A pattern without wildcards means this one value, and omits even a setting.
        return "omitted" if fact == "setting" and is_exact(request.pattern) else shapes_only

    def request(self, path: str) -> Request | None:
        """The pattern that decides about a path; None if none matches."""
        names = list(names_of_path(path, self.signature)) if path else []
        matching = [r for r in self._by_precedence if matches_whole(r.pattern, names)]
        self._matched.update(request.pattern for request in matching)
        return matching[0] if matching else None

    def name(self, path: str) -> str:
        """A path for people, which begins with the name of the parameter."""
        return shown_path(path, self.signature)

    @property
    def unmatched(self) -> list[str]:
        """The patterns that have matched no path so far."""
        patterns = (pattern for g in self._given.values() for pattern in g)
        return [pattern for pattern in dict.fromkeys(patterns) if pattern not in self._matched]

    @property
    def options(self) -> dict[str, list[str]]:
        """The given patterns by option, for the history of the new tape."""
        return {option: list(patterns) for option, patterns in self._given.items() if patterns}


def is_ordinal(value: str | bytes) -> bool:
    """Whether a text or a key has the form of an ordinal."""
    text = value if isinstance(value, str) else value.decode("latin-1")
    return _ORDINAL.fullmatch(text) is not None


class Ordinals:
    """Replacements for the texts, keys and threads of one tape, numbered as they are first read.

    Args:
        code: texts that are defaults of parameters. They are code, and are not replaced.
    """

    def __init__(self, code: Collection[Any]) -> None:
        self._code = frozenset(text for text in code if isinstance(text, str))
        self._ordinals: dict[bytes, str] = {}  # by a hash of the value
        self._counts: Counter[str] = Counter()

    def text(self, value: str) -> str:
        """A name for a name, a word for a word, and else prose."""
        if not value or value in self._code:
            return value
        is_word = may_be_switch(value)
        return self._ordinal(
            "text{}" if looks_like_name(value) else "~{}" if is_word else "text {}", value
        )

    def data(self, value: bytes) -> bytes:
        """Bytes of a word for a word, and else of prose."""
        form = "~{}" if may_be_switch(value.decode("latin-1")) else "text {}"
        return self._ordinal(form, value).encode() if value else value

    def key(self, value: Any) -> str:
        """A key of a dict, or a part of one. No name in code looks like it."""
        return self._ordinal("({})", value)

    def thread(self, value: int) -> int:
        """A number for the id of a thread. 0, an unknown thread, stays."""
        return int(self._ordinal("{}", value)) if value else 0

    def _ordinal(self, form: str, value: Any) -> str:
        # The repr also distinguishes values of different types.
        digest = hashlib.blake2b(f"{form}{value!r}".encode(), digest_size=16).digest()
        ordinal = self._ordinals.get(digest)
        if ordinal is not None:
            return ordinal
        if len(self._ordinals) >= _MAX_ORDINALS:
            raise RedactionError(
                f"the tape has more than {_MAX_ORDINALS:,} different texts and keys",
                advice=f"redact a part of it, or leave texts out with `{SHAPES_ONLY}`; nothing was "
                "written",
            )
        self._counts[form] += 1
        while form.format(self._counts[form]) in self._code:
            self._counts[form] += 1
        ordinal = self._ordinals[digest] = form.format(self._counts[form])
        return ordinal
