"""From Python values to the nodes that the recorder writes for them.

In comes an argument or a result of a live call. Out goes its description, so that it can be
compared with a recorded one. The recorder decides in ``calltape_recorder.capture.walk``; what is
decided here must agree with it, and tests compare both.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from calltape_analyzer.pytree.classes import ModuleKey, name_of
from calltape_analyzer.pytree.description import (
    SCALARS,
    SEQUENCES,
    Describer,
    Description,
    ScalarKind,
    is_tensor,
    present_fields,
    registration_of,
)
from calltape_analyzer.pytree.nested_tensors import is_nested_node
from calltape_analyzer.pytree.result_values import ITSELF
from calltape_schema.cache_classes import is_cache
from calltape_schema.objects import (
    MAX_NESTED,
    MAX_VALUES,
    WRAPPERS,
    attributes_of,
    held_by,
    is_in_its_module,
    is_wrapped,
    names_beside,
    names_on_tensor,
)
from calltape_schema.tree import (
    BoolNode,
    DictNode,
    FieldsNode,
    Node,
    OpaqueNode,
    ScalarNode,
    SequenceNode,
    TensorNode,
    walk,
)

__all__ = ["describe_as_recorded", "describe_result", "has_module_keys"]

_MODULE_KEYS = "keys that are modules"
"""Why a dict was not described: nobody knows which model they are parts of."""


def has_module_keys(root: Node) -> bool:
    """Whether a dict below a node was not described for that."""
    return any(isinstance(n, OpaqueNode) and n.reason == _MODULE_KEYS for n in walk(root))


# How the plain value of a subclass is read without calling what the subclass overrides.
_PLAIN_VALUES: dict[type, tuple[ScalarKind, Callable[[Any], Any]]] = {
    int: ("int", lambda value: int.__add__(value, 0)),
    float: ("float", float.__float__),
    complex: ("complex", lambda value: complex.__add__(value, 0)),
    str: ("str", lambda value: str.__getitem__(value, slice(None)) + ""),
    bytes: ("bytes", lambda value: bytes.__getitem__(value, slice(None))),
    bytearray: ("bytes", bytes),
}


def describe_as_recorded(
    value: Any, module_names: Callable[[], Mapping[int, str]] | None = None
) -> Description:
    """Describes an argument as the recorder does. A tensor that occurs twice is two leaves.

    Args:
        value: the argument.
        module_names: gives the names of modules that are keys of dicts, by their identity.
    """
    description = Description(value, module_names=module_names)
    description.node = _AsRecorded(description).node(value)
    return description


def describe_result(value: Any) -> Description:
    """Describes what a model returned as the recorder does: like an argument, and objects of any
    class by their attributes."""
    description = Description(value)
    description.node = _OfResult(description).node(value)
    return description


class _AsRecorded(Describer):
    """Decides in the same order as the recorder."""

    def __init__(self, to: Description) -> None:
        super().__init__(to)
        self.open: set[int] = set()
        self.in_context = False

    def node(self, value: Any) -> Node:
        if id(value) in self.open:
            return self.opaque(type(value), ITSELF)
        if self.in_context and is_tensor(value):
            return self.opaque(type(value))
        return super().node(value)

    def other(self, value: Any, cls: type) -> Node | None:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.nn.Module):
            return None
        found = self.constant(value, cls)
        if found is not None or value is ...:
            return found
        self.open.add(id(value))
        try:
            return self.container(value, cls)
        finally:
            self.open.discard(id(value))

    def subclassed(self, value: Any, cls: type) -> Node | None:
        for base, (kind, plain) in _PLAIN_VALUES.items():
            if isinstance(value, base):
                return self.scalar(kind, plain(value), name_of(cls))
        return self.of_numpy(value, cls) if cls.__module__ == "numpy" else None

    def of_numpy(self, value: Any, cls: type) -> Node | None:
        if cls.__name__ == "ndarray":
            return self.array(value)
        names = {base.__name__ for base in cls.__mro__}
        if names & {"bool", "bool_"}:
            return BoolNode(kind="bool", value=bool(value.item()))
        is_number = names & {"integer", "floating", "complexfloating"}
        if not is_number or "timedelta64" in names:
            return None
        kind = SCALARS.get(type(item := value.item()))
        return None if kind is None else self.scalar(kind, item, name_of(cls))

    def array(self, value: Any) -> Node | None:
        """An array, as the tensor that a program gets for it."""
        import torch

        if self.in_context:
            return None
        try:
            native = value.astype(value.dtype.newbyteorder("="), order="C")
            self.to.tensors.append(torch.from_numpy(native))
        except TypeError:  # text, objects
            return None
        return TensorNode(kind="ndarray", leaf=len(self.to.tensors) - 1)

    def container(self, value: Any, cls: type) -> Node | None:
        registered = registration_of(cls)
        torch = sys.modules.get("torch")
        is_size = torch is not None and cls is torch.Size
        if cls in SEQUENCES or is_size:
            return SequenceNode.model_construct(
                kind="size" if is_size else SEQUENCES[cls],
                children=self.nodes(tuple(value)),
                type=None,
            )
        if cls is SimpleNamespace or (is_cache(cls) and not isinstance(value, dict)):
            return self.fields("object", cls, vars(value)) if hasattr(value, "__dict__") else None
        if dataclasses.is_dataclass(cls):
            return self.fields("dataclass", cls, present_fields(value))
        if isinstance(value, tuple):
            return self.a_tuple(value, cls)
        if registered is not None and cls.__module__ not in ("builtins", "collections"):
            return self.custom(value, cls, registered)
        if isinstance(value, dict):
            return self.mapping(value, cls)
        if isinstance(value, WRAPPERS):
            return self.wrapper(held_by(value), cls)
        for base, kind in SEQUENCES.items():
            if isinstance(value, base):
                plain: Any = base  # its method, not that of the subclass
                children = self.nodes(plain.__iter__(value))
                self.to.classes[name_of(cls)] = cls
                return SequenceNode.model_construct(kind=kind, children=children, type=name_of(cls))
        return None if registered is None else self.custom(value, cls, registered)

    def a_tuple(self, value: Any, cls: type) -> Node:
        names: Any = getattr(cls, "_fields", None)
        children = tuple(tuple.__iter__(value))
        if isinstance(names, tuple):
            return self.fields("namedtuple", cls, dict(zip(names, children, strict=True)))
        self.to.classes[name_of(cls)] = cls
        return SequenceNode.model_construct(
            kind="tuple", children=self.nodes(children), type=name_of(cls)
        )

    def wrapper(self, held: Any, cls: type) -> Node | None:
        if held is None:
            return self.opaque(cls)
        if isinstance(held, dict):
            return self.mapping(held, cls)
        self.to.classes[name_of(cls)] = cls
        children = self.nodes(list.__iter__(held))
        return SequenceNode.model_construct(kind="list", children=children, type=name_of(cls))

    def unknown(self, value: Any, cls: type) -> Node:
        registered = registration_of(cls)
        if self.in_context or registered is not None or not is_wrapped(cls):
            return self.opaque(cls)
        attributes, reason = attributes_of(value)
        if reason is not None:
            return self.opaque(cls)
        self.open.add(id(value))
        try:
            return self.fields("object", cls, attributes)
        finally:
            self.open.discard(id(value))

    def mapping(self, value: dict[Any, Any], cls: type) -> Node | None:
        items = dict(dict.items(value))
        modules: list[int] = []
        if not all(map(_is_key, items)):
            known = self.to.module_names
            items, modules = _by_name(items, {} if known is None else known())
        if not all(map(_is_key, items)):
            return self.opaque(cls, _MODULE_KEYS) if _has_modules(items) else None
        if cls is not dict:
            self.to.classes[name_of(cls)] = cls
        return DictNode.model_construct(
            kind="dict",
            keys=tuple(items),
            children=self.nodes(items.values()),
            type=None if cls is dict else name_of(cls),
            modules=tuple(modules) or None,
        )

    def context(self, value: Any) -> Node:
        before, self.in_context = self.in_context, True
        try:
            return self.node(value)
        finally:
            self.in_context = before


class _OfResult(_AsRecorded):
    """Describes objects of any class too, as the recorder does with outputs, within its bounds."""

    of_inputs = False

    def __init__(self, to: Description) -> None:
        super().__init__(to)
        self.nested = 0
        self.left = MAX_VALUES

    def node(self, value: Any) -> Node:
        if self.nested:
            self.left -= 1
            if self.left < 0:
                return self.opaque(type(value), f"more than {MAX_VALUES} values in one object")
        made = super().node(value)
        names = () if self.in_context else _beside(value, made)
        return made.model_copy(update={"beside": names}) if names else made

    def constant(self, value: Any, cls: type) -> Node | None:
        if isinstance(value, type) and not is_in_its_module(value):
            return self.opaque(cls, "a class that its module does not have")
        return super().constant(value, cls)

    def unknown(self, value: Any, cls: type) -> Node:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.nn.Module):
            return self.opaque(cls, "a module")
        if self.in_context or registration_of(cls) is not None or not _is_bare(cls):
            return self.opaque(cls)
        if self.nested >= MAX_NESTED:
            return self.opaque(cls, f"within {MAX_NESTED} objects")
        attributes, reason = attributes_of(value)
        if reason is not None:
            return self.opaque(cls, reason)
        return self.attributes(value, cls, attributes)

    def attributes(self, value: Any, cls: type, state: Mapping[str, Any]) -> Node:
        if not self.nested:
            self.left = MAX_VALUES
        self.nested += 1
        self.open.add(id(value))
        try:
            return self.fields("object", cls, state)
        finally:
            self.open.discard(id(value))
            self.nested -= 1


def _beside(value: Any, node: Node) -> tuple[str, ...]:
    """The names of the attributes that a value has and its node does not describe, as the recorder
    notes them."""
    cls = type(value)
    if isinstance(node, TensorNode) or is_nested_node(node):
        return names_on_tensor(value) if is_tensor(value) else ()
    if isinstance(node, FieldsNode):
        known = () if node.kind == "namedtuple" else frozenset(node.fields)
        return names_beside(value, known, none_is_absent=issubclass(cls, dict))
    is_subclass = isinstance(node, ScalarNode | SequenceNode | DictNode) and node.type is not None
    if not is_subclass or cls.__module__ == "numpy":
        return ()
    return names_beside(value, ("data",) if issubclass(cls, WRAPPERS) else ())


def _is_bare(cls: type) -> bool:
    """Whether a class is no container. A container that comes here could not be described because
    of what it holds, such as a dict with keys that no tape can hold."""
    return not issubclass(cls, (dict, list, tuple, set, frozenset, *WRAPPERS))


def _by_name(items: dict[Any, Any], names: Mapping[int, str]) -> tuple[dict[Any, Any], list[int]]:
    """The items of a dict, with the name of each module that is a key, and the positions of these
    keys."""
    found = [(key.name if type(key) is ModuleKey else names.get(id(key)), key) for key in items]
    known = {name is None or name not in items for name, _ in found}
    if not all(known):
        return items, []
    keys = [key if name is None else name for name, key in found]
    places = [i for i, (name, _) in enumerate(found) if name is not None]
    return dict(zip(keys, items.values(), strict=True)), places


def _has_modules(items: Iterable[Any]) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and any(issubclass(type(key), torch.nn.Module) for key in items)


def _is_key(key: Any) -> bool:
    """Whether a tape can hold this key of a dict."""
    parts = key if type(key) is tuple else (key,)
    return all(type(part) in (str, int, float, bool, bytes, type(None)) for part in parts)
