"""What all ways to see a module's calls share: what they put on it, and whom they tell of calls.

Each way is an :class:`Attachment`: it puts something on the module and tells a :class:`Listener` of
its calls. The host stays as it was: signatures, copies, pickles and compiled graphs are the same as
without a recorder. If the model is copied or saved, what was put on it turns into objects of the
standard library that do nothing. So a saved model can be loaded without calltape. Nothing that the
listener raises reaches the host, and the listener's code is not compiled.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Protocol

from calltape_recorder.call import Call
from calltape_recorder.host.compilers import (
    assumed_constant,
    is_full_graph,
    off,
    one_graph,
    skip_frame,
)
from calltape_recorder.threads import Count, is_interrupt


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


class Attachment(abc.ABC):
    """Something that was put on a module to see its calls, and can be taken off.

    Attributes:
        copies: counts the copies that were made of it, with the module: nobody sees their calls.
    """

    def __init__(self) -> None:
        self.copies: Count[int] = Count()

    @abc.abstractmethod
    def trouble(self) -> str | None:
        """What somebody did to it since, so that calls may not be seen; None if it is in place."""

    @abc.abstractmethod
    def detach(self) -> None:
        """Takes it off. What others put on top stays. It may be called twice."""

    def hand_over_ended(self, error: BaseException | None) -> None:  # noqa: B027
        """Tells the listener of calls that ended unnoticed, as far as this thread can know. A
        replaced method notices every end, so it does nothing here.

        Args:
            error: the exception that ends the recording, if there is one. It may have ended a call.
        """


def vanishing(listener: Listener, *, counts: bool) -> Callable[[], bool]:
    """Makes a function that tells, while Dynamo traces, whether the recorder must leave no trace in
    the graph.

    A graph break does not change the host's results, and every call can be recorded. If the host
    forbids graph breaks, or exports, then the calls are not seen.

    Args:
        listener: is told of the trace.
        counts: whether the function counts the trace as a call that was not recorded.
    """

    def vanishes() -> bool:
        try:
            if not one_graph():
                return False
            if counts:
                listener.skip(said=is_full_graph())
        except Exception as error:  # otherwise the host's compilation would fail
            listener.fault(error)
        return True

    return assumed_constant(vanishes)


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
