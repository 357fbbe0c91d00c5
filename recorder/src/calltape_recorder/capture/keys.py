"""Decides which keys of dicts and names of fields a tape can hold, and makes the tokens of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from calltape_schema.plain_classes import name_of
from calltape_schema.tree import (
    MAX_ALIKE,
    MAX_KEY_CHARACTERS,
    MAX_KEY_PARTS,
    are_distinct,
    fits_as_key,
)

__all__ = ["MODULE", "ModuleKey", "key_token", "names_fit", "why_unfit"]

MODULE = "module"
"""The kind of the token of a key that is a module."""


class ModuleKey(NamedTuple):
    """The name of a module that is a key of a dict."""

    name: str


# By id: the hash of a class may run code.
_KEY_TYPES = frozenset(map(id, (str, int, float, bool, bytes, type(None))))
_MAX_NAME = 1000


def why_unfit(keys: Sequence[Any]) -> str | None:
    """Why a tape cannot hold a dict with these keys, as a placeholder says it; None if it can."""
    for key in keys:
        if (type(key) is not str or len(key) > MAX_KEY_CHARACTERS) and not _key_fits(key):
            return _why_key_is_unfit(key)[:_MAX_NAME]
    return None if are_distinct(keys) else f"more than {MAX_ALIKE} keys of one hash"


def _why_key_is_unfit(key: Any) -> str:
    if type(key) is str or type(key) is bytes:
        what = "characters" if type(key) is str else "bytes"
        return f"a key of {len(key)} {what} (at most {MAX_KEY_CHARACTERS})"
    if type(key) is int:
        return f"a key of {key.bit_length()} bits (at most 64)"
    return f"a key of type {name_of(type(key))}"


def names_fit(names: tuple[Any, ...]) -> bool:
    """Whether all names of the fields of an object are short texts."""
    for name in names:  # noqa: SIM110 - a generator takes longer
        if type(name) is not str or len(name) > _MAX_NAME:
            return False
    return True


def _key_fits(key: Any) -> bool:
    if type(key) is ModuleKey:
        return fits_as_key(key.name)
    if type(key) is tuple:
        return len(key) <= MAX_KEY_PARTS and all(map(_part_fits, key))
    return _part_fits(key)


def _part_fits(part: Any) -> bool:
    return id(type(part)) in _KEY_TYPES and fits_as_key(part)


def key_token(key: Any) -> Any:
    """The token of a key. It tells 1, 1.0 and True apart: they are equal in Python, but not on a
    tape."""
    if type(key) is tuple:
        return ("tuple", *(key_token(part) for part in key))
    if type(key) is ModuleKey:
        return (MODULE, None, key.name)
    return key if type(key) is str else (type(key).__name__, repr(key), key)
