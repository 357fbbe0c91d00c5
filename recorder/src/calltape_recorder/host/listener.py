"""Tells a :class:`Listener` of the host's calls.

Hooks, a replaced method or a stream see the calls and use the functions here. Nothing that the
listener raises reaches the host, and the listener's code is not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from calltape_recorder.call import Call
from calltape_recorder.host.compilers import off, skip_frame
from calltape_recorder.threads import is_interrupt

__all__ = ["Listener", "begun", "tell"]


class Listener(Protocol):
    """Handles the calls of one module.

    Attributes:
        active: whether it still handles calls.
    """

    active: bool

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A call begins. The result is None if it is not recorded."""

    def chunk(self, call: Call, value: Any) -> None:
        """A call yields a chunk of its output."""

    def finish(self, call: Call, result: Any) -> None:
        """A call returned."""

    def fail(self, call: Call, error: BaseException | None) -> None:
        """A call raised."""

    def abandon(self, call: Call) -> None:
        """A call is under way, and nobody will tell how it ends."""

    def skip(self, *, said: bool) -> None:
        """A call is traced, not run. ``said`` is True if the later calls of what is being compiled
        will not be seen, which the user must be told."""

    def fault(self, error: BaseException) -> None:
        """Something went wrong in the recorder itself."""


# Frame evaluation is off only in the recorder's code, so the host's code stays compiled.


@skip_frame
def begun(listener: Listener, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Tells the listener that a call begins. The result is None if it is not recorded."""
    previous = off(None)
    try:
        return listener.begin(args, kwargs)
    except BaseException as error:
        if is_interrupt(error):
            raise
        listener.fault(error)
        return None
    finally:
        off(previous)


@skip_frame
def tell(what: Callable[[Call, Any], None], listener: Listener, call: Call, value: Any) -> None:
    """Tells the listener what became of a call; ``what`` is a method of it."""
    previous = off(None)
    try:
        what(call, value)
    except BaseException as error:
        if is_interrupt(error):
            raise
        listener.fault(error)
    finally:
        off(previous)
