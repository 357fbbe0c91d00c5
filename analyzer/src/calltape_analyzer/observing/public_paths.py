"""Which names may be told of a tape in public: those that stand in code.

In comes the path of an argument or output. Out goes the path without what may have been passed:
keys of dicts that do not look like names, such as the number of a customer.
"""

from __future__ import annotations

import re

from calltape_schema.privacy import SMALL

__all__ = ["LEFT_OUT", "is_name", "is_public", "public_path"]

LEFT_OUT = "?"
"""Stands for what is not told."""

_MAX_NAME, _MAX_DIGITS = 64, 4
_NAME = re.compile(r"[A-Za-z_][\w\-/]*", re.ASCII)
_POSITION = re.compile(r"0|[1-9]\d{0,3}", re.ASCII)


def is_name(text: str) -> bool:
    """Whether a key or keyword looks like a name, as in the recorder's rule for what it keeps."""
    digits = sum(char.isdigit() for char in text)
    return len(text) <= _MAX_NAME and digits <= _MAX_DIGITS and _NAME.fullmatch(text) is not None


def public_path(path: str) -> str:
    """A path such as ``x.layers.*.keys``. If a key in it does not look like a name, it ends at its
    argument. A number may be a position in a list, or the key of a dict: it is told if it is as
    small as the recorder's rule wants it for a key."""
    first, *rest = path.split(".")
    if not _is_step(first):
        return LEFT_OUT
    return path if all(map(_is_step, rest)) else f"{first}.{LEFT_OUT}"


def is_public(path: str) -> bool:
    """Whether all of a path may be told."""
    return public_path(path) == path


def _is_step(step: str) -> bool:
    is_small = _POSITION.fullmatch(step) is not None and int(step) <= SMALL
    return is_small or step == "*" or is_name(step)
