"""Which classes a tape may be rebuilt from. A class name on a tape is only ever looked up among
classes that this process already has and wants; nothing is imported for it."""

from __future__ import annotations

import builtins
import collections
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

__all__ = ["ClassIndex", "Classes", "is_namedtuple", "loaded_namedtuple", "name_of"]

Classes = Iterable[type] | Mapping[str, type]
"""What a caller allows: classes, or classes by the name that the tape has for them."""

_PLAIN = (
    "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple"
)
_BUILTINS: dict[str, type] = {
    f"builtins:{name}": getattr(builtins, name) for name in _PLAIN.split()
}
_COLLECTIONS = ("Counter", "OrderedDict", "defaultdict", "deque")
_BUILTINS |= {f"collections:{name}": getattr(collections, name) for name in _COLLECTIONS}
_BUILTINS["types:SimpleNamespace"] = types.SimpleNamespace

# A named tuple of torch's own, which nobody registers.
_TORCH = {"torch.nn.utils.rnn:PackedSequence"}

# Base classes (by module below transformers) whose subclasses hold plain state: attributes that
# are set without running code of the class.
_TRANSFORMERS_BASES = {
    "transformers.cache_utils": ("Cache", "CacheLayerMixin", "LinearAttentionCacheLayerMixin"),
    "transformers.utils.generic": ("ModelOutput",),
}


def name_of(cls: type) -> str:
    """A class as tapes name it: ``module:qualified.name``."""
    return f"{cls.__module__}:{cls.__qualname__}"


def is_namedtuple(cls: Any, fields: Sequence[str]) -> bool:
    """Whether a class is a named tuple of exactly these fields."""
    return (
        isinstance(cls, type)
        and issubclass(cls, tuple)
        and getattr(cls, "_fields", None) == tuple(fields)
    )


def loaded_namedtuple(name: str, fields: Sequence[str]) -> type | None:
    """The class that a tape calls ``name``, if this process has loaded it already and it is a named
    tuple of these fields."""
    module, _, qualname = name.partition(":")
    found = _loaded(module, qualname)
    return found if is_namedtuple(found, fields) and name_of(found) == name else None


def _by_name(classes: Classes) -> dict[str, type]:
    if isinstance(classes, Mapping):
        # Not an iterable of classes that happens to be a mapping.
        return dict(cast("Mapping[str, type]", classes))
    return {name_of(cls): cls for cls in classes}


class ClassIndex:
    """Looks up classes by the names that tapes have for them.

    In this order: those that the caller passed, plain ones of the standard library, those
    registered with ``torch.utils._pytree`` in this process, and, where transformers is imported
    already, its caches, cache layers and model outputs.
    """

    def __init__(self, classes: Classes = ()) -> None:
        self._given = _by_name(classes)
        self._registered: dict[str, type] = {}
        self._registered_count = -1

    @property
    def given(self) -> tuple[type, ...]:
        """The classes that the caller passed."""
        return tuple(self._given.values())

    @property
    def by_name(self) -> Mapping[str, type]:
        """The same by the names that tapes have for them."""
        return self._given

    def renamed(self, name: str) -> str:
        """The name in this process of a class that a tape calls ``name``."""
        found = self._given.get(name)
        return name_of(found) if found is not None else name

    def get(self, name: str) -> type | None:
        """The class that ``name`` stands for, or None where this process does not want it."""
        for known in (self._given, _BUILTINS, self._pytree_classes()):
            found = known.get(name)
            if found is not None:
                return found
        if name in _TORCH:
            found = _loaded(*name.split(":"))
            return found if isinstance(found, type) else None
        return _transformers_class(name)

    def opted_in(self, name: str) -> type | None:
        """The class that ``name`` stands for, where the caller passed it or it is transformers'
        own; not for having been registered with torch alone, which libraries do."""
        found = self._given.get(name)
        return found if found is not None else _transformers_class(name)

    def registered(self, cls: type) -> Any | None:
        """torch's pytree registration of a class (``unflatten_fn``), or None."""
        nodes = _supported_nodes()
        return nodes.get(cls)

    def _pytree_classes(self) -> dict[str, type]:
        nodes = _supported_nodes()
        # Registrations come and go (register_flattening_functions). One that left in exchange for
        # another is still found here, and then refused by registered().
        if len(nodes) != self._registered_count:
            self._registered = {name_of(cls): cls for cls in nodes if isinstance(cls, type)}
            self._registered_count = len(nodes)
        return self._registered


def _supported_nodes() -> Mapping[Any, Any]:
    pytree = sys.modules.get("torch.utils._pytree")
    nodes: Mapping[Any, Any] = getattr(pytree, "SUPPORTED_NODES", {})
    return nodes


def _loaded(module: str, qualname: str) -> Any:
    """What stands under a name in a module that is loaded, without triggering the lazy imports
    that ``getattr`` on transformers' packages would."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if found is None:
            return None
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


def _transformers_class(name: str) -> type | None:
    module, _, qualname = name.partition(":")
    if not module.startswith("transformers."):
        return None
    found = _loaded(module, qualname)
    if not isinstance(found, type) or name_of(found) != name:
        return None
    return found if found.__name__.endswith("Cache") or _holds_plain_state(found) else None


def _holds_plain_state(cls: type) -> bool:
    for module, names in _TRANSFORMERS_BASES.items():
        bases = tuple(base for base in (_loaded(module, name) for name in names) if base)
        if issubclass(cls, bases):
            return True
    return False
