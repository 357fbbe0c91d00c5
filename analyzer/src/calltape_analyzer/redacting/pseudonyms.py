"""Values that stand for private ones: equal where those were equal, and else without meaning.

In come texts, bytes and numbers of one tape. Out go others of the same length or magnitude, under a
key that nobody keeps. Short values are permuted among all of their kind (a Feistel network that is
walked until it ends within the kind, as in format-preserving encryption), so that no two become
one. Texts that are known beforehand are placed one by one, so that none becomes a word of the tape.
Of long ones a keyed hash is taken.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import struct
from collections.abc import Callable, Collection
from functools import cache
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
        return _remembered(self._texts, value, lambda: self._text(value, _kind_of))

    def data(self, value: bytes) -> bytes:
        """Bytes of the same length; those that may be a switch stay so."""
        if not value:
            return value
        return self._text(value.decode("latin-1"), _kind_of_bytes).encode("latin-1")

    def integer(self, value: int) -> int:
        """An int of the same sign and number of bits; 0 and 1 stay."""
        if -2 < value < 2 or (int, value) in self._numbers:
            return value
        return _remembered(self._integers, value, lambda: self._new_integer(value))

    def number(self, value: float) -> float:
        """A float between 0 and 1; 0, NaN and the infinities stay."""
        if not value or not math.isfinite(value) or (float, value) in self._numbers:
            return value
        (bits,) = struct.unpack(">Q", self._digest(b"float", struct.pack(">d", value))[:8])
        return (int(bits >> 11) + 1) / 2**53

    def within(self, value: int, size: int) -> int:
        """The place of a number below ``size`` in a permutation of all of them."""
        return self._permuted(value, size, b"within")

    def thread(self, value: int) -> int:
        """A number for a thread; 0, which is an unknown one, stays."""
        if not value:
            return 0
        found = self._digest(b"thread", str(value).encode())
        return int.from_bytes(found[:4], "big") or 1

    def seed(self, what: str) -> int:
        """63 bits that follow from a text and the key."""
        return int.from_bytes(self._digest(b"seed", what.encode())[:8], "big") >> 1

    def _new_integer(self, value: int) -> int:
        size = 1 << (abs(value).bit_length() - 1)
        found = abs(value)
        while True:
            found = size + self._permuted(found - size, size, b"int")
            made = found if value > 0 else -found
            if (int, made) not in self._numbers:
                return made

    def _text(self, value: str, kind_of: Callable[[str], str]) -> str:
        kind = kind_of(value)
        if len(value) >= _LONG:
            return self._hashed(value, kind)
        number, size = _number(value, kind), _size(value, kind)
        while True:
            number = self._permuted(number, size, kind.encode())
            found = _spelled(number, len(value), kind)
            if found in self.fixed or (found in self._avoided and "bytes" not in kind):
                continue
            if kind_of(found) == kind:
                return found

    def _place(self, value: str) -> str:
        """The pseudonym of a text that others avoid. A walk from it may end where the walk from
        another one ends, so it is remembered which pseudonyms are taken."""
        found = self._placed.get(value)
        if found is None:
            found = self._placed[value] = self._free(value)
            self._taken.add(found)
        return found

    def _free(self, value: str) -> str:
        kind = _kind_of(value)
        number, size = _number(value, kind), _size(value, kind)
        for avoided in (self._avoided, self._names, frozenset[str]()):
            for turn in range(_TRIES):
                place = self._permuted(number, size, b"%s|place %d|" % (kind.encode(), turn))
                found = _spelled(place, len(value), kind)
                if found not in avoided and self._is_free(found, kind):
                    return found
        # Nearly all of the kind are taken, so there are few; each text has at least its own place.
        every = (_spelled(place, len(value), kind) for place in range(size))
        return next(found for found in every if self._is_free(found, kind))

    def _is_free(self, found: str, kind: str) -> bool:
        is_taken = found in self.fixed or found in self._taken
        return not is_taken and _kind_of(found) == kind

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


def _kind_of_bytes(value: str) -> str:
    return "word bytes" if may_select(value) else "prose bytes"


def _number(value: str, kind: str) -> int:
    """The place of a short text among all of its kind and length."""
    alphabet, places = _alphabet(kind)
    number = 0
    for character in value:
        number = number * len(alphabet) + places(character)
    return number


def _size(value: str, kind: str) -> int:
    size: int = len(_alphabet(kind)[0]) ** len(value)
    return size


def _spelled(number: int, length: int, kind: str) -> str:
    """The text at a place: the other way round."""
    alphabet, _ = _alphabet(kind)
    found = ""
    for _ in range(length):
        number, place = divmod(number, len(alphabet))
        found = alphabet[place] + found
    return found


class _Characters:
    """Characters that need no table: of bytes, or of Unicode with or without the halves of pairs.

    Args:
        count: how many there are.
        gap: how many are left out where the halves begin.
    """

    def __init__(self, count: int, gap: int = 0) -> None:
        self._count = count
        self._gap = gap

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> str:
        return chr(place if place < _HALVES.start else place + self._gap)

    def place(self, character: str) -> int:
        """The other way round."""
        number = ord(character)
        return number if number < _HALVES.start else number - self._gap


_HALVES = range(0xD800, 0xE000)
_OF_BYTES = _Characters(256)
_ALL = _Characters(0x110000)
_WHOLE = _Characters(0x110000 - len(_HALVES), gap=len(_HALVES))


@cache
def _alphabet(kind: str) -> tuple[str | _Characters, Callable[[str], int]]:
    """The characters of which short texts of a kind are, and the place of one among them."""
    of_kind = {"prose of any script": _WHOLE, "prose of halves": _ALL}
    known = _OF_BYTES if kind.endswith("bytes") else of_kind.get(kind)
    if known is not None:
        return known, known.place
    alphabet = _NAME
    if kind in ("word", "prose"):
        alphabet = "".join(map(chr, range(0x20 if kind == "prose" else 0x21, 0x7F)))
    elif kind == "word of any script":
        alphabet = "".join(c for c in map(chr, range(0x21, 0x110000)) if c.isprintable())
    return alphabet, {character: place for place, character in enumerate(alphabet)}.__getitem__
