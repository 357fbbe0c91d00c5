"""What stands for a private text, key or thread: which of the distinct ones of the tape it is.

An ordinal says which values were equal, and nothing else of them but the kind of a text, which the
analysis reads: a word may select a program, and one that looks like a name is shown.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection
from typing import Any

from calltape_analyzer.errors import RedactionError
from calltape_analyzer.observing.groups import looks_like_name, may_be_switch
from calltape_analyzer.redacting.policy import SHAPES_ONLY

__all__ = ["Ordinals", "is_ordinal"]

_MAX_ORDINALS = 2**20
"""They take about 200 MB."""
_ORDINAL = re.compile(r"text ?[1-9]\d{0,6}|~[1-9]\d{0,6}|\([1-9]\d{0,6}\)", re.ASCII)


def is_ordinal(value: str | bytes) -> bool:
    """Whether a text, or a key, has the form of an ordinal."""
    text = value if isinstance(value, str) else value.decode("latin-1")
    return _ORDINAL.fullmatch(text) is not None


class Ordinals:
    """The ordinals of one tape, in the order in which its values are read.

    Args:
        code: the texts that are defaults of parameters: they are code, and stand for themselves.
    """

    def __init__(self, code: Collection[Any]) -> None:
        self._code = frozenset(one for one in code if isinstance(one, str))
        self._known: dict[bytes, str] = {}
        self._counts: Counter[str] = Counter()

    def text(self, value: str) -> str:
        """A text of the same kind: a name, a word, or prose."""
        if not value or value in self._code:
            return value
        is_word = may_be_switch(value)
        form = "text{}" if looks_like_name(value) else "~{}" if is_word else "text {}"
        return self._ordinal(form, value)

    def data(self, value: bytes) -> bytes:
        """Bytes of the same kind."""
        form = "~{}" if may_be_switch(value.decode("latin-1")) else "text {}"
        return self._ordinal(form, value).encode() if value else value

    def key(self, value: Any) -> str:
        """A key of a dict, or a part of one. No name from code looks like it."""
        return self._ordinal("({})", value)

    def thread(self, value: int) -> int:
        """A number for a thread; 0, which is an unknown one, stays."""
        return int(self._ordinal("{}", value)) if value else 0

    def _ordinal(self, form: str, value: Any) -> str:
        # The repr differs for values of different types, too.
        digest = hashlib.blake2b(f"{form}{value!r}".encode(), digest_size=16).digest()
        found = self._known.get(digest)
        if found is not None:
            return found
        if len(self._known) >= _MAX_ORDINALS:
            raise RedactionError(
                f"the tape has more than {_MAX_ORDINALS:,} different texts and keys",
                advice=f"redact a part of it, or leave texts out with `{SHAPES_ONLY}`; nothing was "
                "written",
            )
        self._counts[form] += 1
        while form.format(self._counts[form]) in self._code:
            self._counts[form] += 1
        found = self._known[digest] = form.format(self._counts[form])
        return found
