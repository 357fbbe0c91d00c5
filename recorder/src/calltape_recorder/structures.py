"""Tokens to the structure document of the format, once per distinct structure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from calltape_recorder.known_classes import type_name
from calltape_schema.packing import pack_int, pack_text
from calltape_schema.tree import encode_structure

__all__ = ["Structure", "Structures", "Wanted"]

Wanted = bool | tuple[bool, ...]
"""Of which leaves the bytes are kept: of all, of none, or one answer per leaf."""

_MAX_STRUCTURES = 1024
_MAX_KEY = 1000


class Structure:
    """One distinct structure; two are the same only if they are one object, so that whatever is
    remembered by structure is found without comparing paths.

    Attributes:
        encoded: the bytes that stand on the tape.
        keys: for each leaf, its readable path, which names its bytes in the blob.
        classes: the classes met in it, by ``module:qualname``.
        wanted: whether the bytes of its leaves are kept: of all, of none, or per leaf.
        like, last_facts: what its last leaves looked like (:mod:`calltape_recorder.likeness`).
    """

    __slots__ = ("classes", "encoded", "keys", "last_facts", "like", "wanted")

    def __init__(
        self, encoded: bytes, keys: tuple[str, ...], classes: dict[str, type],
        wanted: Wanted = True,
    ) -> None:  # fmt: skip
        self.encoded = encoded
        self.keys = keys
        self.classes = classes
        self.wanted = wanted
        self.like: Any = None
        self.last_facts: Any = None


class Structures:
    """Remembers what was built for which tokens; the oldest is forgotten past a bound.

    ``wants`` tells by a leaf's path whether its bytes are kept; it is asked once per structure.
    """

    def __init__(
        self, on_new: Callable[[Structure], None], wants: Callable[[str], bool] | bool = True
    ) -> None:
        self._known: dict[tuple[Any, ...], Structure] = {}
        self._on_new = on_new
        self._wants = wants
        self._lock = threading.RLock()  # of what is remembered

    def of(self, tokens: tuple[Any, ...]) -> Structure:
        """The structure of these tokens, from memory where it was seen before."""
        known = self._known.get(tokens)
        return self._built(tokens) if known is None else known

    def _built(self, tokens: tuple[Any, ...]) -> Structure:
        built = _Builder(tokens).structure()
        built.wanted = _wanted(built.keys, self._wants)
        with self._lock:
            known = self._known.get(tokens)
            if known is not None:  # another thread was quicker
                return known
            if len(self._known) >= _MAX_STRUCTURES:
                self._known.pop(next(iter(self._known)), None)
            self._known[tokens] = built
        self._on_new(built)
        return built


def _wanted(keys: tuple[str, ...], wants: Callable[[str], bool] | bool) -> Wanted:
    if isinstance(wants, bool):
        return wants
    each = tuple([wants(key) for key in keys])
    return each if len(set(each)) > 1 else all(each)


class _Builder:
    def __init__(self, tokens: tuple[Any, ...]) -> None:
        self._root = tokens[0]
        self._tokens = iter(tokens[1:])
        self._keys: list[str] = []
        self._taken: set[str] = set()
        self._scalars = 0
        self._classes: dict[str, type] = {}

    def structure(self) -> Structure:
        if self._root == "inputs":
            root = self._inputs()
        else:
            root = self._node("outputs")
        document = {"root": root, "leaves": len(self._keys), "scalars": self._scalars}
        return Structure(encode_structure(document), tuple(self._keys), self._classes)

    def _inputs(self) -> dict[str, Any]:
        return {"kind": "tuple", "children": [self._node("args"), self._node("kwargs")]}

    def _node(self, path: str) -> dict[str, Any]:
        token = next(self._tokens)
        if type(token) is str:
            return self._plain(token, path)
        kind = token[0]
        build = _builders.get(kind)
        if build is not None:
            return build(self, token, path)
        return self._sequence(token, path)

    def _plain(self, token: str, path: str) -> dict[str, Any]:
        if token == "tensor":
            return {"kind": "tensor", "leaf": self._leaf(path)}
        if token in ("true", "false"):
            return {"kind": "bool", "value": token == "true"}
        if token in ("none", "ellipsis"):
            return {"kind": token}
        return {"kind": token, "scalar": self._scalar()}

    def _leaf(self, path: str) -> int:
        key = path if len(path) <= _MAX_KEY else f"{path[:_MAX_KEY]}~{len(self._keys)}"
        if key in self._taken:  # {"a.b": x, "a": {"b": y}}
            key = f"{key}~{len(self._keys)}"
        self._taken.add(key)
        self._keys.append(key)
        return len(self._keys) - 1

    def _scalar(self) -> int:
        self._scalars += 1
        return self._scalars - 1

    def _type(self, cls: type) -> str:
        name = type_name(cls)
        self._classes[name] = cls
        return name

    def _tensor_again(self, token: Any, path: str) -> dict[str, Any]:
        return {"kind": "tensor", "leaf": token[1]}

    def _array(self, token: Any, path: str) -> dict[str, Any]:
        leaf = token[1] if token[1] < len(self._keys) else self._leaf(path)
        return {"kind": "ndarray", "leaf": leaf}

    def _typed_scalar(self, token: Any, path: str) -> dict[str, Any]:
        return {"kind": token[1], "scalar": self._scalar(), "type": self._type(token[2])}

    def _constant(self, token: Any, path: str) -> dict[str, Any]:
        return {"kind": token[0], "name": str(token[1]).removeprefix("torch.")}

    def _enum(self, token: Any, path: str) -> dict[str, Any]:
        node: dict[str, Any] = {
            "kind": "enum",
            "type": self._type(token[1]),
            "name": pack_text(token[2]),
        }
        value = token[4]
        if value is not None:
            node["value"] = pack_text(value) if type(value) is str else value
        return node

    def _class(self, token: Any, path: str) -> dict[str, Any]:
        return {"kind": "class", "type": self._type(token[1])}

    def _opaque(self, token: Any, path: str) -> dict[str, Any]:
        return {"kind": "opaque", "type": self._type(token[1]), "reason": token[2]}

    def _sequence(self, token: Any, path: str) -> dict[str, Any]:
        kind, count, cls = token
        children = [self._node(f"{path}.{index}") for index in range(count)]
        node = {"kind": kind, "children": children}
        return node if cls is None else {**node, "type": self._type(cls)}

    def _dict(self, token: Any, path: str) -> dict[str, Any]:
        keys = [_key_of(key) for key in token[1]]
        children = [self._node(f"{path}.{_readable(key)}") for key in keys]
        node = {"kind": "dict", "keys": [_packed(key) for key in keys], "children": children}
        return node if token[2] is None else {**node, "type": self._type(token[2])}

    def _fields(self, token: Any, path: str) -> dict[str, Any]:
        kind, names, cls = token
        return {
            "kind": kind,
            "type": self._type(cls),
            "fields": [pack_text(name) for name in names],
            "children": [self._node(f"{path}.{_readable(name)}") for name in names],
        }

    def _custom(self, token: Any, path: str) -> dict[str, Any]:
        _, count, cls = token
        context = self._node(f"{path}.context")
        children = [self._node(f"{path}.{index}") for index in range(count)]
        return {"kind": "custom", "type": self._type(cls), "context": context, "children": children}


_builders: dict[str, Callable[[_Builder, Any, str], dict[str, Any]]] = {
    "tensor": _Builder._tensor_again,
    "ndarray": _Builder._array,
    "scalar": _Builder._typed_scalar,
    **dict.fromkeys(("dtype", "device", "layout", "memory_format"), _Builder._constant),
    "enum": _Builder._enum,
    "class": _Builder._class,
    "opaque": _Builder._opaque,
    "dict": _Builder._dict,
    **dict.fromkeys(("namedtuple", "dataclass", "object"), _Builder._fields),
    "custom": _Builder._custom,
}


def _key_of(token: Any) -> Any:
    if type(token) is str:
        return token
    if token[0] == "tuple":
        return tuple(_key_of(part) for part in token[1:])
    return token[2]


def _packed(key: Any) -> Any:
    if type(key) is str:
        return pack_text(key)
    if type(key) is tuple:
        return [_packed(part) for part in key]
    return pack_int(key) if type(key) is int else key


def _readable(key: Any) -> str:
    """A key as part of a path; a lone surrogate would make the blob's header invalid JSON."""
    return str(key)[:200].encode("utf-8", "backslashreplace").decode()
