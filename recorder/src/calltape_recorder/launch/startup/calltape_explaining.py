"""Explains why nothing is recorded: what the target leads to, and what is there instead.

Python's start-up loads this file outside of any package, and only if there is something to explain.
It looks at names and never runs the host's code: no property, no import.
"""

from __future__ import annotations

import gc
import os
import sys
import time

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import CodeType, ModuleType
    from typing import Any

__all__ = ["LOCALS", "about_class", "about_locals", "about_module", "about_name", "has_tape"]

LOCALS = "<locals>"

_MAX_NAMES = 10_000
_MAX_OBJECTS = 2_000_000
_FUNCTION = type(lambda: None)


def about_locals(module: str, attribute: str) -> str:
    """Of a target such as ``main.<locals>.model``, which no name leads to."""
    function, _, name = attribute.partition(f".{LOCALS}.")
    return (
        f"no name leads to {name}, a local variable of {module}:{function}; name its class"
        f" ({module}:Class records all instances), or assign it to a name of the module"
    )


def about_module() -> str:
    """Of a module that nobody imported."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return "" if main is None else f"the script {main} itself is named __main__:attribute"


def about_name(
    modules: Sequence[ModuleType], attribute: str, appeared: Mapping[str, float], *, ends: bool
) -> str:
    """Of an attribute that a module never had.

    Args:
        modules: where it was looked for.
        attribute: the dotted name.
        appeared: when parts of it were there first, in seconds since 1970.
        ends: whether the process ends, so that there is time to look at all objects.
    """
    parts = [f"{name} was there at {_clock(since)}" for name, since in appeared.items()]
    modules = list(dict.fromkeys(modules))
    if modules:
        parts += filter(None, (_about_part(modules[0], attribute), _models_of(modules)))
    if ends:
        parts += filter(None, [_models_in_memory()])
    return "; ".join(parts)


def about_class(name: str) -> str:
    """Of a class that had no instance, when the process ends."""
    said = f"{name} is a class, and no instance of it was made"
    models = _models_in_memory()
    return f"{said}; {models}" if models else said


def has_tape(folder: str, since: float) -> bool:
    """Whether a tape was written in the folder after ``since``, in seconds since 1970. In doubt,
    True."""
    try:
        for name in os.listdir(folder):
            # Some file systems keep the time of a file in whole seconds.
            if name.endswith(".tape") and os.stat(f"{folder}/{name}").st_mtime >= since - 2:
                return True
    except FileNotFoundError:  # the folder is missing, or a file was deleted meanwhile
        return os.path.isdir(folder)
    except (OSError, ValueError):
        return True
    return False


def _about_part(module: ModuleType, attribute: str) -> str:
    """What is wrong with the first part that is missing."""
    owner: Any = module
    done = module.__name__
    for name in attribute.split("."):
        names = _names_of(owner)
        if name not in names:
            return _about_missing(owner, done, name)
        owner, done = names[name], f"{done}{':' if owner is module else '.'}{name}"
        if owner is None:
            return f"{done} is None: nothing was assigned to it"
    return (
        f"{done} is there by now, and was not when it was looked for last: a script is looked at a"
        " few times a second, a module that is imported at once"
    )


def _about_missing(owner: Any, done: str, name: str) -> str:
    if isinstance(owner, _FUNCTION):
        is_local = name in _locals_of(owner.__code__)
        what = f"{name} is a local variable of it" if is_local else "it has only local variables"
        return f"{done} is a function: {what}; name the class of the model, {_CLASS_ADVICE}"
    said = f"{done} has no {name}"
    functions = [found for found, code in _codes_in(owner) if name in _locals_of(code)]
    if functions:
        said += f"; {name} is a local variable of {_listed(functions)}, which no name leads"
        said += f" to: name its class, {_CLASS_ADVICE}"
    elif isinstance(owner, type):
        said += f"; {done} is a class: only an instance may have {name}"
    return said


_CLASS_ADVICE = "and all its instances are recorded"


def _names_of(owner: Any) -> Mapping[str, Any]:
    """The attributes of an object that can be seen without running code of the host."""
    found: dict[str, Any] = {}
    for cls in reversed(type(owner).__mro__):
        found.update(vars(cls))
    if isinstance(owner, type):
        for cls in reversed(owner.__mro__):
            found.update(vars(cls))
    own = getattr(owner, "__dict__", {})
    found.update(own)
    for key in ("_modules", "_parameters", "_buffers"):  # of a module of torch
        found.update(own.get(key) or {} if isinstance(own.get(key), dict) else {})
    # An application keeps its own attributes in a dict of its `state` (Starlette).
    if isinstance(own.get("_state"), dict):
        found.update(own["_state"])
    return found


def _codes_in(owner: Any) -> Iterator[tuple[str, CodeType]]:
    """The functions of a module, and the methods of its classes."""
    name = getattr(owner, "__name__", "")
    for value in list(vars(owner).values())[:_MAX_NAMES] if isinstance(owner, type(sys)) else ():
        inner = list(vars(value).values()) if isinstance(value, type) else [value]
        for function in inner:
            if isinstance(function, _FUNCTION) and function.__module__ == name:
                yield f"{name}:{function.__qualname__}", function.__code__


def _locals_of(code: CodeType) -> set[str]:
    """The local variables of a function, and of the functions in it."""
    found = {*code.co_varnames, *code.co_cellvars}
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            found |= _locals_of(constant)
    return found


def _models_of(modules: Sequence[ModuleType]) -> str:
    """The names of models, and of their classes, that the modules have themselves."""
    base = _module_class()
    if base is None:
        return ""
    found: list[str] = []
    for module in modules:
        for name, value in list(vars(module).items())[:_MAX_NAMES]:
            if name.startswith("_"):
                continue
            is_class = isinstance(value, type) and value.__module__ == module.__name__
            if (is_class and issubclass(value, base)) or isinstance(value, base):
                found.append(f"{module.__name__}:{name}" + (" (a class)" if is_class else ""))
    return f"models there: {_listed(found)}" if found else ""


def _models_in_memory() -> str:
    """The classes of models that are a part of no other."""
    base = _module_class()
    if base is None:
        return ""
    models = [one for one in gc.get_objects()[:_MAX_OBJECTS] if issubclass(type(one), base)]
    inner = {id(part) for one in models for part in (vars(one).get("_modules") or {}).values()}
    counts: dict[str, int] = {}
    for one in models:
        if id(one) not in inner:
            name = f"{type(one).__module__}:{type(one).__qualname__}"
            counts[name] = counts.get(name, 0) + 1
    shown = [f"{name} ({count})" for name, count in sorted(counts.items())]
    return f"models in memory, by class: {_listed(shown)}" if shown else ""


def _module_class() -> Any:
    nn = getattr(sys.modules.get("torch"), "nn", None)
    return getattr(nn, "Module", None)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(str(name)[:100] for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _clock(since: float) -> str:
    return time.strftime("%H:%M:%SZ", time.gmtime(since))
