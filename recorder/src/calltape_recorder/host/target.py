"""Finds and checks what is to be recorded, and describes it for the manifest.

The manifest has its class, method and signature, the variables that its code reads besides its
arguments, and the software that records it.
"""

from __future__ import annotations

import dis
import importlib
import inspect
import platform
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from threading import local
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal, cast

import torch

from calltape_recorder.bounds import (
    MAX_NAME_CHARACTERS,
    MAX_OUTSIDE,
    MAX_OUTSIDE_CHARACTERS,
    MAX_SEARCHED,
)
from calltape_recorder.capture.names import type_name
from calltape_recorder.capture.omissions import is_public_default
from calltape_schema import TapeError, __version__
from calltape_schema.bounds import MAX_PARAMETERS
from calltape_schema.objects import class_attribute, namespace_of
from calltape_schema.records import Parameter, Producer, Rank, Target

# Engines keep the state of a step outside of the call, where no tape has it. vLLM's layers find the
# attention metadata and the cache in a global variable that is set around each call; others use a
# context variable or a thread-local one. So the code of the layers' forward methods, and of the
# functions that these name, is searched once for variables that are read there and set elsewhere.

_NOT_OF_MODELS = frozenset(
    ("torch", "transformers", "numpy", "calltape_recorder", "logging", "warnings", "typing", "os")
)
"""Packages whose global state belongs to the process, not to a call."""
_SETS = frozenset(("STORE_GLOBAL", "DELETE_GLOBAL"))
_CHANGES = frozenset(("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_ATTR", "DELETE_ATTR"))
_CHANGING = frozenset(("append", "clear", "extend", "pop", "popitem", "setdefault", "update"))


def outside_state(target: Any, method: str) -> tuple[str, ...]:
    """The variables of modules (``engine.context._current``) that the code of a recorded method
    reads, and that functions of these modules set or change; at most eight."""
    try:
        return tuple(dict.fromkeys(_outside_names(target, method)))[:MAX_OUTSIDE]
    except Exception:  # objects of the application may be anything
        return ()


def _outside_names(target: Any, method: str) -> Iterator[str]:
    waiting: deque[FunctionType] = deque(_methods(target, method))
    known = set(map(id, waiting))
    changed: dict[int, frozenset[str]] = {}
    while waiting and len(known) < MAX_SEARCHED:
        function = waiting.popleft()
        names = function.__globals__
        home = str(names.get("__name__", ""))
        for name in names_in(function.__code__):
            value = names.get(name)
            if type(value) is FunctionType:
                if id(value) not in known and not _is_of_library(value.__module__):
                    known.add(id(value))
                    waiting.append(value)
            elif name in names and not _is_of_library(home):
                if id(names) not in changed:
                    changed[id(names)] = _changed_in(names)
                if type(value) in (ContextVar, local) or name in changed[id(names)]:
                    yield f"{home}.{name}"[:MAX_OUTSIDE_CHARACTERS]


def _methods(target: Any, method: str) -> Iterator[FunctionType]:
    """The recorded method, and the forward methods of all layers."""
    classes = {id(type(target)): type(target)}
    if issubclass(type(target), torch.nn.Module):
        for layer in torch.nn.Module.modules(target):
            if len(classes) < MAX_SEARCHED:
                classes.setdefault(id(type(layer)), type(layer))
    for cls in classes.values():
        for base in type.mro(cls):
            function = namespace_of(base).get(method if cls is type(target) else "forward")
            if type(function) is FunctionType:
                function = getattr(function, "__wrapped__", function)
            if type(function) is FunctionType and not _is_of_library(function.__module__):
                yield function
                break


def _is_of_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _NOT_OF_MODELS


def names_in(code: CodeType) -> Iterator[str]:
    """The names that a function reads, those of functions within it as well."""
    yield from code.co_names
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from names_in(inner)


def _changed_in(names: Mapping[str, Any]) -> frozenset[str]:
    """The variables of a module that its functions set, or whose content they change."""
    changed: set[str] = set()
    for value in list(names.values()):
        function = getattr(value, "__wrapped__", value) if type(value) is FunctionType else None
        if type(function) is FunctionType and function.__globals__ is names:
            changed.update(_changed_by(function.__code__))
    return frozenset(changed)


def _changed_by(code: CodeType) -> Iterator[str]:
    before: list[tuple[str, Any]] = []
    for step in dis.get_instructions(code):
        if step.opname in _SETS:
            yield str(step.argval)
        elif step.opname in _CHANGES or step.argval in _CHANGING:
            # The container is loaded right before, or before the key.
            yield from (str(name) for kind, name in before[-2:] if kind == "LOAD_GLOBAL")
        before.append((step.opname, step.argval))
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from _changed_by(inner)


# A library of kernels has functions and no modules. Calls of a function are seen by replacing the
# attribute that callers look up, so the object with this attribute is recorded.


def owner_of(target: Any, path: str | None = None) -> tuple[Any, str | None]:
    """The object to record and the name of its method; of anything but functions and names, the
    target itself and None.

    Args:
        target: a function, a bound method, a name ``"package.module:attribute"``, or an object.
        path: of the tape, for errors.

    Raises:
        TapeError: ``usage`` if there is no such name, or a function is no module's attribute.
    """
    if isinstance(target, str):
        return _owner_by_name(target, path)
    if inspect.ismethod(target):
        return target.__self__, target.__name__
    if not inspect.isroutine(target):
        return target, None
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    name = getattr(target, "__name__", "")
    if vars(module).get(name) is target if module is not None else False:
        return module, name
    full = getattr(target, "__qualname__", name)
    raise TapeError(
        "usage", f"no module has a function named {full!r}", path=path,
        advice="record the object that has it as an attribute, and pass its name as method=",
    )  # fmt: skip


def _owner_by_name(target: str, path: str | None) -> tuple[Any, str | None]:
    module, colon, attributes = target.partition(":")
    try:
        owner: Any = None
        value: Any = importlib.import_module(module)
        for name in attributes.split(".") if colon else ():
            owner, value = value, getattr(value, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TapeError(
            "usage", f"cannot find {target!r}: {error}", path=path,
            advice="write it like package.module:function",
        ) from None  # fmt: skip
    if inspect.isroutine(value) and owner is not None:
        return owner, attributes.rpartition(".")[2]
    return value, None


def check_target(
    target: Any, method: str, via: Literal["hook", "method"], path: str | None = None
) -> None:
    """Checks that this method of this object can be recorded.

    Raises:
        TapeError: ``usage`` if it cannot.
    """
    name = type(target).__name__
    if isinstance(target, type):
        raise TapeError(
            "usage", f"{target.__name__} is a class", path=path,
            advice="pass the instance whose calls you want to record",
        )  # fmt: skip
    if via == "hook" and not isinstance(target, torch.nn.Module):
        raise TapeError(
            "usage", f"only modules have hooks; a {name} has none", path=path,
            advice='pass via="method" for other objects',
        )  # fmt: skip
    try:
        is_callable = callable(getattr(target, method, None))
    except Exception:  # the application's own __getattr__
        is_callable = False
    if not is_callable:
        raise TapeError(
            "usage", f"a {name} has no method {method!r}", path=path,
            advice="name one of its methods",
        )  # fmt: skip
    if via == "method":
        if hasattr(type(class_attribute(type(target), method, None)), "__set__"):
            raise TapeError(
                "usage", f"{method} of a {name} is a property, which cannot be replaced", path=path,
                advice="record the object whose method it returns",
            )  # fmt: skip
        try:
            vars(target)
            weakref.ref(target)
        except TypeError:
            raise TapeError(
                "usage",
                f"the methods of a {name} cannot be replaced: it has __slots__ or is built in",
                path=path,
                advice="record the object that calls it, or wrap it in a class of your own",
            ) from None


def original_of(module: Any) -> Any:
    """The module inside one that ``torch.compile`` made; of anything else, the object itself."""
    parts = getattr(module, "__dict__", {}).get("_modules")
    # In a scripted module, _modules is not a dict.
    return parts.get("_orig_mod", module) if isinstance(parts, dict) else module


def describe_target(
    module: Any, method: str, via: Literal["hook", "method"], *, omits_values: bool
) -> Target:
    """The class, method and signature of what will be recorded.

    For a module that ``torch.compile`` made, they come from the module inside it.
    """
    original = original_of(module)
    name = str(module.__name__)[:MAX_NAME_CHARACTERS] if isinstance(module, ModuleType) else None
    return Target(
        type=type_name(type(original)), method=method[:MAX_NAME_CHARACTERS], via=via,
        signature=_signature(getattr(original, method), omits_values),
        module=name,
        outside=outside_state(original, method) or None,
    )  # fmt: skip


def describe_producer() -> Producer:
    """The versions of the software that writes the tape, without the name of the machine."""
    transformers: Any = sys.modules.get("transformers")
    return Producer(
        calltape=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=f"{platform.system()}-{platform.machine()}",
        transformers=transformers and str(getattr(transformers, "__version__", "unknown")),
    )


def rank_now() -> Rank | None:
    """The rank of this process in a ``torch.distributed`` job; None if it is in none yet."""
    try:
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return None
        size = torch.distributed.get_world_size()
        return Rank(number=torch.distributed.get_rank(), of=size) if size > 1 else None
    except Exception:  # the application may have ended the job meanwhile
        return None


def _signature(function: Any, omits_values: bool) -> tuple[Parameter, ...] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (
        Exception
    ):  # TypeError, ValueError, or anything that the application's __signature__ raises
        return None
    if len(parameters) > MAX_PARAMETERS:
        return None
    described: dict[str, Parameter] = {}
    for parameter in parameters:
        default = cast("Any", parameter.default)
        has_default = default is not inspect.Parameter.empty
        fits = has_default and is_public_default(default, parameter.name, omits_values=omits_values)
        name = parameter.name[:MAX_NAME_CHARACTERS]
        described[name] = Parameter(
            name=name,
            kind=parameter.kind.name,  # type: ignore[arg-type]
            has_default=has_default,
            default=default if fits else None,  # pyright: ignore[reportArgumentType]
            default_missing=has_default and not fits,
        )
    is_cut = len(described) < len(parameters)
    return None if is_cut else tuple(described.values())
