"""Names in paths, by number.

In come the keys of a tape, and texts in which they are parts of paths. Out go the same texts with a
number for each key, so that those of two tapes can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from calltape_analyzer.text import printable

__all__ = ["NumberedNames"]

_BEGIN = re.compile(r"(?<![^.])")
_END = re.compile(r"[.\[=, )]|\Z")


class NumberedNames:
    """Finds names in a time that does not grow with how many there are.

    Args:
        names: in the order of their numbers. A name may hold dots and anything else.
    """

    def __init__(self, names: Iterable[str]) -> None:
        # By what is before the first character that ends a part of a path.
        self._by_head: dict[str, list[tuple[str, int]]] = {}
        for number, name in enumerate(names):
            for form in dict.fromkeys((name, printable(name))):
                self._by_head.setdefault(_head(form), []).append((form, number))

    def numbered(self, text: str) -> str:
        """The text with ``<key 0>`` for the first name, wherever that is a part of a path."""
        made: list[str] = []
        done = 0
        for begin in _BEGIN.finditer(text):
            at = begin.start()
            if made and at <= done:
                continue  # it is within a name
            for form, number in self._by_head.get(_head(text, at), ()):
                end = at + len(form)
                if text.startswith(form, at) and _END.match(text, end):
                    made += (text[done:at], f"<key {number}>")
                    done = end
                    break
        return "".join((*made, text[done:])) if made else text


def _head(text: str, at: int = 0) -> str:
    found = _END.search(text, at)
    return text[at : found.start()] if found else text[at:]
