"""Reads what ``CALLTAPE`` says: the settings in it, and durations.

Python's start-up loads this file as well, outside of any package: it imports nothing of calltape,
and of the standard library only what a text needs.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from typing import Any

__all__ = ["VARIABLE", "seconds", "split"]

VARIABLE = "CALLTAPE"
"""The environment variable that has the settings."""

_MAX_TEXT = 65536
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def split(text: str) -> dict[str, Any]:
    """The settings in ``CALLTAPE``: ``key=value`` items with ``;`` between them, or a JSON object,
    whose values may have a ``;`` in them.

    Raises:
        ValueError: the text is neither of the two, or too long.
    """
    if len(text) > _MAX_TEXT:
        raise ValueError(f"{VARIABLE} has {len(text)} characters, at most {_MAX_TEXT} are read")
    text = text.strip()
    if text.startswith("{"):
        import json

        return dict(json.loads(text))  # text that starts with a brace is an object or an error
    settings: dict[str, Any] = {}
    for item in filter(None, map(str.strip, text.split(";"))):
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ValueError(f"{item[:100]!r} is no key=value")
        if key in settings:
            raise ValueError(f"{key} is there twice")
        settings[key] = value.strip()
    return settings


def seconds(value: object) -> float:
    """A duration in seconds, from a number or from text such as ``90``, ``1.5h``, ``10m``, ``7d``.

    Raises:
        ValueError: the value is anything else, negative, or not finite.
    """
    number = "" if isinstance(value, bool) else str(value).strip()
    unit = number.lstrip("0123456789.")
    try:
        result = float(number.removesuffix(unit)) * _UNITS[unit]
    except (ValueError, KeyError):
        result = -1
    if not 0 <= result < float("inf"):
        raise ValueError(f"{value!r:.100} is no duration")
    return result
