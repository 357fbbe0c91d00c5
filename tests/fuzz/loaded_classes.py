"""All classes that a process has loaded, and what their code reads of an object."""

from __future__ import annotations

import re
import sys
import types
from typing import Any

from calltape_schema.objects import module_of, namespace_of, qualname_of

__all__ = ["attributes_of", "loaded_classes"]

_MOST_ATTRIBUTES = 24
_NAME = re.compile(r"[^:\s]+:[^:\s]+")
"""What a tape takes for the name of a class."""


def loaded_classes() -> dict[str, Any]:
    """The classes of all modules and all classes, by the names that tapes have for them. No code of
    theirs runs."""
    found: dict[str, Any] = {}
    waiting: list[Any] = [object]
    for module in list(sys.modules.values()):
        if issubclass(type(module), types.ModuleType):
            waiting += types.ModuleType.__getattribute__(module, "__dict__").values()
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if not issubclass(type(one), type) or id(one) in seen:
            continue
        seen.add(id(one))
        name = f"{module_of(one)}:{qualname_of(one)}"
        if _NAME.fullmatch(name):
            found.setdefault(name, one)
        waiting += namespace_of(one).values()
        waiting += type.__subclasses__(one)
    return found


def attributes_of(cls: Any) -> tuple[str, ...]:
    """Names that the methods of a class use: among them are the attributes that its ``__del__``, if
    it has one, calls. At least one."""
    methods = namespace_of(cls)
    first = [methods[name] for name in ("__del__", "__exit__", "close") if name in methods]
    names: dict[str, None] = {}
    for method in (*first, *methods.values()):
        code = getattr(method, "__code__", None) if type(method) is types.FunctionType else None
        names |= dict.fromkeys(code.co_names if code is not None else ())
        if len(names) >= _MOST_ATTRIBUTES:
            break
    fit = [one for one in names if not (one.startswith("__") and one.endswith("__"))]
    return tuple(fit[:_MOST_ATTRIBUTES]) or ("command",)
