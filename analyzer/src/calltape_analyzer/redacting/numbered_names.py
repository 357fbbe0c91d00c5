"""Names in paths, by number.

In come the keys of a tape, and texts in which they are parts of paths, or names of arguments. Out
go the same texts with a number for each key, so that those of two tapes can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from calltape_analyzer.text import printable

__all__ = ["NumberedNames"]

_BEGIN = re.compile(r"(?<![^. (])")
_END = re.compile(r"[.\[=, );:]|\Z")


class NumberedNames:
    """Finds names in a time that does not grow with how many there are.

    Args:
        names: in the order of their numbers. A name may hold dots and anything else.
        words: those of them that sentences name as well: arguments (``no my name``).
        others: what the names are called on the other tape, in the same order. A word of a sentence
            that is such a name by chance gets its number on both tapes.
    """

    def __init__(
        self, names: Iterable[str], words: Collection[str] = (), others: Iterable[str] = ()
    ) -> None:
        self._forms: dict[str, _Form] = {}
        numbers = {name: number for number, name in enumerate(names)}
        for name, number in numbers.items():
            self._add(name, number, is_word=bool(name) and name in words)
        for (name, number), other in zip(numbers.items(), others, strict=False):
            if name in words:
                self._add(other, number, is_word=True)
        lengths: dict[str, set[int]] = {}
        for text in self._forms:
            lengths.setdefault(_head(text), set()).add(len(text))
        # By what is before the first character that ends a part of a path.
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}

    def _add(self, name: str, number: int, *, is_word: bool) -> None:
        for text in (name, printable(name)):
            self._forms.setdefault(text, _Form(number, is_word))

    def numbered(self, text: str) -> str:
        """The text with ``<key 0>`` for the first name, wherever that is a part of a path, or the
        name of an argument in a sentence. Of several names, the longest counts."""
        made: list[str] = []
        done = 0
        for begin in _BEGIN.finditer(text):
            at = begin.start()
            if made and at <= done:
                continue  # it is within a name
            in_path = at == 0 or text[at - 1] == "."
            for length in self._lengths.get(_head(text, at), ()):
                form = self._forms.get(text[at : at + length])
                is_meant = form is not None and (in_path or form.is_word)
                if form is not None and is_meant and _END.match(text, at + length):
                    made += (text[done:at], f"<key {form.number}>")
                    done = at + length
                    break
        return "".join((*made, text[done:])) if made else text


class _Form(NamedTuple):
    number: int
    is_word: bool


def _head(text: str, at: int = 0) -> str:
    found = _END.search(text, at)
    return text[at : found.start()] if found else text[at:]
