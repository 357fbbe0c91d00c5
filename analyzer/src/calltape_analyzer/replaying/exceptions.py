"""Whether a call raises what it raised when it was recorded.

In come the recorded class and message, and the exception of now. Classes are compared by name:
nothing that a tape names is imported.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from calltape_analyzer.comparison.reports import error_in_words, text_of
from calltape_analyzer.pytree.classes import name_of
from calltape_analyzer.reading.call import Call
from calltape_schema.privacy import is_without_text
from calltape_schema.records import ModelError

__all__ = ["has_message", "other_exception", "same_class", "was_interrupted"]

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_LEAST_CUT = 500
"""A recorder without memory keeps so many characters of a message, and more otherwise."""

_INTERRUPTIONS = frozenset(
    {
        "builtins:BaseException",  # hooks did not see which one
        "builtins:GeneratorExit",
        "builtins:KeyboardInterrupt",
        "asyncio.exceptions:CancelledError",
        "trio:Cancelled",
    }
)


def was_interrupted(call: Call) -> bool:
    """Whether a call ended because somebody else ended it (Ctrl-C, a cancelled request): its model
    does not do this again."""
    return call.record.error is not None and call.record.error.type in _INTERRUPTIONS


def has_message(recorded: ModelError) -> bool:
    """Whether the tape has the message of an exception, and not only its length."""
    return not is_without_text(recorded.message)


def same_class(recorded: ModelError, error: BaseException) -> bool:
    """Whether an exception is of the recorded class. The classes of a script have other names if it
    is imported."""
    now = name_of(type(error))
    if now == recorded.type:
        return True
    (module, _, name), (other, _, other_name) = now.partition(":"), recorded.type.partition(":")
    return name == other_name and "__main__" in (module, other)


def other_exception(recorded: ModelError, error: BaseException) -> str | None:
    """What is not as it was recorded, None if the exception is the same: its class, and its message
    if that is on the tape. Addresses of memory in it may differ."""
    if not same_class(recorded, error):
        unknown = "" if _is_known(recorded.type) else ", a class that is not loaded here"
        return f"{error_in_words(error)}, instead of {recorded.type}{unknown}"
    if not has_message(recorded):
        return None
    one, other = (_ADDRESS.sub("0x", text) for text in (recorded.message, text_of(error)))
    if one == other or (len(recorded.message) >= _LEAST_CUT and other.startswith(one)):
        return None
    name = type(error).__name__
    return f"{name} with the message {other.strip()!r:.200}, instead of {one.strip()!r:.200}"


def _is_known(name: str) -> bool:
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return isinstance(found, type)
