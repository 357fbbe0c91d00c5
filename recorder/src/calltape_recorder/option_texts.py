"""Reads the options of a recorder from text: of a command line, or of an environment variable.

The text is parsed and never evaluated: only known names of policies are taken, with numbers as
their arguments.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from calltape_recorder.bounds import MAX_POLICY_CHARACTERS, MAX_POLICY_DEPTH
from calltape_recorder.keep.novelty import Novelty
from calltape_recorder.keep.policies import (
    Every,
    First,
    FlightRecorder,
    Keep,
    PerSecond,
    PerStructure,
    Rate,
)
from calltape_recorder.launch.startup.calltape_startup import seconds
from calltape_schema import TapeError

__all__ = [
    "parse_count",
    "parse_duration",
    "parse_flight_recorder",
    "parse_keep",
    "parse_mode",
    "parse_path",
    "parse_share",
    "parse_size",
    "parse_text",
    "parse_truth",
    "parse_values",
    "parse_word",
]

_POLICIES: dict[str, type[Keep]] = {
    "every": Every,
    "first": First,
    "novelty": Novelty,
    "persecond": PerSecond,
    "perstructure": PerStructure,
    "rate": Rate,
}
_ALPHABET = re.compile(r"[\w\s.,()|&=+-]*", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_FACTORS.update({f"{letter}i": 2 ** (10 * n) for n, letter in enumerate("kmgt", 1)})
_KEEP_ADVICE = 'write it like "novelty() | rate(0.01, seed=7) & per_second(5)"'


def parse_keep(value: object) -> Keep:
    """Parses policies that are composed with ``&`` and ``|``; ``&`` binds tighter. The text is what
    ``str(policy)`` gives, such as ``novelty() | rate(0.01, seed=7) & per_second(5)``. A predicate
    (``When``) is code and cannot be written as text.

    Raises:
        TapeError: ``usage`` if the text is anything else.
    """
    text = parse_text(value)
    if len(text) > MAX_POLICY_CHARACTERS or not _ALPHABET.fullmatch(text):
        _refuse(f"keep={text[:100]!r}", _KEEP_ADVICE)
    line = " ".join(text.split())
    try:
        tree = ast.parse(line, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        _refuse(f"keep={text[:100]!r}", _KEEP_ADVICE)
    return _Reading(line).policy(tree.body, MAX_POLICY_DEPTH)


class _Reading:
    """Turns a syntax tree into policies. ``line`` is the parsed text, for messages."""

    def __init__(self, line: str) -> None:
        self._line = line

    def policy(self, node: ast.expr, depth: int) -> Keep:
        if depth <= 0:
            _refuse("keep is nested too deep", f"use at most {MAX_POLICY_DEPTH} policies")
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            left, right = self.policy(node.left, depth - 1), self.policy(node.right, depth - 1)
            return left & right if isinstance(node.op, ast.BitAnd) else left | right
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            _refuse(f"keep: {self._text(node)!r} is no policy", _KEEP_ADVICE)
        policy = _policy_named(node.func.id)
        arguments = [self._number(argument) for argument in node.args]
        named = {keyword.arg or "**": self._number(keyword.value) for keyword in node.keywords}
        try:
            if len(named) < len(node.keywords):
                raise TypeError("an argument is given twice")
            return policy(*arguments, **named)
        except TypeError:
            fields = inspect.signature(policy).parameters
            advice = f"the arguments of {node.func.id} are: {', '.join(fields) or 'none'}"
            _refuse(f"keep: {self._text(node)}", advice)

    def _number(self, node: ast.expr) -> int | float:
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        inner = node.operand if isinstance(node, ast.UnaryOp) and negative else node
        value = inner.value if isinstance(inner, ast.Constant) else None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value if negative else value
        return _refuse(f"keep: {self._text(node)!r} is no number", _KEEP_ADVICE)

    def _text(self, node: ast.expr) -> str:
        return self._line[node.col_offset : node.end_col_offset][:100]


def _policy_named(name: str) -> type[Keep]:
    policy = _POLICIES.get(name.replace("_", "").lower())
    if policy is not None:
        return policy
    advice = "there are every, first, novelty, per_second, per_structure and rate"
    if name.lower() == "when":
        advice = "a predicate is passed in code: keep=When(function)"
    return _refuse(f"keep: no policy {name[:100]!r}", advice)


def parse_size(value: object) -> int:
    """A size in bytes, from an int or from text such as ``4096``, ``64MiB`` (2**20) or ``1.5GB``
    (10**9).

    Raises:
        TapeError: ``usage`` if the value is anything else.
    """
    if type(value) is int and value >= 0:
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) and len(value) < 100 else None
    if found is None:
        _refuse(f"{value!r:.100} is no size", "write it like 4096, 64MiB or 1.5GiB")
    number, unit = found[1], _FACTORS[(found[2] or "").lower()]
    return int(number) * unit if number.isdecimal() else int(float(number) * unit)


def parse_duration(value: object) -> float:
    """A duration in seconds, from a number or from text such as ``90``, ``10m``, ``24h`` or ``7d``.

    Raises:
        TapeError: ``usage`` if the value is anything else.
    """
    try:
        return seconds(value)
    except ValueError as error:
        _refuse(str(error), "write it like 90, 10m, 24h or 7d")


def parse_count(value: object) -> int:
    """Reads an int, 0 or more."""
    text = str(value) if type(value) in (int, str) else ""
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        _refuse(f"{value!r:.100} is no count", "write an int, 0 or more")
    return int(text)


def parse_truth(value: object) -> bool:
    """Reads ``true`` or ``false``, or a word like these."""
    words = {"true": True, "yes": True, "on": True, "1": True}
    words.update({"false": False, "no": False, "off": False, "0": False})
    truth = words.get(str(value).strip().lower())
    return _refuse(f"{value!r:.100}", "write true or false") if truth is None else truth


def parse_text(value: object) -> str:
    """Reads any text, such as a name."""
    if not isinstance(value, str) or not value:
        _refuse(f"{value!r:.100} is no text", "write a name")
    return value


def parse_path(value: object) -> str:
    """Reads a path, and makes it absolute."""
    return os.path.abspath(parse_text(value))


def parse_values(value: object) -> str | dict[str, str]:
    """Reads ``all``, ``none``, or patterns of leaf paths (``*:all,cache.*:none``). The
    last pattern that matches a leaf decides."""
    if isinstance(value, Mapping):
        items = [(str(pattern), str(choice)) for pattern, choice in value.items()]
    elif ":" not in (text := parse_text(value)):
        items = []
        if text not in ("all", "none"):
            _refuse(f"{text[:100]!r}", "write all, none, or pattern:none,pattern:all")
        return text
    else:
        parts = [part.rpartition(":") for part in text.split(",")]
        items = [(pattern.strip(), choice.strip()) for pattern, _, choice in parts]
    if not all(pattern and choice in ("all", "none") for pattern, choice in items):
        _refuse(f"{value!r:.100}", "write it like *:all,cache.*:none")
    return dict(items)


def parse_flight_recorder(value: object) -> FlightRecorder | None:
    """Reads ``true``, or one or both of the bounds: ``calls=100,bytes=64MiB``."""
    parsers = {"calls": parse_count, "bytes": parse_size}
    if isinstance(value, Mapping):
        items = {str(name): given for name, given in value.items()}
    elif isinstance(value, str) and "=" in value:
        parts = [part.partition("=") for part in value.split(",")]
        items = {name.strip(): given.strip() for name, _, given in parts}
    else:
        return FlightRecorder() if parse_truth(value) else None
    if not items.keys() <= parsers.keys():
        _refuse(f"{value!r:.100}", "write it like calls=100,bytes=64MiB")
    return FlightRecorder(**{name: parsers[name](given) for name, given in items.items()})


def parse_word(*words: str) -> Callable[[object], str]:
    """A parser that takes one of these words."""

    def parse(value: object) -> str:
        if value not in words:
            _refuse(f"{value!r:.100}", f"write {' or '.join(words)}")
        return str(value)

    return parse


def parse_mode(value: object) -> int:
    """Reads permissions as chmod takes them: ``640``."""
    if not isinstance(value, str) or not re.fullmatch(r"(0o?)?[0-7]{3}", value):
        _refuse(f"{value!r:.100}", "write permissions like 600 or 640, as text")
    return int(value.removeprefix("0o"), 8)


def parse_share(value: object) -> float:
    """Reads a share of time: ``0.01`` or ``1%``."""
    text = "" if isinstance(value, bool) else str(value).strip()
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        _refuse(f"{value!r:.100}", "write a share such as 0.01 or 1%")


def _refuse(reason: str, advice: str) -> NoReturn:
    raise TapeError("usage", reason, advice=advice)
