"""What may be told of a tape in public: names, structure, dtypes, sizes, counts and versions.

In come words of a tape. Out goes what is left without texts and values of calls, messages of
exceptions, paths and names of machines; ``?`` stands for the rest.
"""

from __future__ import annotations

import re

from calltape_analyzer.observing.public_paths import LEFT_OUT, is_name, is_public, public_path

__all__ = ["class_name", "condition", "name", "place", "version"]

_MAX_CLASS = 128
_CLASS = re.compile(r"[A-Za-z_][\w.<>]*(:[A-Za-z_][\w.<>]*)?", re.ASCII)
_VERSION = re.compile(r"[\w.+\-() ]{1,100}", re.ASCII)
_CONDITION = re.compile(r"(?P<place>.+) (?P<sign>=|>|!=) (?P<value>-?\d+)", re.DOTALL)
_OF_CACHES = ("window open", "window full")


def place(text: str) -> str:
    """The path of an argument, with its axes: ``x.layers.*.keys[2]``. If a key in it does not look
    like a name, the path ends at its argument."""
    path, bracket, axes = text.partition("[")
    more = ""
    if (listed := re.search(r" \(\d+ of them\)$", path)) is not None:
        path, more = path[: listed.start()], listed[0]
    if not re.fullmatch(r"[\d, *\]\[.]*", axes):
        bracket = axes = ""
    if not is_public(path):
        return public_path(path)
    return f"{path}{bracket}{axes}{more}"


def condition(text: str) -> str:
    """What the calls of a variant have in common: sizes are told, values of ints are not."""
    if text in _OF_CACHES:
        return text
    found = _CONDITION.fullmatch(text)
    if found is None:
        return LEFT_OUT
    is_size = found["place"].endswith("]")
    return f"{place(found['place'])} {found['sign']} {found['value'] if is_size else LEFT_OUT}"


def name(text: str) -> str:
    """The name of a symbol, parameter or method; that of a symbol may be made of keys."""
    return text if is_name(text) else LEFT_OUT


def class_name(text: str) -> str:
    """``module:Class``."""
    return text if _CLASS.fullmatch(text) and len(text) <= _MAX_CLASS else LEFT_OUT


def version(text: str) -> str:
    """The version of a library, or the platform."""
    return text if _VERSION.fullmatch(text) else LEFT_OUT
