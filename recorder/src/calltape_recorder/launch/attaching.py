"""Attaches recorders to what ``CALLTAPE`` names, in a process that has it.

``startup/calltape_startup.py`` finds the target and calls :func:`attach`. Only this file of the
folder imports torch.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import inspect
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from calltape_recorder.bounds import MAX_INSTANCES
from calltape_recorder.launch.launcher import directory_in, options_in
from calltape_recorder.launch.startup.calltape_startup import has_tape, models_there
from calltape_recorder.recorder import Recorder, record
from calltape_recorder.threads import RLock
from calltape_recorder.write.notices import say
from calltape_schema import TapeError

_OF_PROTOCOLS = "_no_init_or_replace_init"
"""The ``__init__`` that typing gives to protocols."""


def attach(settings: Mapping[str, Any], owner: Any, name: str, value: Any) -> None:
    """Records ``value``, which was found at the target's name: it is ``owner.name``.

    A module is recorded as :func:`~calltape_recorder.record` does it. Of a class, every instance is
    recorded, each on a tape of its own. Of a method or function, its calls are recorded.

    Raises:
        TapeError: ``usage`` if a setting is wrong or the value cannot be recorded, ``io`` if the
            tape cannot be written.
    """
    options = options_in(settings)
    tape = directory_in(settings)
    is_command = settings.get("pid") == os.getpid()
    if isinstance(value, type):
        _follow_instances(value, tape, options, is_command)
    elif isinstance(owner, type) and inspect.isfunction(value):
        _follow_instances(owner, tape, {**options, "method": name}, is_command)
    elif not isinstance(value, torch.nn.Module) and inspect.isroutine(value):
        _start(owner, tape, {**options, "method": name}, running=True)
    elif isinstance(value, torch.nn.Module) or options.keys() & {"method", "via"}:
        _start(value, tape, options, running=True)
    else:
        raise TapeError(
            "usage", f"the target is a {type(value).__name__}, not a module, class or method",
            advice="name the method that the server calls: package.module:object.method",
        )  # fmt: skip


def _start(target: Any, directory: str, options: Mapping[str, Any], *, running: bool) -> Recorder:
    """Begins a tape. A target that was found ``running`` may have been called before."""
    return record(target, os.path.join(directory, ""), running=running, **options)


def _follow_instances(
    cls: type, directory: str, options: Mapping[str, Any], is_command: bool = False
) -> None:
    """Records every instance of the class and its subclasses: existing ones, and those that are
    created from now on. Copies are not recorded, because a copy does not run ``__init__``. With
    ``is_command``, this process says at its end if there was no instance."""
    instances: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    lock = RLock()  # a finalizer may make an instance while this thread has the lock
    count = 0

    def renew() -> None:
        nonlocal lock
        lock = RLock()

    # A thread that does not exist in the child may hold the lock.
    os.register_at_fork(after_in_child=renew)

    def born(instance: Any, *, running: bool = False) -> None:
        nonlocal count
        try:
            with lock:
                if instances.get(id(instance)) is instance or count >= MAX_INSTANCES:
                    return
                instances[id(instance)] = instance
                count += 1
                last = count == MAX_INSTANCES
            _start(instance, directory, options, running=running)
        except Exception as error:
            _warn("an instance of %s is not recorded: %s", cls.__name__, error)
        else:
            if last:
                _warn(
                    "%d instances of %s are recorded; later instances are not",
                    MAX_INSTANCES, cls.__name__,
                )  # fmt: skip

    pid, since = os.getpid(), time.time()

    def say_if_none() -> None:  # a worker may have recorded
        if pid == os.getpid() and not count and not has_tape(directory, since):
            name = f"{cls.__module__}:{cls.__qualname__}"
            _warn("no instance of %s was created: nothing is recorded%s", name, models_there())

    _after_init(cls, born)
    for found in gc.get_objects():
        if issubclass(type(found), cls):
            born(found, running=True)
    if is_command:  # after the search: the process may end during it
        atexit.register(say_if_none)


def _warn(text: str, *values: object) -> None:
    with contextlib.suppress(Exception):  # the text of a value is the application's
        say(logging.WARNING, text % values if values else text)


def _after_init(cls: type, born: Callable[[Any], None]) -> None:
    advice = "name an instance, or the method that the server calls"
    if getattr(cls, "_is_protocol", False):  # typing gives one __init__ to all that implement it
        reason = f"instances of {cls.__name__} cannot be recorded: the class is a protocol"
        raise TapeError("usage", reason, advice=advice)
    init: Callable[..., None] = cls.__init__  # type: ignore[misc]
    inherits = "__init__" not in vars(cls)

    @functools.wraps(init)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if inherits:
            _inherited_init(cls, self, __init__)(*args, **kwargs)
        else:
            init(self, *args, **kwargs)
        born(self)

    if inherits:
        with contextlib.suppress(TypeError, ValueError):  # no signature is known
            seen = inspect.signature(cls)
            given = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
            given += seen.parameters.values()
            __init__.__signature__ = seen.replace(parameters=given)  # type: ignore[attr-defined]
    try:
        cls.__init__ = __init__  # type: ignore[misc]
    except TypeError:
        reason = f"instances of {cls.__name__} cannot be recorded: the class is built in"
        raise TapeError("usage", reason, advice=advice) from None


def _inherited_init(cls: type, instance: Any, ours: object) -> Callable[..., None]:
    """The ``__init__`` that an instance would run if ``cls`` had none: in a subclass, other classes
    may come before the one from which ``cls`` inherits."""
    kind: Any = type(instance)
    before: Any = cls
    for base in kind.__mro__[kind.__mro__.index(cls) + 1 :]:
        if getattr(vars(base).get("__init__"), "__name__", None) == _OF_PROTOCOLS:
            before = base  # it looks for the next one, unless the class has another one
        elif "__init__" in vars(base):
            break
    init: Callable[..., None] = super(before, instance).__init__
    if getattr(init, "__objclass__", None) is not object or kind.__init__ is not ours:
        return init

    # object.__init__ takes the arguments of a __new__, but only of a class that has no __init__.
    def refuse(*args: Any, **kwargs: Any) -> None:
        if kind.__new__ is object.__new__ and (args or kwargs):
            raise TypeError(f"{kind.__name__}() takes no arguments")

    return refuse
