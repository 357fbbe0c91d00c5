"""The classes that a tape may be rebuilt from.

In comes a class name of a tape. Out goes a class that this process has loaded and allows, or None;
nothing is imported for a name.
"""

from __future__ import annotations

import builtins
import collections
import sys
import types
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from calltape_analyzer.pytree.caches import has_known_state, is_of_cache_library

__all__ = [
    "ClassIndex", "Classes", "ModuleKey", "is_named_tuple_of", "loaded_batch_classes",
    "loaded_named_tuple", "name_of",
]  # fmt: skip

Classes = Iterable[type] | Mapping[str, type]
"""The classes that a caller allows: classes, or a dict from names on the tape to classes."""

_PLAIN = (
    "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple"
)
_BUILTINS: dict[str, type] = {
    f"builtins:{name}": getattr(builtins, name) for name in _PLAIN.split()
}
_COLLECTIONS = ("Counter", "OrderedDict", "UserDict", "UserList", "defaultdict", "deque")
_BUILTINS |= {f"collections:{name}": getattr(collections, name) for name in _COLLECTIONS}
_BUILTINS["types:SimpleNamespace"] = types.SimpleNamespace
_BUILTINS["builtins:mappingproxy"] = types.MappingProxyType

# A named tuple of torch, which nobody registers.
_TORCH = {"torch.nn.utils.rnn:PackedSequence"}

_OF_TRANSFORMERS = "transformers."
# The base classes of transformers' results, and of configurations, which are dataclasses; the state
# of some models has its configuration.
_DATACLASSES = (
    ("transformers.utils.generic", "ModelOutput"),
    ("transformers.configuration_utils", "PreTrainedConfig"),
)


def name_of(cls: type) -> str:
    """The name that tapes have for a class: ``module:qualified.name``."""
    return f"{cls.__module__}:{cls.__qualname__}"


def is_named_tuple_of(cls: Any, fields: Sequence[str]) -> bool:
    """Whether a class is a named tuple of exactly these fields."""
    return (
        isinstance(cls, type)
        and issubclass(cls, tuple)
        and getattr(cls, "_fields", None) == tuple(fields)
    )


def loaded_named_tuple(name: str, fields: Sequence[str]) -> type | None:
    """The class of this name on a tape, if this process has loaded it already and it is a named
    tuple of exactly these fields."""
    module, _, qualname = name.partition(":")
    found = _loaded(module, qualname)
    return found if is_named_tuple_of(found, fields) and name_of(found) == name else None


def _by_name(classes: Classes) -> dict[str, type]:
    if isinstance(classes, Mapping):
        # A type checker cannot tell this from an iterable of classes that is a mapping.
        return dict(cast("Mapping[str, type]", classes))
    return {name_of(cls): cls for cls in classes}


class ModuleKey(NamedTuple):
    """Stands for a module of the recorded model that is a key of a dict, where no model is given.

    Attributes:
        name: of the module within the model, as :meth:`torch.nn.Module.named_modules` has it.
    """

    name: str


class ClassIndex:
    """Finds classes by the names that tapes have for them, and modules that are keys of dicts in
    the model that is given. Classes are looked for in this order:

    1. the classes that the caller passed,
    2. plain classes of the standard library,
    3. classes registered with ``torch.utils._pytree`` in this process,
    4. the caches, cache layers, model outputs, batches and configurations of transformers, and
       taught caches (:mod:`calltape_schema.cache_classes`), if their module is loaded already.
    """

    def __init__(self, classes: Classes = (), model: Any = None) -> None:
        self._given = _by_name(classes)
        self._model = model
        self._modules: dict[str, Any] | None = None
        self._registered: dict[str, type] = {}
        self._registered_count = -1

    @property
    def given(self) -> tuple[type, ...]:
        """The classes that the caller passed."""
        return tuple(self._given.values())

    @property
    def by_name(self) -> Mapping[str, type]:
        """The classes that the caller passed, by the names that tapes have for them."""
        return self._given

    def key(self, name: str) -> Hashable:
        """The module of the model that stands on a tape by this name; without a model, or if it has
        no such part, the name as a ``ModuleKey``."""
        if self._modules is None:
            named = getattr(self._model, "named_modules", None)
            self._modules = {} if named is None else dict(named(remove_duplicate=False))
        found = self._modules.get(name)
        return ModuleKey(name) if found is None else found

    def renamed(self, name: str) -> str:
        """The name that a class has in this process; ``name`` is its name on the tape."""
        found = self._given.get(name)
        return name_of(found) if found is not None else name

    def get(self, name: str) -> type | None:
        """The class of this name; None if this process does not have it or does not allow it."""
        for known in (self._given, _BUILTINS, self._pytree_classes()):
            found = known.get(name)
            if found is not None:
                return found
        if name in _TORCH:
            found = _loaded(*name.split(":"))
            return found if isinstance(found, type) else None
        return _known_class(name)

    def opted_in(self, name: str) -> type | None:
        """The class of this name, if the caller passed it, or it is a cache or model output as
        above. A registration with torch's pytree is not enough: libraries register classes without
        asking anybody."""
        found = self._given.get(name)
        if found is None and name == "collections:deque":  # torch's own registration
            return collections.deque
        return found if found is not None else _known_class(name)

    def registered(self, cls: type) -> Any | None:
        """The registration of a class with torch's pytree (it has ``unflatten_fn``), or None."""
        nodes = _supported_nodes()
        return nodes.get(cls)

    def _pytree_classes(self) -> dict[str, type]:
        nodes = _supported_nodes()
        # Registrations come and go (register_flattening_functions). If one left and another came,
        # the count is the same: the one that left is still found here, and registered() has None.
        if len(nodes) != self._registered_count:
            self._registered = {name_of(cls): cls for cls in nodes if isinstance(cls, type)}
            self._registered_count = len(nodes)
        return self._registered


def _supported_nodes() -> Mapping[Any, Any]:
    pytree = sys.modules.get("torch.utils._pytree")
    nodes: Mapping[Any, Any] = getattr(pytree, "SUPPORTED_NODES", {})
    return nodes


def _loaded(module: str, qualname: str) -> Any:
    """The object of a name in a module that is loaded. ``getattr`` is not used: on the packages of
    transformers it imports more modules."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if found is None:
            return None
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


def _known_class(name: str) -> type | None:
    """A loaded class of caches, layers of caches, model outputs or configurations. Attributes are
    all of its state, so that an object can be made without running code of the class."""
    module, _, qualname = name.partition(":")
    if not (module.startswith(_OF_TRANSFORMERS) or is_of_cache_library(module)):
        return None
    found = _loaded(module, qualname)
    if not isinstance(found, type) or name_of(found) != name:
        return None
    is_known = has_known_state(found) or _is_dataclass_of_transformers(found)
    return found if is_known or issubclass(found, collections.UserDict) else None


def loaded_batch_classes() -> list[type]:
    """The mappings of transformers that this process has loaded: what tokenizers and processors
    give."""
    waiting: list[type[Any]] = [collections.UserDict]
    found: list[type] = []
    while waiting:
        for cls in waiting.pop().__subclasses__():
            waiting.append(cls)
            if cls.__module__.startswith(_OF_TRANSFORMERS):
                found.append(cls)
    return list(dict.fromkeys(found))


def _is_dataclass_of_transformers(cls: type) -> bool:
    bases = [base for base in (_loaded(*name) for name in _DATACLASSES) if isinstance(base, type)]
    return cls.__module__.startswith(_OF_TRANSFORMERS) and issubclass(cls, tuple(bases))
