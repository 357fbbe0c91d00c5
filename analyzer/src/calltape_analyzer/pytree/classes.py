"""The classes that a tape may be rebuilt from.

In comes a class name of a tape. Out goes a class that this process has loaded and allows, or None;
nothing is imported for a name. What is allowed, :mod:`calltape_analyzer.pytree.class_rule` says.
"""

from __future__ import annotations

import collections
import dataclasses
import keyword
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from calltape_analyzer.errors import UsageError
from calltape_analyzer.pytree.class_rule import (
    ModelPackages,
    is_never_made,
    known_class,
    name_of,
)
from calltape_analyzer.text import printable

__all__ = [
    "NO_STAND_IN", "ClassIndex", "Classes", "ModuleKey", "is_named_tuple_of",
    "loaded_batch_classes", "name_of",
]  # fmt: skip

_OF_TRANSFORMERS = "transformers."
_MAX_STAND_INS, _MAX_FIELDS = 256, 200
NO_STAND_IN = frozenset({"builtins", "collections", "types", "torch"})
"""The packages of classes that are containers, or tensors, and no records."""


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
        named = _by_name(classes)
        self._given = {n: cls for n, cls in named.items() if not is_never_made(n, cls)}
        self._model = model
        self._packages = None if model is None else ModelPackages(model)
        self._modules: dict[str, Any] | None = None
        self._stand_ins: dict[tuple[str, str, tuple[str, ...]], type] | None = (
            {} if stand_ins else None
        )

    @classmethod
    def of(cls, classes: Classes) -> ClassIndex:
        """An index of these classes; itself, if it is one."""
        return classes if isinstance(classes, ClassIndex) else cls(classes)

    def with_model(self, model: Any) -> ClassIndex:
        """The same classes, and those of a model."""
        made = ClassIndex(self._given, model)
        made._stand_ins = self._stand_ins  # one class per name, whoever asks
        return made

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
        if found is None and name.startswith("__main__:") and self._packages is not None:
            found = self._packages.find(name)
        return name_of(found) if found is not None else name

    def get(self, name: str) -> type | None:
        """The class of this name; None if this process does not have it or does not allow it."""
        found = self._given.get(name) or known_class(name)
        if found is None and self._packages is not None:
            found = self._packages.find(name)
        return found

    def is_named(self, name: str) -> bool:
        """Whether the caller passed this class. Then code of it may run that makes an object: its
        ``__new__``, the factory of a field that the tape lacks, the unflatten function that it is
        registered with."""
        return name in self._given

    def opted_in(self, name: str) -> type | None:
        """The class of this name, if its unflatten function may be called: the caller passed it, or
        it is torch's own registration of a deque."""
        return self._given.get(name) or (collections.deque if name == _DEQUE else None)

    def registered(self, cls: type) -> Any | None:
        """The registration of a class with torch's pytree (it has ``unflatten_fn``), or None."""
        pytree = sys.modules.get("torch.utils._pytree")
        nodes: Mapping[Any, Any] = getattr(pytree, "SUPPORTED_NODES", {})
        return nodes.get(cls)

    def stand_in(self, name: str, kind: str, fields: Sequence[str]) -> type | None:
        """A class without code that stands for one that is not allowed, if that was asked for.

        Args:
            name: of the class on the tape.
            kind: ``namedtuple``, ``dataclass`` or ``object``.
            fields: of the object.
        """
        known = self._stand_ins
        if known is None or name.partition(":")[0].partition(".")[0] in NO_STAND_IN:
            return None
        if len(fields) > _MAX_FIELDS or not all(map(_can_be_field, fields)):
            return None
        if kind == "namedtuple" and any(one.startswith("_") for one in fields):
            return None
        key = (name, kind, () if kind == "object" else tuple(fields))
        if key not in known and len(known) < _MAX_STAND_INS:
            known[key] = _stand_in(*key)
        return known.get(key)


Classes = Iterable[type] | Mapping[str, type] | ClassIndex
"""The classes that a caller allows: classes, or a dict from names on the tape to classes."""

_DEQUE = "collections:deque"


def _by_name(classes: Classes) -> dict[str, type]:
    if isinstance(classes, ClassIndex):
        return dict(classes.by_name)
    # A type checker cannot tell a mapping from an iterable of classes that is one.
    is_named = isinstance(classes, Mapping)
    values = cast("Mapping[str, type]", classes).values() if is_named else classes
    for cls in values:
        if not isinstance(cls, type):
            raise UsageError(f"{cls!r:.100} is not a class", advice="pass the classes themselves")
    if is_named:
        return dict(cast("Mapping[str, type]", classes))
    return {name_of(cls): cls for cls in cast("Iterable[type]", classes)}


def _can_be_field(name: str) -> bool:
    is_word = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    return is_word and not name.startswith("__")


def _stand_in(name: str, kind: str, fields: tuple[str, ...]) -> type:
    made: Any
    if kind == "namedtuple":
        make: Any = collections.namedtuple
        made = make("StandIn", fields)
    elif kind == "dataclass":
        made = dataclasses.make_dataclass("StandIn", [(one, object, None) for one in fields])
    else:
        made = type("StandIn", (), {})
    # What is described of it is the same as of the recorded object.
    module, _, qualname = name.partition(":")
    made.__module__, made.__qualname__ = printable(module), printable(qualname)
    cls: type = made
    return cls


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
