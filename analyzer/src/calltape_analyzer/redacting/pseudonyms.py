"""Values that stand for private ones: equal where those were equal, and else without meaning.

In come texts, bytes and numbers of one tape. Out go others of the same length or magnitude, under a
key that nobody keeps. Texts are drawn by a keyed hash among all of their length and kind; those
that are known beforehand one by one, so that no two become one, and none becomes a word of the
tape. Ints and short bytes are permuted among all of their size (a Feistel network that is walked
until it ends within it, as in format-preserving encryption).
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import struct
from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import count, islice, product
from typing import Any, TypeVar

from calltape_analyzer.observing.switches import looks_like_name, may_select

__all__ = ["Pseudonyms"]

T = TypeVar("T", str, int)

_NAME = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-"
_LETTERS = bytes(ord(_NAME[byte % 64]) for byte in range(256))
_LONG = 16
_ROUNDS = 8
_HALF = re.compile("[\ud800-\udfff]")
"""A half of a pair of UTF-16. A text that has one is no UTF-8, so only such a text gets others."""
_MAX_KNOWN = 65_536
_TRIES = 256
_DIGITS = 8
"""Bytes of a hash from which a character is drawn."""


class Pseudonyms:
    """The pseudonyms of one tape. Two objects give different ones.

    Args:
        fixed: values that stand for themselves, such as the defaults of parameters, which are code.
        names: words that no pseudonym is to be, such as the names of arguments.
        texts: the texts of the tape, which no pseudonym is to be either. There may be as many of
            them as there are of their kind (single letters): then some become each other.

    Attributes:
        fixed: the texts that stand for themselves.
    """

    def __init__(
        self, fixed: Collection[Any] = (), *, names: Collection[str] = (),
        texts: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._key = secrets.token_bytes(32)
        self.fixed = frozenset(one for one in fixed if isinstance(one, str))
        self._numbers = frozenset((type(one), one) for one in fixed if type(one) in (int, float))
        self._names = frozenset(name for name in names if len(name) < _LONG)
        self._avoided = self._names.union(text for text in texts if len(text) < _LONG)
        self._placed: dict[str, str] = {}
        self._taken: set[str] = set()
        self._texts: dict[str, str] = {}
        self._integers: dict[int, int] = {}

    def text(self, value: str) -> str:
        """A text of the same length, of the kind that the analyzer takes it for: one that looks
        like a name stays one, and one that may be a switch too."""
        if not value or value in self.fixed:
            return value
        if value in self._avoided:
            return self._place(value)
        return _remembered(self._texts, value, lambda: self._text(value))

    def data(self, value: bytes) -> bytes:
        """Bytes of the same length; those that may be a switch stay so."""
        text, number = value.decode("latin-1"), int.from_bytes(value, "big")
        if len(value) >= _LONG:
            return self._hashed(text, "word" if may_select(text) else "prose").encode()
        while value:
            number = self._permuted(number, 256 ** len(value), b"bytes")
            found = number.to_bytes(len(value), "big")
            if may_select(found.decode("latin-1")) is may_select(text):
                return found
        return value

    def integer(self, value: int) -> int:
        """An int of the same sign and number of bits; 0 and 1 stay."""
        if -2 < value < 2 or (int, value) in self._numbers:
            return value
        return _remembered(self._integers, value, lambda: self._new_integer(value))

    def number(self, value: float) -> float:
        """A float between 0 and 1; 0, the infinities and NaN stay, without their sign and bits."""
        if not value or math.isnan(value):
            return math.nan if value else 0.0
        if math.isinf(value) or (float, value) in self._numbers:
            return value
        (bits,) = struct.unpack(">Q", self._digest(b"float", struct.pack(">d", value))[:8])
        return (int(bits >> 11) + 1) / 2**53

    def thread(self, value: int) -> int:
        """A number for a thread; 0, which is an unknown one, stays."""
        if not value:
            return 0
        found = self._digest(b"thread", str(value).encode())
        return int.from_bytes(found[:4], "big") or 1

    def _new_integer(self, value: int) -> int:
        size = 1 << (abs(value).bit_length() - 1)
        found = abs(value)
        while True:
            found = size + self._permuted(found - size, size, b"int")
            made = found if value > 0 else -found
            if (int, made) not in self._numbers:
                return made

    def _text(self, value: str) -> str:
        if len(value) >= _LONG:
            return self._hashed(value, _kind_of(value))
        return next(found for found in self._drawn(value) if found not in self._avoided)

    def _drawn(self, value: str) -> Iterator[str]:
        """Texts of the length and the kind of a short one, none that stands for itself, without
        end."""
        kind = _kind_of(value)
        alphabet, secret = _alphabet(kind), self._key + value.encode("utf-8", "surrogatepass")
        for turn in count():
            drawn = hashlib.shake_256(b"%d|" % turn + secret).digest(_DIGITS * len(value))
            digits = (drawn[at : at + _DIGITS] for at in range(0, len(drawn), _DIGITS))
            found = "".join(alphabet[int.from_bytes(one, "big") % len(alphabet)] for one in digits)
            if _kind_of(found) == kind and found not in self.fixed:
                yield found

    def _place(self, value: str) -> str:
        """The pseudonym of a text that others avoid. It is remembered which ones are taken."""
        found = self._placed.get(value)
        if found is None:
            found = self._placed[value] = self._free(value)
            self._taken.add(found)
        return found

    def _free(self, value: str) -> str:
        for avoided in (self._avoided, self._names, frozenset[str]()):
            for found in islice(self._drawn(value), _TRIES):
                if found not in avoided and found not in self._taken:
                    return found
        # Nearly all of the kind are taken, so there are few; each text has at least its own place.
        kind, used = _kind_of(value), self._taken | self.fixed
        every = map("".join, product(_alphabet(kind), repeat=len(value)))
        return next(found for found in every if found not in used and _kind_of(found) == kind)

    def _hashed(self, value: str, kind: str) -> str:
        begin = "" if kind == "name" else "~ " if "prose" in kind else "~"
        secret = self._key + kind.encode() + value.encode("utf-8", "surrogatepass")
        count = len(value) - len(begin)
        return begin + hashlib.shake_256(secret).digest(count).translate(_LETTERS).decode()

    def _permuted(self, value: int, size: int, what: bytes) -> int:
        """A keyed permutation of the numbers below ``size``."""
        half = max((size - 1).bit_length() + 1, 2) // 2
        mask = (1 << half) - 1
        tweak = what + b"|%d|" % size
        while True:
            left, right = value >> half, value & mask
            for turn in range(_ROUNDS):
                digest = self._digest(
                    b"%s%d|" % (tweak, turn), right.to_bytes(half // 8 + 1, "big")
                )
                wide = digest if half <= 512 else hashlib.shake_256(digest).digest(half // 8 + 1)
                left, right = right, left ^ (int.from_bytes(wide, "big") & mask)
            value = left << half | right
            if value < size:
                return value

    def _digest(self, what: bytes, value: bytes) -> bytes:
        return hashlib.blake2b(what + value, key=self._key).digest()


def _remembered(known: dict[T, T], value: T, make: Callable[[], T]) -> T:
    found = known.get(value)
    if found is None:
        if len(known) >= _MAX_KNOWN:
            known.clear()
        found = known[value] = make()
    return found


def _kind_of(value: str) -> str:
    if looks_like_name(value):
        return "name"
    kind = "word" if may_select(value) else "prose"
    if value.isascii() and value.isprintable():
        return kind
    return f"{kind} of {'halves' if _HALF.search(value) else 'any script'}"


_HALVES = range(0xD800, 0xE000)


@cache
def _alphabet(kind: str) -> str:
    """The characters of which short texts of a kind are."""
    if kind == "name":
        return _NAME
    if kind in ("word", "prose"):
        return "".join(map(chr, range(0x20 if kind == "prose" else 0x21, 0x7F)))
    every = map(chr, range(0x110000))
    if kind == "word of any script":
        return "".join(one for one in every if one.isprintable() and one != " ")
    return "".join(one for one in every if "halves" in kind or ord(one) not in _HALVES)
