"""The base class of all ways to see a module's calls.

Each way puts something on the module and tells a listener of its calls. The host stays as it was:
signatures, copies, pickles and compiled graphs are the same as without a recorder. If the model is
copied or saved, what was put on it turns into objects of the standard library that do nothing. So a
saved model can be loaded without calltape.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

from calltape_recorder.host.compilers import assumed_constant, is_full_graph, one_graph
from calltape_recorder.host.listener import Listener
from calltape_recorder.threads import Count

__all__ = ["Attachment", "vanishing"]


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
