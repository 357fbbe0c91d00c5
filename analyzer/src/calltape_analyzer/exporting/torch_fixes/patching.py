"""Replaces names in torch and in the Python modules of a model while it is traced, and restores
them.

The model's modules are those of the packages that its parts come from. All other code sees the
original names: torch uses ``math.ceil`` and ``torch.tensor`` while it traces, too.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["PATCHING", "ModuleView", "modules_of", "replaced", "with_builtins"]

PATCHING = threading.RLock()
"""A thread holds it while it replaces names. Otherwise two threads would each restore what the
other replaced."""


_NOT_THE_MODELS = frozenset({"torch", "builtins", "__future__", "calltape_analyzer", "typing"})


def modules_of(model: torch.nn.Module) -> list[Any]:
    """The Python modules of the packages that a model's parts come from. If a part comes from a
    single file, also the modules in its folder: ``utils.py`` next to ``models.py``."""
    packages = {type(part).__module__.partition(".")[0] for part in model.modules()}
    packages -= _NOT_THE_MODELS
    files = {name for name in packages if not hasattr(sys.modules.get(name), "__path__")}
    folders = {_folder_of(name) for name in files} - {None}
    tops = {name.partition(".")[0] for name in sys.modules} - _NOT_THE_MODELS
    packages |= {name for name in tops if folders and _folder_of(name) in folders}
    return [
        module
        for of, module in list(sys.modules.items())
        if of.partition(".")[0] in packages and isinstance(getattr(module, "__dict__", None), dict)
    ]


def _folder_of(name: str) -> Path | None:
    """The folder of a module or package; None if it is installed, or has no file."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    folder = Path(file).parents[hasattr(module, "__path__")]
    return None if folder.name in ("site-packages", "dist-packages") else folder


@contextlib.contextmanager
def with_builtins(modules: list[dict[str, Any]], stand_ins: Mapping[str, Any]) -> Iterator[None]:
    """Replaces builtins in modules within the block, but no name that a module defines itself.

    Args:
        modules: the dict of each module.
        stand_ins: replace the builtins of these names.
    """
    changed: list[tuple[dict[str, Any], str]] = []
    try:
        for names in modules:
            for name in stand_ins.keys() - names.keys():
                names[name] = stand_ins[name]
                changed.append((names, name))
        yield
    finally:
        for names, name in changed:
            names.pop(name, None)


@contextlib.contextmanager
def replaced(modules: list[dict[str, Any]], replacements: Mapping[int, Any]) -> Iterator[None]:
    """Replaces objects in modules within the block, whatever their names are there.

    Args:
        modules: the dict of each module.
        replacements: the new objects, by the ids of the old ones.
    """
    changed: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for names in modules:
            for name, value in list(names.items()):
                if id(value) in replacements:
                    changed.append((names, name, value))
                    names[name] = replacements[id(value)]
        yield
    finally:
        for names, name, value in changed:
            names[name] = value


class ModuleView(types.ModuleType):
    """A module some of whose functions are replaced. All other names are those of the module."""

    def __init__(self, module: types.ModuleType, functions: Mapping[str, Any]) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.__dict__.update(functions)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
