"""Which texts and floats are switches: their few values select a program.

A text such as ``mode="mean"`` is a switch: a few values come back again and again. A prompt, a file
name or a temperature that is drawn anew for each call is not (docs/decisions/variants-and-shapes.md
has the rule, and what follows from it for an export).
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Collection
from typing import Any

__all__ = ["MAX_VALUES", "looks_like_name", "may_select", "shown_constant", "switches_of"]

MAX_VALUES = 8
_MAX_COMBINATIONS = 64
_MAX_TEXT = 64
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,32}", re.ASCII)

Constants = tuple["tuple[str, str] | None", ...]
"""Type and ``repr`` of each scalar of a call that is not an int."""


def switches_of(calls: Collection[Constants], places: Collection[int], every: int) -> set[int]:
    """The numbers of the texts and floats that are switches, or never varied.

    A switch has at most 8 values, each of which comes twice on average; texts must be short,
    printable and without white space. All switches together have at most 64 combinations of values,
    which come twice on average too. If not all can be switches, the ones with fewer values are.

    Args:
        calls: the combinations of constants that calls have; None stands for too many values.
        places: the numbers of the constants that may be switches.
        every: how many calls there were.
    """
    values = {i: {constants[i] for constants in calls} for i in places}
    chosen = {i for i in places if len(values[i]) == 1 and None not in values[i]}
    varying = [i for i in places if i not in chosen and all(map(_may_switch, values[i]))]
    every_call = list(calls)
    part = [0] * len(every_call)  # calls of equal values of all switches so far have one number
    for i in sorted(varying, key=lambda i: (len(values[i]), i)):
        if len(values[i]) > MAX_VALUES:
            break
        together: dict[Any, int] = {}
        parts = [
            together.setdefault((at, constants[i]), len(together))
            for at, constants in zip(part, every_call, strict=True)
        ]
        if len(together) <= _MAX_COMBINATIONS and 2 * len(together) <= every:
            chosen.add(i)
            part = parts
    return chosen


def _may_switch(typed: tuple[str, str] | None) -> bool:
    if typed is None:
        return False
    kind, text = typed
    if kind not in ("str", "bytes"):
        return True
    if len(text) > 4 * _MAX_TEXT + 3:
        return False
    value = literal_eval(text)
    return may_select(value.decode("latin-1") if isinstance(value, bytes) else value)


def may_select(text: str) -> bool:
    """Whether a text can be a switch: it is short and printable, and has no white space."""
    return len(text) <= _MAX_TEXT and text.isprintable() and not re.search(r"\s", text)


def looks_like_name(text: str) -> bool:
    """Whether a text is shown to people as it is."""
    return _NAME.fullmatch(text) is not None


def shown_constant(value: Any) -> str:
    """A constant for people. A text that looks like a name is shown; of other texts only the length
    is, because they may be private."""
    if isinstance(value, bytes):
        return f"{len(value)} byte{'' if len(value) == 1 else 's'}"
    if isinstance(value, str) and not looks_like_name(value):
        return f"text of {len(value)} character{'' if len(value) == 1 else 's'}"
    return f"{value!r:.40}"
