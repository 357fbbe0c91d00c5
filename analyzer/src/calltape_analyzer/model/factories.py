"""What makes a model, by the name that the user gave: ``package.module:factory``."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.text import some_of

if TYPE_CHECKING:
    import torch

__all__ = ["UnfitNameError", "imported", "made_by"]

_MOST_NAMED = 3


class UnfitNameError(UsageError):
    """A name means nothing, or nothing that can be used so."""


def imported(name: str) -> Any:
    """What a name means, with the current directory on the path.

    Args:
        name: ``package.module:attribute``.

    Raises:
        UnfitNameError: there is no such module, or it has no such attribute.
        UsageError: it cannot be imported.
    """
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as python -m does
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise _no_attribute(module, found, attribute, part)
            found = getattr(found, part)
    except UnfitNameError:
        raise
    except (Exception, SystemExit) as error:  # importing a model runs anything
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is not None and f"{module}.".startswith(f"{absent}."):
            reason = (
                f"{name} cannot be imported: no module {absent} in the current directory or on the "
                "Python path"
            )
            advice = "run it in the directory that has the module, or put that on PYTHONPATH"
            if module.endswith(".py"):
                reason = f"{module} is the name of a file, and not of a module"
                advice = f"write {module.removesuffix('.py')}:{attribute}"
            raise UnfitNameError(reason, advice=advice) from error
        raise _failed(f"{name} cannot be imported", error) from error
    return found


def _no_attribute(module: str, found: Any, attribute: str, part: str) -> UnfitNameError:
    """The error for an attribute that is not there, with the functions and classes that are."""
    own = [
        name
        for name, one in getattr(found, "__dict__", {}).items()
        if callable(one) and not name.startswith("_") and getattr(one, "__module__", "") == module
    ]
    near = difflib.get_close_matches(part, own, _MOST_NAMED) or own
    such = f", such as {some_of(near, _MOST_NAMED)}" if near else ""
    return UnfitNameError(f"{module} has no {attribute}", advice=f"name one that is there{such}")


def made_by(name: str) -> torch.nn.Module:
    """Imports a factory and calls it.

    Args:
        name: of a function without arguments, or of a module object.

    Raises:
        UsageError: it cannot be imported, fails, or gives something that is no module.
    """
    made = imported(name)
    import torch

    if not isinstance(made, torch.nn.Module):
        try:
            made = made()
        except (Exception, SystemExit) as error:
            raise _failed(f"{name}() failed", error) from error
    if not isinstance(made, torch.nn.Module):
        what = f"{type(made).__module__}.{type(made).__qualname__}"
        raise UsageError(f"{name} gives a {what}", advice="let it return a torch.nn.Module")
    return made


def _failed(what: str, error: BaseException) -> BaseException:
    if os.environ.get("CALLTAPE_DEBUG"):
        return error
    text = " ".join(str(error).split())
    return UsageError(
        f"{what}: {type(error).__name__}: {text}", advice="CALLTAPE_DEBUG=1 shows the traceback"
    )
