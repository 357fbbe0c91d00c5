"""The one rule of which classes of this process objects of a tape are made of. Everything that
reads a tape obeys it, by way of :class:`ClassIndex`.

Takes the name that a class has on a tape; returns a class that this process has loaded, or None.
Nothing is imported, and no code of a class runs. Classes of Python's own library, and those with
``__del__``, are used in no case: what they do when they go away, they do with what the tape set.
"""

from __future__ import annotations

import argparse
import builtins
import collections
import dataclasses
import enum
import keyword
import sys
import types
import typing
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from calltape_analyzer.errors import UsageError
from calltape_analyzer.pytree.caches import has_known_state, is_of_cache_library, with_subclasses
from calltape_analyzer.text import printable
from calltape_schema.objects import class_attribute, module_of, mro_of, namespace_of, qualname_of

__all__ = [
    "NO_STAND_IN",
    "ClassIndex",
    "Classes",
    "ModuleKey",
    "class_name",
    "is_named_tuple_of",
    "is_never_made",
    "known_class",
    "loaded_batch_classes",
    "registration_of",
]

_BUILTINS = (
    "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple"
)
PLAIN: dict[str, type] = {f"builtins:{one}": getattr(builtins, one) for one in _BUILTINS.split()}
"""Plain classes, by the names that tapes have for them."""
_COLLECTIONS = ("Counter", "OrderedDict", "UserDict", "UserList", "defaultdict", "deque")
PLAIN |= {f"collections:{name}": getattr(collections, name) for name in _COLLECTIONS}
PLAIN["types:SimpleNamespace"] = types.SimpleNamespace
PLAIN["builtins:mappingproxy"] = types.MappingProxyType

# A named tuple of torch; and the results of its functions, which are structseqs.
_PACKED_SEQUENCE = "torch.nn.utils.rnn:PackedSequence"
_RETURN_TYPES = "torch.return_types"

_MAY_BE_NAMED = (*PLAIN.values(), argparse.Namespace)
"""The classes of Python's own library that a caller may name: all of their state is what they hold,
or plain attributes."""
_NAMES = frozenset({*PLAIN, "argparse:Namespace"})

_OF_TRANSFORMERS = "transformers."
# The base classes of transformers' results, and of configurations, which are dataclasses; the state
# of some models has its configuration.
_DATACLASSES = (
    ("transformers.utils.generic", "ModelOutput"),
    ("transformers.configuration_utils", "PreTrainedConfig"),
)

_CALLTAPE = ("calltape_analyzer", "calltape_recorder", "calltape_schema")
_OF_PYTHON = sys.stdlib_module_names - {"__main__"}
_NO_PACKAGE = _OF_PYTHON | {"", "torch", "transformers", *_CALLTAPE}
"""What is never the package of a model, whatever a model is made of. Which classes of transformers
may be made, calltape knows: the others hold kernels, files and processes."""

_MAX_STAND_INS, _MAX_FIELDS = 256, 200
NO_STAND_IN = frozenset({"builtins", "collections", "types", "torch"})
"""The packages of classes that are containers, or tensors, and no records."""

_HOOKS = (
    "__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__new__", "__reduce__",
    "__reduce_ex__", "__setstate__",
)  # fmt: skip
"""Python calls these of itself, or whoever copies an object does."""

_METACLASSES = (type, enum.EnumMeta)

_SETSTATE = getattr(dataclasses, "_dataclass_setstate", None)
"""What dataclasses gives frozen classes with slots."""


def class_name(cls: type) -> str:
    """The name that tapes have for a class: ``module:qualified.name``."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _loaded(module: str, qualname: str) -> Any:
    """The object of a name in a module that is loaded. ``getattr`` is not used: on the packages of
    transformers it imports more modules."""
    value: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if issubclass(type(value), types.ModuleType):
            value = types.ModuleType.__getattribute__(value, "__dict__").get(part)
        elif issubclass(type(value), type):
            value = namespace_of(value).get(part)
        else:
            return None
    return value


def _loaded_class(name: str) -> type | None:
    """The loaded class of a name, if it is its own."""
    module, _, qualname = name.partition(":")
    value = _loaded(module, qualname)
    if not issubclass(type(value), type):
        return None
    return value if (module_of(value), qualname_of(value)) == (module, qualname) else None


def is_never_made(name: str, cls: type | None = None) -> bool:
    """Whether no object of a class is made, not even if the caller named it: it is of Python's own
    library, or has a ``__del__``.

    Args:
        name: of the class on the tape, or here.
        cls: the class, if it is at hand.
    """
    if cls is None:
        if name in _NAMES:
            return False
        cls = _loaded_class(name)
        if cls is None:
            return package_of(name.partition(":")[0]) in _OF_PYTHON
    if any(cls is named_class for named_class in _MAY_BE_NAMED):
        return False
    return package_of(module_of(cls)) in _OF_PYTHON or _has_del(cls)


def package_of(module: str) -> str:
    """The package that a module is in."""
    return module.partition(".")[0]


def _has_del(cls: type) -> bool:
    return any("__del__" in namespace_of(base) for base in mro_of(cls))


# What calltape knows.


def known_class(name: str) -> type | None:
    """The class of this name if it is one that calltape knows, and this process has loaded it: a
    plain one, of torch, or of caches, layers of caches, model outputs, batches or configurations.
    Attributes are all of its state, so that an object can be made without running its code."""
    if name in PLAIN:
        return PLAIN[name]
    module = name.partition(":")[0]
    if module == _RETURN_TYPES:
        loaded = _loaded_class(name)
        return loaded if hasattr(loaded, "n_sequence_fields") else None
    if name == _PACKED_SEQUENCE:
        return _loaded_class(name)
    if module == "numpy":
        loaded, numbers = _loaded_class(name), _loaded("numpy", "number")
        return loaded if loaded is not None and issubclass(loaded, numbers) else None
    if not (module.startswith(_OF_TRANSFORMERS) or is_of_cache_library(module)):
        return None
    loaded = _loaded_class(name)
    if loaded is None or _has_del(loaded):
        return None
    bases = [base for base in (_loaded(*names) for names in _DATACLASSES) if isinstance(base, type)]
    is_result = loaded.__module__.startswith(_OF_TRANSFORMERS) and issubclass(loaded, tuple(bases))
    is_known = has_known_state(loaded) or is_result or issubclass(loaded, collections.UserDict)
    return loaded if is_known else None


# What a model brings.


class ModelPackages:
    """The packages that a model is of: those that define its class, and the classes of its parts.
    The class of a wrapper and a part of a library bring their packages, too; torch, transformers
    and Python's own library are none.

    Args:
        model: a module, or a function.
    """

    def __init__(self, model: Any) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(model, torch.nn.Module):
            modules = [module_of(type(part)) for part in model.modules()]
        else:
            modules = [str(getattr(model, "__module__", ""))]
        packages = {module: package_of(module) for module in modules}
        self._packages = frozenset(packages.values()) - _NO_PACKAGE
        self._modules = tuple(m for m, package in packages.items() if package in self._packages)

    def find(self, name: str) -> type | None:
        """The dataclass, named tuple or enum of this name that one of the packages defines, if it
        is a plain one. A name in ``__main__`` may be of a script that is imported now: it is looked
        for where the model's classes are defined."""
        module, _, qualname = name.partition(":")
        places = ("__main__", *self._modules) if module == "__main__" else (module,)
        for place in places:
            if package_of(place) in self._packages:
                loaded = _loaded_class(f"{place}:{qualname}")
                # The hash of a class may be code of its metaclass.
                if loaded is not None and type(loaded) in _METACLASSES and _is_plain(loaded):
                    return loaded
        return None


@lru_cache(maxsize=1024)
def _is_plain(cls: type) -> bool:
    """Whether a class is a dataclass, named tuple or enum whose objects can be made, and go away,
    without any of its code."""
    if _has_del(cls):
        return False
    if type(cls) is enum.EnumMeta:
        return True  # its members are looked up by name; it is not called
    if any(_has_hook(base) for base in mro_of(cls)):
        return False
    if not dataclasses.is_dataclass(cls):
        return issubclass(cls, tuple) and type(class_attribute(cls, "_fields")) is tuple
    # Code decides what it means to set a field under whose name a property stands.
    attributes = [type(class_attribute(cls, field.name)) for field in dataclasses.fields(cls)]
    return not any(
        hasattr(kind, "__set__") and kind is not types.MemberDescriptorType for kind in attributes
    )


def _has_hook(base: type) -> bool:
    if base in PLAIN.values() or base in (typing.Generic, typing.Protocol):
        return False
    namespace = namespace_of(base)
    hooks = {name for name in _HOOKS if name in namespace}
    if "_field_defaults" in namespace and "_fields" in namespace:
        hooks.discard("__new__")  # what collections.namedtuple makes
    if getattr(namespace.get("__dataclass_params__"), "frozen", False):
        # dataclasses refuses to make a class frozen that has these itself.
        hooks -= {"__setattr__", "__delattr__"}
    if namespace.get("__setstate__") is not None and namespace["__setstate__"] is _SETSTATE:
        hooks.discard("__setstate__")
    return bool(hooks) and known_class(class_name(base)) is not base


def is_named_tuple_of(cls: Any, fields: Sequence[str]) -> bool:
    """Whether a class is a named tuple of exactly these fields."""
    return (
        isinstance(cls, type)
        and issubclass(cls, tuple)
        and getattr(cls, "_fields", None) == tuple(fields)
    )


class ModuleKey(NamedTuple):
    """Stands for a module of the recorded model that is a key of a dict, where no model is given.

    Attributes:
        name: of the module within the model, as :meth:`torch.nn.Module.named_modules` has it.
    """

    name: str


class ClassIndex:
    """Finds classes by the names that tapes have for them, and modules that are keys of dicts in
    the model that is given.

    It looks for classes in this order:

    1. the classes that the caller passed, but for those that are never made: classes of Python's
       own library, and classes with ``__del__``,
    2. plain containers of Python and torch; and, if their module is loaded already, the caches,
       cache layers, model outputs, batches and configurations of transformers, and taught caches
       (:mod:`calltape_schema.cache_classes`),
    3. plain dataclasses, named tuples and enums that the package of the model defines.

    That a class is registered with torch's pytree is no permission: libraries register classes
    without asking anybody.

    Args:
        classes: what the caller allows.
        model: what the calls are run with: a module or a function.
        stand_ins: makes objects of classes that are not allowed of classes with the same fields and
            no code, in place of placeholders.
    """

    def __init__(
        self, classes: Classes = (), model: Any = None, *, stand_ins: bool = False
    ) -> None:
        by_name: Any = classes.by_name if isinstance(classes, ClassIndex) else classes
        self._given: dict[str, type] = {}
        pairs = (
            by_name.items() if isinstance(by_name, Mapping) else ((None, cls) for cls in by_name)
        )
        for given_name, cls in pairs:
            if not isinstance(cls, type):
                advice = "pass the classes themselves"
                raise UsageError(f"{cls!r:.100} is not a class", advice=advice)
            name = class_name(cls) if given_name is None else given_name
            if not is_never_made(name, cls):
                self._given[name] = cls
        self._model = model
        self._packages = None if model is None else ModelPackages(model)
        self._stand_ins: dict[tuple[str, str, tuple[str, ...]], type] | None = (
            {} if stand_ins else None
        )

    @classmethod
    def of(cls, classes: Classes) -> ClassIndex:
        """An index of these classes; itself, if it is one."""
        return classes if isinstance(classes, ClassIndex) else cls(classes)

    def with_model(self, model: Any) -> ClassIndex:
        """The same classes, and those of a model."""
        index = ClassIndex(self._given, model)
        index._stand_ins = self._stand_ins  # one class per name, whoever asks
        return index

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
        module_key = self._modules.get(name)
        return ModuleKey(name) if module_key is None else module_key

    @cached_property
    def _modules(self) -> dict[str, Any]:
        named = getattr(self._model, "named_modules", None)
        return {} if named is None else dict(named(remove_duplicate=False))

    def renamed(self, name: str) -> str:
        """The name that a class has in this process; ``name`` is its name on the tape."""
        given_class = self._given.get(name)
        if given_class is None and name.startswith("__main__:") and self._packages is not None:
            given_class = self._packages.find(name)
        return class_name(given_class) if given_class is not None else name

    def get(self, name: str) -> type | None:
        """The class of this name; None if this process does not have it or does not allow it."""
        cls = self._given.get(name) or known_class(name)
        if cls is None and self._packages is not None:
            cls = self._packages.find(name)
        return cls

    def is_named(self, name: str) -> bool:
        """Whether the caller passed this class. Then code of it may run that makes an object: its
        ``__new__``, the factory of a field that the tape lacks, the unflatten function that it is
        registered with."""
        return name in self._given

    def opted_in(self, name: str) -> type | None:
        """The class of this name, if its unflatten function may be called: the caller passed it, or
        it is torch's own registration of a deque."""
        return self._given.get(name) or (collections.deque if name == _DEQUE else None)

    def stand_in(self, name: str, kind: str, fields: Sequence[str]) -> type | None:
        """A class without code that stands for one that is not allowed, if that was asked for.

        Args:
            name: of the class on the tape.
            kind: ``namedtuple``, ``dataclass`` or ``object``.
            fields: of the object.
        """
        stand_ins = self._stand_ins
        if stand_ins is None or package_of(name.partition(":")[0]) in NO_STAND_IN:
            return None
        hidden = "_" if kind == "namedtuple" else "__"
        if len(fields) > _MAX_FIELDS or not all(
            field.isidentifier() and field.isascii() and not keyword.iskeyword(field)
            and not field.startswith(hidden) for field in fields
        ):  # fmt: skip
            return None
        key = (name, kind, () if kind == "object" else tuple(fields))
        if key not in stand_ins and len(stand_ins) < _MAX_STAND_INS:
            stand_in: Any
            if kind == "namedtuple":
                make: Any = collections.namedtuple
                stand_in = make("StandIn", fields)
            elif kind == "dataclass":
                stand_in = dataclasses.make_dataclass(
                    "StandIn", [(n, object, None) for n in fields]
                )
            else:
                stand_in = type("StandIn", (), {})
            # What is described of it is the same as of the recorded object.
            module, _, qualname = name.partition(":")
            stand_in.__module__, stand_in.__qualname__ = printable(module), printable(qualname)
            stand_ins[key] = stand_in
        return stand_ins.get(key)


Classes = Iterable[type] | Mapping[str, type] | ClassIndex
"""The classes that a caller allows: classes, or a dict from names on the tape to classes."""

_DEQUE = "collections:deque"


def loaded_batch_classes() -> list[type]:
    """The mappings of transformers that this process has loaded: what tokenizers and processors
    give."""
    subclasses = with_subclasses([collections.UserDict])
    return [cls for cls in subclasses if cls.__module__.startswith(_OF_TRANSFORMERS)]


def registration_of(cls: type) -> Any | None:
    """The registration of a class with torch's pytree (it has ``unflatten_fn``), if any."""
    pytree = sys.modules.get("torch.utils._pytree")
    return getattr(pytree, "SUPPORTED_NODES", {}).get(cls)
