"""What makes a model, by the name that the user gave: ``package.module:factory``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from calltape_analyzer.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["imported", "made_by"]


def imported(name: str) -> Any:
    """What a name means, with the current directory on the path.

    Args:
        name: ``package.module:attribute``.

    Raises:
        UsageError: it cannot be imported.
    """
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as python -m does
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # importing a model runs anything
        raise _failed(f"{name} cannot be imported", error) from error
    return found


def made_by(name: str, *, train: bool = False) -> torch.nn.Module:
    """Imports a factory and calls it.

    Args:
        name: of a function without arguments, or of a module object.
        train: leaves the model in the mode that the factory gives it; else it is put in evaluation
            mode.

    Raises:
        UsageError: it cannot be imported, fails, or gives something that is no module.
    """
    made = _called(imported(name), name)
    import torch

    if not isinstance(made, torch.nn.Module):
        what = f"{type(made).__module__}.{type(made).__qualname__}"
        raise UsageError(f"{name} gives a {what}", advice="let it return a torch.nn.Module")
    return made if train else made.eval()


def _called(found: Any, name: str) -> Any:
    import torch

    if isinstance(found, torch.nn.Module):
        return found
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise _failed(f"{name}() failed", error) from error


def _failed(what: str, error: BaseException) -> BaseException:
    if os.environ.get("CALLTAPE_DEBUG"):
        return error
    text = " ".join(str(error).split())
    return UsageError(
        f"{what}: {type(error).__name__}: {text}", advice="CALLTAPE_DEBUG=1 shows the traceback"
    )
