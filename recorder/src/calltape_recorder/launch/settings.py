"""Turns the text of a command line or an environment variable into the objects that
:class:`Recorder` takes.

The text is parsed and never evaluated: only known names of policies are taken, with numbers as
their arguments.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from calltape_recorder.keep.novelty import Novelty
from calltape_recorder.keep.policies import Every, First, Keep, PerSecond, PerStructure, Rate
from calltape_recorder.launch.startup.calltape_variable import seconds
from calltape_recorder.write.flight_recorder import FlightRecorder
from calltape_schema import TapeError

__all__ = ["OPTIONS", "parse_duration", "parse_keep", "parse_options", "parse_size"]

_POLICIES: dict[str, type[Keep]] = {
    "every": Every,
    "first": First,
    "novelty": Novelty,
    "persecond": PerSecond,
    "perstructure": PerStructure,
    "rate": Rate,
}
_MAX_TEXT = 2000
_MAX_DEPTH = 50
_ALPHABET = re.compile(r"[\w\s.,()|&=+-]*", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_FACTORS.update({f"{letter}i": 2 ** (10 * n) for n, letter in enumerate("kmgt", 1)})
_KEEP_ADVICE = 'write it like "novelty() | rate(0.01, seed=7) & per_second(5)"'


def parse_keep(text: str) -> Keep:
    """Parses policies that are composed with ``&`` and ``|``; ``&`` binds tighter. The text is what
    ``str(policy)`` gives, such as ``novelty() | rate(0.01, seed=7) & per_second(5)``. A predicate
    (``When``) is code and cannot be written as text.

    Raises:
        TapeError: ``usage`` if the text is anything else.
    """
    if len(text) > _MAX_TEXT or not _ALPHABET.fullmatch(text):
        _refuse(f"keep={text[:100]!r}", _KEEP_ADVICE)
    line = " ".join(text.split())
    try:
        tree = ast.parse(line, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        _refuse(f"keep={text[:100]!r}", _KEEP_ADVICE)
    return _Reading(line).policy(tree.body, _MAX_DEPTH)


class _Reading:
    """Turns a syntax tree into policies. ``line`` is the parsed text, for messages."""

    def __init__(self, line: str) -> None:
        self._line = line

    def policy(self, node: ast.expr, depth: int) -> Keep:
        if depth <= 0:
            _refuse("keep is nested too deep", f"use at most {_MAX_DEPTH} policies")
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


def _whole(value: object) -> int:
    text = str(value) if type(value) in (int, str) else ""
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        _refuse(f"{value!r:.100} is no count", "write an int, 0 or more")
    return int(text)


def _truth(value: object) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True}
    words.update({"false": False, "no": False, "off": False, "0": False})
    truth = words.get(str(value).strip().lower())
    return _refuse(f"{value!r:.100}", "write true or false") if truth is None else truth


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        _refuse(f"{value!r:.100} is no text", "write a name")
    return value


def _keep(value: object) -> Keep:
    return parse_keep(_text(value))


def _values(value: object) -> str | dict[str, str]:
    """Reads ``all``, ``none``, or patterns of leaf paths (``*:all,cache.*:none``). The
    last pattern that matches a leaf decides."""
    if isinstance(value, Mapping):
        items = [(str(pattern), str(choice)) for pattern, choice in value.items()]
    elif ":" not in (text := _text(value)):
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


def _flight(value: object) -> FlightRecorder | None:
    """Reads ``true``, or one or both of the bounds: ``calls=100,bytes=64MiB``."""
    parsers = {"calls": _whole, "bytes": parse_size}
    if isinstance(value, Mapping):
        items = {str(name): given for name, given in value.items()}
    elif isinstance(value, str) and "=" in value:
        parts = [part.partition("=") for part in value.split(",")]
        items = {name.strip(): given.strip() for name, _, given in parts}
    else:
        return FlightRecorder() if _truth(value) else None
    if not items.keys() <= parsers.keys():
        _refuse(f"{value!r:.100}", "write it like calls=100,bytes=64MiB")
    return FlightRecorder(**{name: parsers[name](given) for name, given in items.items()})


def _when_full(value: object) -> str:
    if value not in ("stop", "delete_oldest"):
        _refuse(f"{value!r:.100}", "write stop or delete_oldest")
    return str(value)


def _compress(value: object) -> str | None:
    if value not in ("zstd", "gz", "none"):
        _refuse(f"{value!r:.100}", "write zstd, gz or none")
    return None if value == "none" else str(value)


def _mode(value: object) -> int:
    """Reads permissions as chmod takes them: ``640``."""
    if not isinstance(value, str) or not re.fullmatch(r"(0o?)?[0-7]{3}", value):
        _refuse(f"{value!r:.100}", "write permissions like 600 or 640, as text")
    return int(value.removeprefix("0o"), 8)


def _share(value: object) -> float:
    """Reads a share of time: ``0.01`` or ``1%``."""
    text = value.strip() if isinstance(value, str) else ""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        _refuse(f"{value!r:.100}", "write a share such as 0.01 or 1%")


OPTIONS: dict[str, Callable[[object], Any]] = {
    "keep": _keep,
    "values": _values,
    "outputs": _truth,
    "flight_recorder": _flight,
    "write_ahead": _truth,
    "max_calls": _whole,
    "max_seconds": parse_duration,
    "max_share": _share,
    "max_queue_bytes": parse_size,
    "max_disk_bytes": parse_size,
    "max_age_seconds": parse_duration,
    "min_free_bytes": parse_size,
    "segment_bytes": parse_size,
    "segment_seconds": parse_duration,
    "when_full": _when_full,
    "compress": _compress,
    "file_mode": _mode,
    "control": _text,
    "via": _text,
    "method": _text,
}
"""The options of :class:`Recorder` that can be written as text, with the reader of each."""

_OTHERS = ("target", "tape", "wait", "pid")  # these are not for the recorder


def parse_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a recorder, from settings whose values are text or come from JSON.
    ``target``, ``tape`` and ``wait`` are left out.

    Raises:
        TapeError: ``usage`` if a setting is unknown or wrong. The error names the key.
    """
    options: dict[str, Any] = {}
    for key, value in settings.items():
        if key in _OTHERS:
            continue
        if key not in OPTIONS:
            _refuse(f"no option {key[:100]!r}", f"there are {', '.join(OPTIONS)}")
        try:
            options[key] = OPTIONS[key](value)
        except TapeError as error:
            reason = (
                error.reason if error.reason.startswith(f"{key}=") else f"{key}: {error.reason}"
            )
            raise TapeError("usage", reason, advice=error.advice) from None
    if "control" in options:
        options["control"] = os.path.abspath(options["control"])
    return options


def _refuse(reason: str, advice: str) -> NoReturn:
    raise TapeError("usage", reason, advice=advice)
