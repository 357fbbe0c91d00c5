"""Sees every call of one method of one object, including direct calls, by replacing the method.

A wrapper takes the place of the method on the instance, and notifies a listener of each call. If
the method returns a coroutine or generator, the call is followed to its end.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import types
import weakref
from collections.abc import Callable, Mapping
from sys import getrefcount
from types import FunctionType
from typing import Any

from torch.compiler import is_dynamo_compiling

from calltape_recorder.bounds import MAX_SEARCHED
from calltape_recorder.host.listener import (
    Attachment,
    Listener,
    breaks_graph,
    notify,
    set_frame_callback,
    skip_frame,
    vanishing,
)
from calltape_recorder.host.streams import (
    DEFERRED_TYPES,
    ONE_REFERENCE,
    DeferredKind,
    deferred,
    deferred_kind_of,
    followed_result,
)
from calltape_recorder.threads import Count
from calltape_schema.objects import class_attribute, dict_of, mro_of, namespace_of


def _leads_to(start: Any, sought: Any, state: Mapping[str, Any]) -> bool:
    """Whether a callable may call another one, judging by what it wraps, binds or closes over. In
    doubt, the answer is True. Nothing is called.

    Args:
        start: a callable.
        sought: the one that it may call.
        state: the attributes of an object, of which the code of ``start`` may use some by name.
    """
    waiting, seen = [start], set[int]()
    while waiting:
        candidate = waiting.pop()
        if candidate is sought or len(seen) > MAX_SEARCHED:
            return True
        if id(candidate) in seen:
            continue
        references = _references_of(candidate, state)
        if references is None:
            if candidate is start:
                return True  # C code, for example
            continue
        seen.add(id(candidate))
        waiting += references
    return False


def _references_of(value: Any, state: Mapping[str, Any]) -> list[Any] | None:
    """What an object refers to; None if unknown."""
    kind = type(value)
    if kind is types.MethodType:
        return [value.__func__]
    if issubclass(kind, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if kind is list or kind is tuple:
        return list(value)
    if kind is not FunctionType:
        attributes = dict_of(value)
        return None if attributes is None else list(dict.copy(attributes).values())
    references = [
        *(value.__defaults__ or ()),
        *(value.__kwdefaults__ or {}).values(),
        *vars(value).values(),
    ]
    references += [state[name] for name in value.__code__.co_names if name in state]
    for cell in value.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            references.append(cell.cell_contents)
    return references


@breaks_graph
def _record_call(listener: Listener, wrapper: _Wrapper, args: Any, kwargs: Any) -> Any:
    """Calls the function that the wrapper replaces, and records the call."""
    wrapper.follow_class()
    function = wrapper._run
    call = notify(listener.begin, listener, args, kwargs)
    if call is None:
        return function(*args, **kwargs)
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        notify(listener.fail, listener, call, error)
        raise
    if id(type(result)) in DEFERRED_TYPES:
        alone = getrefcount(result) <= ONE_REFERENCE
        return followed_result(listener, call, result, alone=alone)
    notify(listener.finish, listener, call, result)
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
    """Replaces a callable, with the same signature, name and attributes. It records as long as it
    has a listener.

    A copy or pickle of it is the method that it replaced, or for a function of a module, what the
    module has under that name. It has the attributes of a function, so ``inspect`` recognizes a
    replaced coroutine or generator function. Attributes that are set on it are set on the replaced
    function, and on a class it is a method.

    Args:
        function: the callable.
        listener: is notified of calls.
        name: the name of the method, if the class has it. Then the wrapper runs the method that the
            class has at a call: the class may get another method, or the object another class.
            Graphs that were compiled before use the old method, as they do without a recorder. None
            if the callable is an attribute of the object itself.
        restored: what a copy or pickle is made of.
        copies: counts copies and pickles.
    """

    def __init__(
        self, function: Any, listener: Listener, name: str | None,
        restored: str | tuple[Any, ...], copies: Count,
    ) -> None:  # fmt: skip
        functools.update_wrapper(self, function)
        with contextlib.suppress(TypeError, ValueError):
            self.__signature__ = inspect.signature(function)
        self._name = name
        self._class: type | None = None
        self._namespaces: list[Mapping[str, Any]] = []
        self._listener: Listener | None = listener
        self._vanishes = vanishing(listener, counts=True)
        self._kind: DeferredKind | None = deferred_kind_of(function)
        self._run = _compilable(function)
        self._restored = restored
        self._copies = copies
        self._function = function
        self._identity = id(self)  # the attributes may come from another wrapper

    @skip_frame
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        listener = self._listener
        if listener is None or (is_dynamo_compiling() and self._vanishes()):
            return self._function(*args, **kwargs)
        if self._kind is not None:
            self.follow_class()
        kind = self._kind
        if kind is not None:
            return deferred(listener, self._function, kind, args, kwargs)
        return _record_call(listener, self, args, kwargs)

    @skip_frame
    def follow_class(self) -> None:
        """Adopts the method that the class of the object has now. No code of the application
        runs."""
        if self._name is None:
            return
        callback = set_frame_callback(None)
        try:
            function = self._function
            cls = type(function.__self__)
            if cls is not self._class:
                self._namespaces = [namespace_of(base) for base in mro_of(cls)]
                self._class = cls
            for names in self._namespaces:
                if self._name in names:
                    current = names[self._name]
                    break
            else:
                return
            if current is not function.__func__ and type(current) is FunctionType:
                function = types.MethodType(current, function.__self__)
                self._function, self._kind = function, deferred_kind_of(function)
                self._run = _compilable(function)
        finally:
            set_frame_callback(callback)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        # A bound method has __self__, __func__ and __code__, for example.
        if name.startswith("_calltape") or name == "_function":
            raise AttributeError(name)
        return getattr(self._function, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN_ATTRIBUTES or self.__dict__.get("_identity") != id(self):
            object.__setattr__(self, name, value)
        else:
            setattr(self._function, name, value)
            self.__dict__.pop(name, None)

    def __delattr__(self, name: str) -> None:
        delattr(self._function, name)
        self.__dict__.pop(name, None)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self._restored) is not str:
            next(self._copies)
        return self._restored


_OWN_ATTRIBUTES = frozenset({"_class", "_function", "_kind", "_listener", "_namespaces", "_run"})
"""The attributes that the recorder sets on a wrapper after its creation."""


class ReplacedMethod(Attachment):
    """A wrapper in the place of one method, on one instance of any class."""

    def __init__(self, target: Any, method: str, listener: Listener) -> None:
        super().__init__()
        self._target = weakref.ref(target)
        self._method = method
        function = getattr(target, method)
        own = vars(target).get(method)
        # A copied module gets the method of the copy: copy and pickle make an object before its
        # attributes, so the attributes may refer to it.
        restored: str | tuple[Any, ...] = (getattr, (target, method))
        if own is not None:
            restored = (operator.itemgetter(0), ((own,),))
            # Where a module has a function by its name, a pickle has that name only.
            if isinstance(target, types.ModuleType) and own.__module__ == target.__name__:
                restored = method
        is_of_class = (
            type(function) is types.MethodType
            and function.__self__ is target
            and class_attribute(type(target), method) is function.__func__
        )
        name = method if own is None and is_of_class else None
        wrapper = _Wrapper(function, listener, name, restored, self.copies)
        wrapper.__dict__["_calltape_own"] = own
        object.__setattr__(target, method, wrapper)
        self._wrapper = weakref.ref(wrapper)

    def trouble(self) -> str | None:
        target, wrapper = self._target(), self._wrapper()
        if target is None:
            return None
        state = vars(target)
        if wrapper is not None and _leads_to(state.get(self._method), wrapper, state):
            return None
        return (
            f"something put another {self._method} in the place of the recorder's (accelerate's"
            " prepare() and remove_hook_from_module() do): later calls are not seen. Attach after"
            " it"
        )

    def detach(self) -> None:
        """Removes the wrapper, also where another library keeps it on the instance to put it back,
        as accelerate does. If it is wrapped in another way, it stays and passes calls on."""
        target, wrapper = self._target(), self._wrapper()
        if wrapper is None:
            return
        if target is not None:
            original = wrapper.__dict__["_calltape_own"]
            # A wrapper without a listener belongs to a recorder that was closed earlier.
            while isinstance(original, _Wrapper) and original._listener is None:
                original = original.__dict__["_calltape_own"]
            state = dict.copy(vars(target))
            for name in [name for name, references in state.items() if references is wrapper]:
                if name == self._method and original is None:
                    object.__delattr__(target, name)
                else:
                    object.__setattr__(
                        target, name, wrapper._function if original is None else original
                    )
        wrapper._listener = None
