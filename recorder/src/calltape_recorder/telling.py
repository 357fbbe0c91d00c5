"""How a tap is told of calls from within the host's: nothing is raised, nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from calltape_recorder.compilers import off, skip_frame
from calltape_recorder.encoding import Call

__all__ = ["Listener", "begun", "tell"]


class Listener(Protocol):
    """What a tap does, for those who tell it."""

    active: bool

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A call begins; None where it is not recorded."""

    def chunk(self, call: Call, value: Any) -> None:
        """A call yields a chunk of its output."""

    def finish(self, call: Call, result: Any) -> None:
        """A call returned."""

    def fail(self, call: Call, error: BaseException | None) -> None:
        """A call raised."""

    def fault(self, error: BaseException) -> None:
        """Something went wrong in the recorder itself."""


# Frame evaluation is off only in our own parts, so that what the host compiles stays compiled.


@skip_frame
def begun(tap: Listener, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Says that a call begins; None where it is not recorded."""
    previous = off(None)
    try:
        return tap.begin(args, kwargs)
    except Exception as error:
        tap.fault(error)
        return None
    finally:
        off(previous)


@skip_frame
def tell(what: Callable[[Call, Any], None], tap: Listener, call: Call, value: Any) -> None:
    """Says what became of a call."""
    previous = off(None)
    try:
        what(call, value)
    except Exception as error:
        tap.fault(error)
    finally:
        off(previous)
