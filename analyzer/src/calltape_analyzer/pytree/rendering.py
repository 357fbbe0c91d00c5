"""The arguments of a call, and any value, as one line of text: ``{x: float32[2,8], k: int64[2]}``.

Takes Python objects, or a spec of a tape (then torch is not needed); both give the same text. All
text of a tape is made printable: a terminal would act on some characters.
"""

from __future__ import annotations

import dataclasses
import enum
import reprlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

from calltape_analyzer.pytree.caches import is_cache_name, is_layer_name
from calltape_analyzer.pytree.description import present_fields
from calltape_analyzer.pytree.nodes import named_children
from calltape_analyzer.pytree.placeholder import Placeholder, withheld_words
from calltape_analyzer.pytree.tensors import is_shapeless, is_tensor, nested_parts
from calltape_analyzer.text import printable, printable_lines
from calltape_schema.objects import NESTED_TENSOR
from calltape_schema.records import Tree
from calltape_schema.tree import Leaf, Node, parts_of_inputs, walk

__all__ = ["Inputs", "render", "render_inputs", "render_node", "render_outputs"]

_MAX_ITEMS = 16
_MAX_NAMED = 48
_MAX_TEXT = 40
_MAX_DEPTH = 64


class Inputs(NamedTuple):
    """The arguments of a call, ``model(*args, **kwargs)``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __repr__(self) -> str:
        shown = _Short()
        return printable_lines(
            f"Inputs(args={shown.repr(self.args)}, kwargs={shown.repr(self.kwargs)})"
        )


class _Short(reprlib.Repr):
    """Like ``repr()``, except that long values are cut: a tape may refer to one long text in
    thousands of places."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 100
        self.maxtuple = self.maxlist = self.maxset = self.maxfrozenset = self.maxdeque = 1000
        self.maxdict = 1000
        self.maxstring = self.maxother = self.maxlong = 10_000

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 1024 else f"<int of {x.bit_length()} bits>"

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x) if len(x) <= self.maxother else f"{x[: self.maxother]!r}..."

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        pairs = [  # reprlib would sort the keys
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in islice(x.items(), self.maxdict)
        ]
        return f"{{{', '.join([*pairs, '...'] if len(x) > self.maxdict else pairs)}}}"


def render(value: Any) -> str:
    """One line with types, shapes and small values, without the values of tensors.

    Args:
        value: a Python object, such as ``call.inputs`` or ``call.outputs``, or a tree of a record,
            such as ``call.record.inputs``, for which torch is not needed.

    The arguments of a call are shown as ``(float32[2,8], labels=int64[2])``, or as
    ``{x: float32[2,8], labels: int64[2]}`` if all of them are named. Equal neighbours in a list are
    counted; long containers and texts are cut.
    """
    if isinstance(value, Tree):
        shown = _tree(value)
    elif isinstance(value, Inputs):
        objects = [_object(item, 0) for item in value.args]
        shown = _arguments(objects, [(key, _object(item, 0)) for key, item in value.kwargs.items()])
    else:
        shown = _object(value, 0)
    # Parts that come from a tape are printable already; the names of live classes may not be.
    return printable(shown)


def render_inputs(tree: Tree, names: Sequence[str], *, brief: bool = False) -> str:
    """One line for the inputs of a call: ``(x=float32[2,8], labels=int64[2])``.

    Args:
        tree: the inputs.
        names: of the arguments, those that were passed by position first.
        brief: of an object beside plain tensors, only how many tensors it has
            (``DecoderState of 5``).
    """
    root = tree.spec().root
    parts = parts_of_inputs(root)
    if parts is None:
        return printable(_tree(tree))
    arguments = (*parts[0].children, *parts[1].children)
    brief = brief and any(map(_is_plain, arguments))
    shown = _Spec(tree.facts(), tree.scalars, root if brief else None)
    pairs = list(zip(names, shown.nodes(arguments), strict=True))
    return printable(f"({_pairs(pairs, '=')})")


def render_outputs(tree: Tree, *, brief: bool = False) -> str:
    """One line for what a call returned; ``brief`` as for :func:`render_inputs`."""
    root = tree.spec().root
    brief = brief and any(map(_is_plain, getattr(root, "children", ())))
    return printable(_tree(tree, brief=brief))


def _is_plain(node: Any) -> bool:
    return node.kind in ("tensor", "ndarray")


def render_node(node: Node, leaves: Sequence[Leaf], scalars: Sequence[Any]) -> str:
    """One line for a node of a structure, with the leaves and scalars of its tree."""
    return printable(_Spec(leaves, scalars).node(node))


# The text of each kind of part, for specs and for objects.


def _tensor(dtype: str, shape: Iterable[int], device: str, prefix: str = "") -> str:
    sizes = ",".join(map(str, shape))
    where = "" if device == "cpu" else f"@{device}"
    return printable(f"{prefix}{dtype}[{sizes}]{where}")


def _scalar(value: Any) -> str:
    if isinstance(value, (str, bytes)) and len(value) > _MAX_TEXT:
        return f"{value[:_MAX_TEXT]!r}…"
    if type(value) is int and value.bit_length() > 256:
        return f"int of {value.bit_length()} bits"
    return repr(value)


def _class(type_name: str) -> str:
    return printable(type_name.rpartition(":")[2].rpartition(".")[2] or type_name)


def _items(items: Sequence[str]) -> list[str]:
    """At most 16 items. Three or more equal neighbours are one item with a count."""
    shown = []
    for text, group in groupby(items):
        count = len(list(group))
        shown.extend([text] * count if count < 3 else [f"{text} ×{count}"])
    if len(shown) > _MAX_ITEMS:
        shown[_MAX_ITEMS:] = ["…"]
    return shown


def _list(items: Sequence[str]) -> str:
    return f"[{', '.join(_items(items))}]"


def _tuple(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(_items(items))})"


def _set(items: Sequence[str]) -> str:
    return f"{{{', '.join(_items(items))}}}" if items else "set()"


def _mapping(pairs: Sequence[tuple[Any, str]]) -> str:
    return f"{{{_pairs(pairs, ': ')}}}"


def _pairs(pairs: Sequence[tuple[Any, str]], between: str) -> str:
    shown = []
    for name, text in pairs[:_MAX_NAMED]:
        label = _scalar(name)
        if isinstance(name, str) and name and name.replace(".", "_").isidentifier():
            label = name if len(name) <= 2 * _MAX_TEXT else f"{name[: 2 * _MAX_TEXT]}…"
        shown.append(f"{label}{between}{text}")
    return ", ".join([*shown, "…"] if len(pairs) > _MAX_NAMED else shown)


def _fields(type_name: str, pairs: Sequence[tuple[Any, str]]) -> str:
    return f"{_class(type_name)}({_pairs(pairs, '=')})"


def _arguments(args: Sequence[str], kwargs: Sequence[tuple[Any, str]]) -> str:
    if kwargs and not args:
        return _mapping(kwargs)
    shown = [*args[:_MAX_NAMED], "…"] if len(args) > _MAX_NAMED else list(args)
    if kwargs:
        shown.append(_pairs(kwargs, "="))
    return f"({', '.join(shown)})"


def _tree(tree: Tree, *, brief: bool = False) -> str:
    root = tree.spec().root
    shown = _Spec(tree.facts(), tree.scalars, root if brief else None)
    parts = parts_of_inputs(root)
    if parts is None:
        return shown.node(root)
    args, kwargs = parts
    named = zip(kwargs.keys, shown.nodes(kwargs.children), strict=True)
    return _arguments(shown.nodes(args.children), list(named))


class _Spec:
    """Renders nodes of one tree.

    Args:
        leaves, scalars: of the tree.
        brief: the node of which inner objects are shown by their size only; None if all are shown.
    """

    def __init__(
        self, leaves: Sequence[Leaf], scalars: Sequence[Any], brief: Node | None = None
    ) -> None:
        self.leaves = leaves
        self.scalars = scalars
        self._brief = brief

    def nodes(self, nodes: Iterable[Any]) -> list[str]:
        return [self.node(node) for node in nodes]

    def node(self, node: Any) -> str:
        kind: str = node.kind
        is_inner = self._brief is not None and node is not self._brief
        if is_inner and (kind in _FIELD_KINDS or kind == "custom"):
            return f"{_class(node.type)} of {sum(map(_is_plain, walk(node)))}"
        if kind in ("tensor", "ndarray"):
            leaf = self.leaves[node.leaf]
            return _tensor(leaf.dtype, leaf.shape, leaf.device, "np." if kind == "ndarray" else "")
        if kind in ("int", "float", "complex", "str", "bytes"):
            value = self.scalars[node.scalar]
            return _scalar(complex(*value) if kind == "complex" else value)
        if kind in _FIELD_KINDS:
            return self.fields(node)
        if kind in _PLAIN_SEQUENCES and node.type is None:
            return _PLAIN_SEQUENCES[kind](self.nodes(node.children))
        if kind == "dict":
            texts = self.nodes(node.children)
            shown = _mapping(list(zip(node.keys, texts, strict=True)))
            return shown if node.type is None else f"{_class(node.type)}({shown})"
        if hasattr(node, "children"):
            name = getattr(node, "type", None) or _BARE.get(kind, kind)
            items = self.nodes(node.children)
            return f"{_class(name)}({', '.join(items if kind in _EXACT else _items(items))})"
        if kind == "opaque" and node.of is not None:
            return f"<{withheld_words(node, self.scalars)}>"
        if kind in ("none", "ellipsis"):
            return "None" if kind == "none" else "..."
        if kind == "bool":
            return str(node.value)
        if kind == "enum":
            return f"{_class(node.type)}.{printable(node.name)}"
        if kind == "class":
            return f"<class {_class(node.type)}>"
        if kind == "opaque":
            return f"{_class(node.type)}(?)"
        return printable(f"{kind}({node.name})" if kind == "device" else f"torch.{node.name}")

    def fields(self, node: Any) -> str:
        pairs = list(named_children(node))
        if node.kind == "object":
            # An object such as a cache has settings and counters too. Only its tensors are shown.
            pairs = [pair for pair in pairs if any(map(_is_plain, walk(pair[1])))]
        return _fields(node.type, [(name, self.node(child)) for name, child in pairs])


_BARE = {"size": "Size"}
_EXACT = frozenset({"slice", "range"})
_FIELD_KINDS = frozenset({"namedtuple", "dataclass", "object"})
_PLAIN_SEQUENCES = {"list": _list, "tuple": _tuple, "set": _set, "frozenset": _set}


# Python objects.


def _object(value: Any, depth: int) -> str:
    if depth > _MAX_DEPTH:
        return "…"
    below = depth + 1
    if is_tensor(value):
        parts = nested_parts(value)
        if parts is not None:
            pairs = [(name, _object(part, below)) for name, part in parts.items()]
            return _fields(NESTED_TENSOR, [pair for pair in pairs if is_tensor(parts[pair[0]])])
        shape = () if is_shapeless(value) else value.shape
        return _tensor(str(value.dtype).removeprefix("torch."), shape, str(value.device))
    if isinstance(value, enum.Enum):
        # A combination of flags has no name before Python 3.11, and an empty one never has.
        name = value.name if type(value.name) is str else str(value.value)
        return f"{_class(type(value).__qualname__)}.{printable(name)}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return _scalar(value)
    if value is ...:
        return "..."
    if isinstance(value, type):
        return f"<class {_class(value.__qualname__)}>"
    container = _container(value, below)
    return container if container is not None else _other_object(value, below)


def _container(value: Any, depth: int) -> str | None:
    fields, named = getattr(type(value), "_fields", None), None
    if isinstance(value, tuple) and fields is not None and len(fields) == len(value):
        named = dict(zip(fields, value, strict=True))
    elif dataclasses.is_dataclass(value) and not isinstance(value, Placeholder):
        named = present_fields(value)
    if named is not None:
        pairs = [(name, _object(item, depth)) for name, item in named.items()]
        return _fields(type(value).__qualname__, pairs)
    if isinstance(value, Mapping):
        # The method of dict itself: an attribute of the value may hide it.
        held = dict.items(value) if isinstance(value, dict) else value.items()
        shown = _mapping([(key, _object(item, depth)) for key, item in held])
        return shown if type(value) is dict else f"{_class(type(value).__qualname__)}({shown})"
    for base, kind in ((list, _list), (tuple, _tuple), (set, _set), (frozenset, _set)):
        if isinstance(value, base):
            items = [_object(item, depth) for item in value]
            if type(value) is base:
                return kind(items)
            return f"{_class(type(value).__qualname__)}({', '.join(_items(items))})"
    return None


def _other_object(value: Any, depth: int) -> str:
    if isinstance(value, Placeholder):
        if value.withheld:
            return f"<{printable(value.reason)}>"
        if not value.children:
            return f"{_class(value.type_name)}(?)"
        items = list(zip(value.names, value.children, strict=True))
        name = value.type_name
        if is_cache_name(name) or is_layer_name(name) or name == NESTED_TENSOR:
            items = [pair for pair in items if _object_has_tensors(pair[1])]
        if [name for name, _ in items] == list(range(len(items))):
            return f"{_class(value.type_name)}({', '.join(_object(i, depth) for _, i in items)})"
        return _fields(value.type_name, [(name, _object(item, depth)) for name, item in items])
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(
        value, (torch.dtype, torch.device, torch.layout, torch.memory_format)
    ):
        return f"device({value})" if type(value).__name__ == "device" else str(value)
    if isinstance(value, (slice, range)):
        parts = (value.start, value.stop, value.step)
        return f"{type(value).__name__}({', '.join(_object(part, depth) for part in parts)})"
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return _tensor(str(value.dtype), value.shape, "cpu", "np.")
    state = getattr(value, "__dict__", None)
    name = type(value).__qualname__
    if state is None or callable(value):
        return f"{_class(name)}(?)"
    holding = {key: item for key, item in state.items() if _object_has_tensors(item)}
    return _fields(name, [(key, _object(item, depth)) for key, item in holding.items()])


def _object_has_tensors(value: Any) -> bool:
    """Whether there is a tensor in a tree of plain containers and objects."""
    stack: list[Any] = [value]
    seen: set[int] = set()
    while stack:
        item = stack.pop()
        if is_tensor(item):
            return True
        if id(item) in seen or isinstance(item, (str, bytes, type)) or len(seen) > 10_000:
            continue
        seen.add(id(item))
        if isinstance(item, Mapping):
            stack.extend(dict.values(item) if isinstance(item, dict) else item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        else:
            stack.extend(getattr(item, "__dict__", {}).values())
    return False
