"""``--model package.module:factory``: the model that a command needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from calltape_analyzer.errors import UsageError
from calltape_analyzer.scripting import is_factory

if TYPE_CHECKING:
    import torch

__all__ = ["classes_of", "model_of"]


def classes_of(names: Sequence[str] | None) -> list[type]:
    """Imports the classes of these names.

    Raises:
        BadParameter: a name has another form.
        UsageError: one cannot be imported, or is no class.
    """
    for name in names or ():
        if not is_factory(name):
            raise typer.BadParameter(f"{name!r:.100} is not of the form package.module:class")
    if not names:
        return []
    from calltape_analyzer.model.factories import UnfitNameError, imported

    try:
        found = [imported(name) for name in names]
    except UnfitNameError as error:  # a mistake in words like the others here
        raise UsageError(error.reason, advice=error.advice) from None
    for name, one in zip(names, found, strict=True):
        if not isinstance(one, type):
            raise UsageError(f"{name} is no class", advice="name one as MODULE:CLASS")
    return found


def model_of(name: str, *, train: bool = False) -> torch.nn.Module:
    """Imports a factory and calls it.

    Args:
        name: ``package.module:factory``.
        train: leaves the model in the mode that the factory gives it; else it is put in evaluation
            mode.

    Raises:
        BadParameter: the name has another form.
        UsageError: it cannot be imported, fails, or gives something that is no module.
    """
    if not is_factory(name):
        raise typer.BadParameter(f"{name!r} is not of the form package.module:factory")
    from calltape_analyzer.model.factories import made_by

    return made_by(name, train=train)
