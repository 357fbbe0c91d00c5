"""The names of modules within the recorded model. A dict may have modules as keys (a Whisper's
cache of keys and values), and a tape has the name of the module in place of such a key."""

from __future__ import annotations

import weakref
from typing import Any

import torch

__all__ = ["ModuleNames"]

_MAX_SEARCHES = 16  # in a model that gets new parts again and again, most are found in the end


class ModuleNames:
    """Names of the parts of one model. It does not keep the model alive."""

    def __init__(self) -> None:
        self._root: Any = None
        self._names: dict[int, tuple[Any, str]] = {}
        self._searches = 0

    def set_root(self, model: Any) -> None:
        """Makes this the recorded model. Nothing has a name in an object that is no module."""
        self._names, self._searches = {}, 0
        self._root = weakref.ref(model) if isinstance(model, torch.nn.Module) else None

    def of(self, module: torch.nn.Module) -> str | None:
        """The name of a part; None if the recorded model does not have it."""
        reference, name = self._names.get(id(module), (None, None))
        if reference is not None and reference() is module:
            return name
        if self._searches >= _MAX_SEARCHES:
            return None
        self._searches += 1
        root = None if self._root is None else self._root()
        if root is None:
            return None
        try:
            # The method of torch's own class, because one of the host could do anything.
            found = list(torch.nn.Module.named_modules(root))
        except RuntimeError:  # another thread adds a part meanwhile
            return None
        self._names = {id(part): (weakref.ref(part), name) for name, part in found}
        _, name = self._names.get(id(module), (None, None))
        return name
