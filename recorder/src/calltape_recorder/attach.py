"""How the recorder gets to see calls: a pair of forward hooks (``hooks.py``), or a replaced method.

Both leave the host as it was: signatures, copies, pickles and compiled graphs are those of a model
without a recorder. What is put on the model turns into plain standard-library objects that do
nothing when the model is copied or saved, so a saved model loads where calltape is not installed.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import inspect
import operator
import weakref
from collections.abc import Callable
from sys import getrefcount
from types import FunctionType
from typing import Any

from torch.compiler import is_dynamo_compiling

from calltape_recorder.compilers import (
    assumed_constant,
    breaks_graph,
    is_full_graph,
    one_graph,
    skip_frame,
)
from calltape_recorder.streams import KINDS, ONE_REFERENCE, Kind, carried_on, deferred, kind_of
from calltape_recorder.tap import Tap
from calltape_recorder.telling import begun, tell

__all__ = ["Attachment", "ReplacedMethod", "vanishing"]


class Attachment(abc.ABC):
    """What was done to a module, and how to undo it."""

    @abc.abstractmethod
    def detach(self) -> None:
        """Undoes it, leaving alone what others put on top. It may be called twice."""

    def settle(self, error: BaseException | None) -> None:  # noqa: B027 - a replaced method is told
        """Hands over calls that ended without the recorder being told."""


def vanishing(tap: Tap, *, counts: bool) -> Callable[[], bool]:
    """Asked by what is being traced, at trace time: shall it leave no trace in the graph?

    A graph break keeps the host's results and lets every call be recorded. Where the host forbids
    graph breaks, or exports, the calls are not seen; the trace itself is counted.
    """

    def vanishes() -> bool:
        try:
            if not one_graph():
                return False
            if counts:
                tap.skip(said=is_full_graph())
        except Exception as error:  # raised in here it would be the host's compilation that fails
            tap.fault(error)
        return True

    return assumed_constant(vanishes)


# --- around a callable -------------------------------------------------------------------------


@breaks_graph
def _around(tap: Tap, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls ``function`` and records the call."""
    call = begun(tap, args, kwargs)
    if call is None:
        return function(*args, **kwargs)
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        tell(tap.fail, tap, call, error)
        raise
    if type(result) in KINDS:
        alone = getrefcount(result) <= ONE_REFERENCE
        return carried_on(tap, call, result, alone=alone)
    tell(tap.finish, tap, call, result)
    return result


def _compilable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls ``function`` in a frame that ``torch.compile`` compiles.

    It compiles the forwards of torch's own modules only as a part of what calls them, and that
    would be us, whom it does not compile.
    """
    plain = getattr(function, "__func__", None)
    if type(plain) is not FunctionType or not str(plain.__module__).startswith("torch."):
        return function

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # Recompiles are counted per code object, and limited: each method has one of its own.
    forward.__code__ = forward.__code__.replace(co_name=plain.__name__)
    return forward


class _Wrapper:
    """Stands for a callable: same signature, name and attributes; records while ``tap`` is there.

    Copies and pickles to what was there before. With the attributes of a function, ``inspect``
    takes it for the coroutine or generator function that it stands for.
    """

    def __init__(self, function: Any, tap: Tap, restored: tuple[Any, ...]) -> None:
        functools.update_wrapper(self, function)
        with contextlib.suppress(TypeError, ValueError):
            self.__signature__ = inspect.signature(function)
        self._function = function
        self._tap: Tap | None = tap
        self._vanishes = vanishing(tap, counts=True)
        self._kind: Kind | None = kind_of(function)
        self._run = _compilable(function)
        self._restored = restored

    @skip_frame
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tap = self._tap
        if tap is None or (is_dynamo_compiling() and self._vanishes()):
            return self._function(*args, **kwargs)
        if self._kind is not None:
            return deferred(tap, self._function, self._kind, args, kwargs)
        return _around(tap, self._run, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        # __self__, __func__, __code__: what a bound method has.
        if name.startswith("_calltape") or name == "_function":
            raise AttributeError(name)
        return getattr(self._function, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._restored


def _replace(target: Any, name: str, tap: Tap) -> None:
    """Puts a wrapper in the place of ``target.name``, on the instance."""
    function = getattr(target, name)
    own = vars(target).get(name)
    if own is None:
        # The copy's own method: a copied module is known before its attributes are.
        restored: tuple[Any, ...] = (getattr, (target, name))
    else:
        restored = (operator.itemgetter(0), ((own,),))
    wrapper = _Wrapper(function, tap, restored)
    wrapper.__dict__["_calltape_own"] = own
    object.__setattr__(target, name, wrapper)


def _restore(target: Any, name: str, tap: Tap) -> None:
    """Takes our wrapper away, or makes it pass calls on where others wrapped it since."""
    current = vars(target).get(name)
    if isinstance(current, _Wrapper) and current._tap is tap:
        own = current.__dict__["_calltape_own"]
        while isinstance(own, _Wrapper) and own._tap is None:  # of a recorder closed before us
            own = own.__dict__["_calltape_own"]
        if own is None:
            object.__delattr__(target, name)
        else:
            object.__setattr__(target, name, own)
        current._tap = None


class ReplacedMethod(Attachment):
    """A wrapper in the place of one method, on one instance; of anything, not only modules."""

    def __init__(self, target: Any, method: str, tap: Tap) -> None:
        self._target = weakref.ref(target)
        self._method = method
        self._tap = tap
        _replace(target, method, tap)
        self._wrapper: weakref.ref[_Wrapper] = weakref.ref(vars(target)[method])

    def detach(self) -> None:
        target, wrapper = self._target(), self._wrapper()
        if target is not None:
            _restore(target, self._method, self._tap)
        if wrapper is not None:
            wrapper._tap = None
