"""What a recorder may be told, and what it may be attached to, checked before a file is created."""

from __future__ import annotations

import os
import weakref
from typing import Any, Literal

import torch

from calltape_schema import TapeError

__all__ = ["check_options", "check_path", "check_target"]

_MOST = 2**63 - 1  # the largest integer of a manifest


def check_path(path: Any) -> str:
    """The path as text.

    Raises:
        TapeError: ``usage``.
    """
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise TapeError(
            "usage", f"a {type(path).__name__} is no path", advice="pass the path of the new tape"
        ) from None
    if "\0" in text:
        raise TapeError(
            "usage", "no path has a zero character in it", path=text, advice="remove it"
        )
    return text


def check_options(options: dict[str, Any]) -> None:
    """Checks the keyword arguments of a recorder.

    Raises:
        TapeError: ``usage``.
    """
    for name, choices in (("values", ("all", "none")), ("via", ("hook", "method"))):
        if options[name] not in choices:
            advice = f"pass {choices[0]!r} or {choices[1]!r}"
            raise TapeError("usage", f"{name}={options[name]!r}", advice=advice)
    for name in ("overwrite", "outputs"):
        if not isinstance(options[name], bool):
            raise TapeError("usage", f"{name}={options[name]!r}", advice="pass True or False")
    for name in ("max_calls", "max_queue_bytes"):
        value = options[name]
        if value is None and name == "max_calls":
            continue
        if type(value) is not int or not 0 <= value <= _MOST:
            advice = "pass an int, 0 or more"
            raise TapeError("usage", f"{name}={value!r}", advice=advice)
    method = options["method"]
    if not isinstance(method, str) or not method:
        raise TapeError("usage", f"method={method!r}", advice="name one of the object's methods")


def check_target(
    target: Any, method: str, via: Literal["hook", "method"], path: str | None = None
) -> None:
    """Checks that this method of this object can be recorded.

    Raises:
        TapeError: ``usage``.
    """
    name = type(target).__name__
    if isinstance(target, type):
        raise TapeError(
            "usage", f"{target.__name__} is a class", path=path,
            advice="pass the instance whose calls are to be recorded",
        )  # fmt: skip
    if via == "hook" and not isinstance(target, torch.nn.Module):
        raise TapeError(
            "usage", f"only modules have hooks, a {name} has none", path=path,
            advice='pass via="method" for other objects',
        )  # fmt: skip
    try:
        found = callable(getattr(target, method, None))
    except Exception:  # the host's own __getattr__
        found = False
    if not found:
        raise TapeError(
            "usage", f"a {name} has no method {method!r}", path=path,
            advice="name one of its methods",
        )  # fmt: skip
    if via == "method" and not _takes_attributes(target):
        raise TapeError(
            "usage", f"the methods of a {name} cannot be replaced: it has __slots__ or is built in",
            path=path, advice="record the object that calls it, or wrap it in a class of your own",
        )  # fmt: skip


def _takes_attributes(target: Any) -> bool:
    try:
        vars(target)
        weakref.ref(target)
    except TypeError:
        return False
    return True
