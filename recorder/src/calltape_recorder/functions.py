"""Functions as what is recorded: whose attribute they are.

A library of kernels has functions and no modules. In comes a function, a bound method or a name
such as ``"package.module:function"``. Out go the object that has it and its name there, because a
call of a function is seen only if the attribute is replaced, which every caller asks for.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

from calltape_schema.errors import TapeError

__all__ = ["owner_of"]


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
        return _named(target, path)
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
        "usage", f"no module has the function {full!r} by its name", path=path,
        advice="record the object whose attribute it is, with method= its name",
    )  # fmt: skip


def _named(target: str, path: str | None) -> tuple[Any, str | None]:
    module, colon, attributes = target.partition(":")
    try:
        owner: Any = None
        found: Any = importlib.import_module(module)
        for name in attributes.split(".") if colon else ():
            owner, found = found, getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TapeError(
            "usage", f"there is no {target!r}: {error}", path=path,
            advice="name it like package.module:function",
        ) from None  # fmt: skip
    if inspect.isroutine(found) and owner is not None:
        return owner, attributes.rpartition(".")[2]
    return found, None
