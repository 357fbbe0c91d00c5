"""Decides which classes the recorder looks into, by their names and fields. It never imports
them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

__all__ = ["is_named_tuple", "is_record", "type_name"]

_MAX_TYPE_NAME = 512
_UNFIT = re.compile(r"[:\s]")


def type_name(cls: type) -> str:
    """``module:qualified.name``. A name that the format does not allow is changed until it fits."""
    module = _UNFIT.sub("_", str(getattr(cls, "__module__", "") or "unknown"))
    name = _UNFIT.sub("_", str(getattr(cls, "__qualname__", "") or "unknown"))
    joined = f"{module}:{name}"
    if len(joined) > _MAX_TYPE_NAME:
        return f"{module[:200]}:{name[-200:]}"
    return joined.encode("utf-8", "backslashreplace").decode()


def is_named_tuple(cls: type) -> bool:
    """Whether collections.namedtuple or typing.NamedTuple made this class."""
    fields: Any = getattr(cls, "_fields", None)
    return (
        issubclass(cls, tuple)
        and isinstance(fields, tuple)
        and all(type(name) is str for name in fields)
    )


def is_record(cls: type) -> bool:
    """Whether this is a dataclass. Model outputs of transformers and diffusers are, too."""
    return dataclasses.is_dataclass(cls)
