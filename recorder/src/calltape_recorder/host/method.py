"""Sees every call of one method of one object by replacing the method, so also direct calls.

A wrapper takes the place of the method on the instance, and tells a listener of each call. If the
method returns a coroutine or generator, the call is followed to its end.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from sys import getrefcount
from types import FunctionType
from typing import Any

from torch.compiler import is_dynamo_compiling

from calltape_recorder.bounds import MAX_SEARCHED_OBJECTS
from calltape_recorder.host.compilers import breaks_graph, skip_frame
from calltape_recorder.host.listener import Attachment, Listener, begun, tell, vanishing
from calltape_recorder.host.streams import KINDS, ONE_REFERENCE, Kind, carried_on, deferred, kind_of
from calltape_recorder.threads import Count
from calltape_schema.objects import dict_of

__all__ = ["ReplacedMethod", "leads_to"]

# Finds out whether a callable may call another one, from what it holds.
#
# In come two callables. Out goes an answer that errs on the side of yes. Nothing is called.


def leads_to(found: Any, sought: Any, state: Mapping[str, Any]) -> bool:
    """Whether ``found`` holds ``sought``: in what it wraps or binds, or in a closure.

    Args:
        found: a callable.
        sought: the one that it may call.
        state: the attributes of an object, of which the code of ``found`` may use some by name.
    """
    waiting, seen = [found], set[int]()
    while waiting:
        one = waiting.pop()
        if one is sought or len(seen) > MAX_SEARCHED_OBJECTS:
            return True
        if id(one) in seen:
            continue
        held = _held_by(one, state)
        if held is None:
            if one is found:
                return True  # it is of C code, for example
            continue
        seen.add(id(one))
        waiting += held
    return False


def _held_by(one: Any, state: Mapping[str, Any]) -> list[Any] | None:
    """What an object holds; None if nobody knows."""
    kind = type(one)
    if kind is types.MethodType:
        return [one.__func__]
    if issubclass(kind, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if kind is types.FunctionType:
        return list(_held_by_function(one, state))
    if kind is list or kind is tuple:
        return list(one)
    attributes = dict_of(one)
    return None if attributes is None else list(dict.copy(attributes).values())


def _held_by_function(one: types.FunctionType, state: Mapping[str, Any]) -> Iterator[Any]:
    for cell in one.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty
            continue
    yield from one.__defaults__ or ()
    yield from (one.__kwdefaults__ or {}).values()
    yield from (state[name] for name in one.__code__.co_names if name in state)
    yield from vars(one).values()


@breaks_graph
def _around(listener: Listener, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls ``function`` and records the call."""
    call = begun(listener, args, kwargs)
    if call is None:
        return function(*args, **kwargs)
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        tell(listener.fail, listener, call, error)
        raise
    if id(type(result)) in KINDS:
        alone = getrefcount(result) <= ONE_REFERENCE
        return carried_on(listener, call, result, alone=alone)
    tell(listener.finish, listener, call, result)
    return result


def _compilable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls ``function`` in a frame that ``torch.compile`` compiles.

    ``torch.compile`` compiles a forward of torch's own modules only as a part of its caller. Here
    the caller is the recorder, which is never compiled.
    """
    plain = getattr(function, "__func__", None)
    if type(plain) is not FunctionType or not str(plain.__module__).startswith("torch."):
        return function

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # Dynamo limits the recompiles per code object, so each method gets a code object of its own.
    forward.__code__ = forward.__code__.replace(co_name=plain.__name__)
    return forward


class _Wrapper:
    """Stands for a callable, with the same signature, name and attributes. It records as long as it
    has a listener.

    A copy or pickle of it is the method that was there before. It has the attributes of a function,
    so ``inspect`` recognizes a coroutine or generator function that it stands for.
    """

    def __init__(
        self, function: Any, listener: Listener, restored: tuple[Any, ...], copies: Count[int]
    ) -> None:
        functools.update_wrapper(self, function)
        with contextlib.suppress(TypeError, ValueError):
            self.__signature__ = inspect.signature(function)
        self._function = function
        self._listener: Listener | None = listener
        self._vanishes = vanishing(listener, counts=True)
        self._kind: Kind | None = kind_of(function)
        self._run = _compilable(function)
        self._restored = restored
        self._copies = copies

    @skip_frame
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        listener = self._listener
        if listener is None or (is_dynamo_compiling() and self._vanishes()):
            return self._function(*args, **kwargs)
        if self._kind is not None:
            return deferred(listener, self._function, self._kind, args, kwargs)
        return _around(listener, self._run, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        # A bound method has __self__, __func__ and __code__, for example.
        if name.startswith("_calltape") or name == "_function":
            raise AttributeError(name)
        return getattr(self._function, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        next(self._copies)
        return self._restored


def _replace(target: Any, name: str, listener: Listener, copies: Count[int]) -> None:
    """Puts a wrapper in the place of ``target.name``, on the instance."""
    function = getattr(target, name)
    own = vars(target).get(name)
    if own is None:
        # A copied module gets the method of the copy: copy and pickle make an object before its
        # attributes, so the attributes may refer to it.
        restored: tuple[Any, ...] = (getattr, (target, name))
    else:
        restored = (operator.itemgetter(0), ((own,),))
    wrapper = _Wrapper(function, listener, restored, copies)
    wrapper.__dict__["_calltape_own"] = own
    object.__setattr__(target, name, wrapper)


def _restore(target: Any, name: str, listener: Listener) -> None:
    """Takes the wrapper away. If others wrapped it since, it stays, and the caller makes it pass
    calls on."""
    current = vars(target).get(name)
    if isinstance(current, _Wrapper) and current._listener is listener:
        own = current.__dict__["_calltape_own"]
        # A wrapper without a listener belongs to a recorder that was closed earlier.
        while isinstance(own, _Wrapper) and own._listener is None:
            own = own.__dict__["_calltape_own"]
        if own is None:
            object.__delattr__(target, name)
        else:
            object.__setattr__(target, name, own)
        current._listener = None


class ReplacedMethod(Attachment):
    """A wrapper in the place of one method, on one instance of any class."""

    def __init__(self, target: Any, method: str, listener: Listener) -> None:
        super().__init__()
        self._target = weakref.ref(target)
        self._method = method
        self._listener = listener
        _replace(target, method, listener, self.copies)
        self._wrapper: weakref.ref[_Wrapper] = weakref.ref(vars(target)[method])

    def trouble(self) -> str | None:
        target, wrapper = self._target(), self._wrapper()
        if target is None:
            return None
        state = vars(target)
        if wrapper is not None and leads_to(state.get(self._method), wrapper, state):
            return None
        return (
            f"something put another {self._method} in the place of the recorder's (accelerate's"
            " prepare() and remove_hook_from_module() do): later calls are not seen. Attach after"
            " it"
        )

    def detach(self) -> None:
        target, wrapper = self._target(), self._wrapper()
        if target is not None:
            _restore(target, self._method, self._listener)
        if wrapper is not None:
            wrapper._listener = None
