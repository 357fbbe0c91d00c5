"""Converts structures between their form on a tape and their form in code.

On a tape, nodes have seven kinds that any language has, with Python's word as a hint. Code uses
only Python's words. Takes the document of one form as plain data, and returns that of the other
one. FORMAT.md §6 has a table of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from calltape_schema.packing import is_array, is_map

UNSUPPORTED = "unsupported"
"""The reason of an opaque node that replaces a node of a later version."""

_SCALARS = ("int", "float", "complex", "str", "bytes")
WORDS: dict[str, tuple[str, frozenset[str]]] = {
    "tensor": ("tensor", frozenset({"ndarray"})),
    "const": (
        "none",
        frozenset({"ellipsis", "dtype", "device", "layout", "memory_format", "enum", "class"}),
    ),
    "seq": (
        "tuple", frozenset({"list", "set", "frozenset", "size", "slice", "range", "custom"})
    ),
    "map": ("dict", frozenset()),
    "record": ("object", frozenset({"namedtuple", "dataclass"})),
    "opaque": ("opaque", frozenset()),
}  # fmt: skip
"""Per kind of a tape but ``scalar`` the word for a node without a hint, and the hints."""
_KINDS: dict[str, tuple[str, str | None]] = {
    **{word: (kind, None) for kind, (word, _) in WORDS.items()},
    **{hint: (kind, hint) for kind, (_, hints) in WORDS.items() for hint in hints},
    "bool": ("const", None),
}
# The canonical order of the fields of a node; `of` of a scalar and of an opaque one.
_ORDER = (
    "type", "reason", "leaf", "of", "scalar", "length", "name", "value", "keys", "modules",
    "fields", "context", "children", "beside",
)  # fmt: skip
_CONTEXT = {
    "autocast": (), "grad": True, "inference": False, "default_dtype": "float32", "training": False
}  # fmt: skip
_MAX_NAME = 64  # characters of a kind or a hint of a later version


def neutral(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a structure in the form of a tape, which is canonical: fields have one order,
    and defaults are left out.

    Args:
        document: with Python's words. Parts that break the format are left for validation.
    """
    result = {"root": _neutral(document.get("root"))}
    result |= {name: document[name] for name in ("leaves", "scalars") if name in document}
    context = document.get("context")
    if is_map(context):
        context = {
            name: context[name]
            for name, default in _CONTEXT.items()
            if (name in context and context[name] not in (default, []))
            or type(context.get(name)) is int  # equals a bool, but is not one
        }
    return {**result, "context": context} if context else result


def _neutral(node: Any) -> Any:
    if not is_map(node):
        return node
    word: Any = node.get("kind")
    fields = dict(node)
    kind: str | None
    if word in _SCALARS:
        kind, hint = "scalar", None
        fields["of"] = word
    else:
        kind, hint = _KINDS.get(word, (None, None))  # there are no others
    result: dict[str, Any] = {"kind": kind}
    if hint is not None:
        result["py"] = hint
    for name in _ORDER:
        value = fields.get(name)
        if value is None:
            continue
        if name == "children" and isinstance(value, (list, tuple)):
            value = [_neutral(child) for child in value]
        elif name == "context":
            value = _neutral(value)
        result[name] = value
    return result


def pythonic(document: Any, hidden: Callable[[Any], bool] = lambda node: False) -> Any:
    """The document of a structure with Python's words. A node that only a later version knows
    becomes an opaque one.

    Args:
        document: in the form of a tape, neither too deep nor too large. Parts that break the format
            are left for validation.
        hidden: says whether this reader cannot show a mapping, which becomes an opaque node then.
    """
    if not is_map(document):
        return document
    return {**document, "root": _pythonic(document.get("root"), hidden)}


def _pythonic(node: Any, hidden: Callable[[Any], bool]) -> Any:
    if not is_map(node):
        return node
    kind: Any = node.get("kind")
    hint = node.get("py")
    word: Any = None
    is_known = kind == "scalar" or (type(kind) is str and kind in WORDS)
    if is_known and "py" in node and not _is_name(hint):
        pass  # breaks the format
    elif kind == "scalar":
        word = node.get("of")
        word = word if word in _SCALARS else None
    elif is_known:
        word, hints = WORDS[kind]
        if hint in hints:
            word = hint
        elif kind == "const" and hint is not None:
            return _placeholder(node)
        elif kind == "const" and "value" in node:
            word = "bool"
        if kind == "map" and hidden(node):
            return _placeholder(node)
    elif _is_name(kind):
        return _placeholder(node)
    result = {**node, "kind": word}
    if is_array(children := node.get("children")):
        result["children"] = tuple([_pythonic(child, hidden) for child in children])
    if word == "custom":
        result["context"] = _pythonic(node.get("context"), hidden)
    return result


def _placeholder(node: Mapping[str, Any]) -> dict[str, Any]:
    name = node.get("type", "builtins:object")
    return {"kind": "opaque", "type": name, "reason": UNSUPPORTED}


def _is_name(value: Any) -> bool:
    """Whether this can be the name of a kind or a hint of a later version."""
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return 0 < len(value) <= _MAX_NAME
