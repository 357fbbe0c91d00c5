"""The arguments of a call in one canonical form, so that recorded and live calls can be compared.

Takes the nodes of a call's inputs; returns an :class:`ArgumentLayout`: a tree of containers and
constants, with numbered tensors and scalars. Arguments are bound to the names of the signature. A
value that equals its default is left out, and so is the order of the keys of a plain dict. With
these rules most exports succeeded when they were measured (docs/decisions/export-strategies.md).
Keys of dicts that do not come back from call to call are data: a layout describes them as one value
that it does not know (:class:`calltape_schema.data_keys.KeySets` has the rule).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

from calltape_analyzer.observing.contexts import CONTEXT, ORDINARY, Context
from calltape_analyzer.observing.signature import DataKeys, PassedArguments, Signature
from calltape_analyzer.observing.size_table import Column, columns_of
from calltape_analyzer.pytree.nodes import named_children, nested_places
from calltape_analyzer.pytree.placeholder import DATA_KEYS
from calltape_analyzer.reading.calls import Calls
from calltape_schema.data_keys import KeySets
from calltape_schema.privacy import is_name, is_position
from calltape_schema.tree import (
    BoolNode,
    ClassNode,
    ConstantNode,
    CustomNode,
    DictNode,
    EnumNode,
    FieldsNode,
    Node,
    NoneNode,
    OpaqueNode,
    ScalarNode,
    SequenceNode,
    TensorNode,
    children_of,
)

__all__ = [
    "LEFT_OUT",
    "OTHER_KEYS",
    "ArgumentLayout",
    "LeafPath",
    "Renamed",
    "counter_key_of",
    "data_keys_of",
    "is_public",
    "layout_of_inputs",
    "layout_of_nodes",
    "turned_around",
    "typed_keys",
    "varying_ints",
]


OTHER_KEYS = "*"
"""Stands for all keys that are data, if the dict has others too."""

_MAX_PLACES = 4096


def data_keys_of(calls: Callable[[], Calls], signature: Signature) -> DataKeys:
    """Gives, by the place of a dict with keys that are data (``step.scheduled``), those of its keys
    that are none, with their types. The calls are looked at once, when a dict is met: few calls
    have one.

    Args:
        calls: gives the calls of a tape.
        signature: of the recorded method.
    """

    @cache
    def found() -> Mapping[str, frozenset[Hashable]]:
        seen: dict[str, KeySets] = {}
        structures: set[bytes] = set()
        for inputs in calls().by_inputs():
            if inputs.inputs.structure in structures:
                continue
            structures.add(inputs.inputs.structure)
            passed = PassedArguments.of(inputs.inputs.spec().root, signature)
            for name, node in passed.by_name().items():
                for place, keys in _dicts(node, str(name)):
                    if place in seen or len(seen) < _MAX_PLACES:
                        seen.setdefault(place, KeySets()).add(typed_keys(keys))
        lasting = {place: sets.lasting() for place, sets in seen.items()}
        return {place: keys for place, keys in lasting.items() if keys is not None}

    return found


def typed_keys(keys: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """Keys with their types: to Python, 1, 1.0 and True are the same key."""
    return tuple((type(key).__name__, key) for key in keys)


def _dicts(node: Node, place: str) -> Iterator[tuple[str, Sequence[Hashable]]]:
    """The dicts in an argument with their keys, each before those that are in it."""
    if isinstance(node, DictNode):
        yield place, node.keys
    for label, child in named_children(node):
        yield from _dicts(child, f"{place}.{label!s}")


LEFT_OUT = "?"
"""Stands for what is not told."""


def is_public(name: str) -> bool:
    """Whether the name of an argument, or a key in it, may be told: it looks like one from code, by
    the recorder's rule. A number may be a position in a list, or the key of a dict: it is told if
    it is as small as that rule wants it for a key."""
    if is_name(name) and is_position(name):
        return str(int(name)) == name and is_name(int(name))
    return name == OTHER_KEYS or is_name(name)


Renamed = Callable[[str], str]
"""From the name of a class on the tape to its name in this process."""


class LeafPath(NamedTuple):
    """Where a tensor or scalar stands.

    Attributes:
        argument: the name of the argument.
        path: below the argument (``".layers.0.keys"``); ``""`` for the argument itself.
        kind: of the leaf or scalar.
        number: among the leaves or the scalars of the call that was laid out.
        private: whether it is an attribute whose name starts with an underscore.
        owner: the class of the object of which it is an attribute.
        is_public: whether the path says nothing of what may have been passed. Keys of dicts do
            that do not look like names, such as the number of a customer.
    """

    argument: str
    path: str
    kind: Literal["tensor", "array", "int", "float", "complex", "str", "bytes"]
    number: int
    private: bool = False
    owner: str | None = None
    is_public: bool = False

    def __str__(self) -> str:
        return f"{self.argument}{self.path}"

    @property
    def public(self) -> str:
        """The path as far as it may be told."""
        if self.is_public:
            return str(self)
        return f"{self.argument}.{LEFT_OUT}" if is_public(self.argument) else LEFT_OUT

    @property
    def input_name(self) -> str:
        """What an input of a program is called that stands here; the caller makes it unique."""
        return str(self) or "_"  # f(**{"": x})

    @property
    def is_int(self) -> bool:
        """Whether it is an int, which has a column; other scalars are constants."""
        return self.kind == "int"


@dataclass(frozen=True, eq=False)
class ArgumentLayout:
    """The canonical form of one structure.

    Attributes:
        keys: per argument a key that is equal for equal structures. It contains the constants of
            the tree, and not the values of scalars. The last key may be that of the context.
        nodes: per argument its node. The numbers of leaves and scalars in it are of this layout.
        tensors: the tensors, in order; ``nodes`` refer to them by number.
        scalars: the ints, floats, texts, in order; likewise.
        positional: how many of the leading arguments were passed by position.
        left_out: the arguments that the call passes, with a value that is not their default, and
            that :meth:`Tape.remove_inputs` removed.
        context: what the call ran in.
        defaults: the values of ints that vary from call to call and may be left out. Their numbers
            follow those of the scalars of the call.
        ordered: the paths of plain dicts whose keys come in one order in all calls of the layout,
            and those of scalars that are of one class, such as ``numpy.float64``.
        unordered: those of the others with several keys; ``**`` stands for keyword arguments
            without a parameter of their own.
    """

    keys: tuple[tuple[str, Hashable], ...]
    nodes: Mapping[str, Node]
    tensors: tuple[LeafPath, ...]
    scalars: tuple[LeafPath, ...]
    positional: int
    left_out: tuple[str, ...] = ()
    context: Context = ORDINARY
    defaults: tuple[int, ...] = ()
    ordered: frozenset[str] = frozenset()
    unordered: tuple[str, ...] = ()

    def scalars_of(self, scalars: Sequence[Any]) -> list[Any]:
        """The scalars of a call of this layout, in its order.

        Args:
            scalars: those of the call.
        """
        all_scalars = (*scalars, *self.defaults)
        return [all_scalars[place.number] for place in self.scalars]

    @cached_property
    def ints(self) -> tuple[LeafPath, ...]:
        """The scalars that are ints, by the index of their column."""
        return tuple(path for path in self.scalars if path.is_int)

    @cached_property
    def others(self) -> tuple[LeafPath, ...]:
        """The scalars that are not ints: texts, floats, ..."""
        return tuple(path for path in self.scalars if not path.is_int)

    @cached_property
    def nested(self) -> tuple[FieldsNode, ...]:
        """The nested tensors among the arguments."""
        return tuple(nested for nested, _ in self.nested_places)

    @cached_property
    def nested_places(self) -> tuple[tuple[FieldsNode, str], ...]:
        """The nested tensors among the arguments, each with its path from the argument on."""
        return tuple(n for name, node in self.nodes.items() for n in nested_places(node, name))

    @cached_property
    def int_scalars(self) -> tuple[int, ...]:
        """The number among the scalars of each int, by the index of its column."""
        return tuple(i for i, path in enumerate(self.scalars) if path.is_int)

    @cached_property
    def int_columns(self) -> tuple[Column, ...]:
        """The columns of the ints."""
        return tuple(columns_of((), len(self.ints)))

    @cached_property
    def column_of_scalar(self) -> Mapping[int, Column]:
        """The column of each int, by its number among the scalars."""
        return dict(zip(self.int_scalars, self.int_columns, strict=True))

    def dimensions(self, tensor: int, rank: int) -> tuple[Column, ...]:
        """The columns of a tensor that has this rank, by axis."""
        return tuple(Column(tensor, axis) for axis in range(rank))

    def path(self, column: Column) -> LeafPath:
        """The tensor that a column is a dimension of, or the int that it is."""
        return (self.ints if column.axis is None else self.tensors)[column.index]

    def column_name(self, column: Column) -> str:
        """The name of a column for people: ``x[0]``, or the path of an int."""
        path = self.path(column)
        return str(path) if column.axis is None else f"{path}[{column.axis}]"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments, in the order of the signature."""
        return tuple(self.nodes)


VARIADIC = "**"
"""The path of keyword arguments without a parameter of their own, as of a dict."""


def layout_of_inputs(
    root: Node,
    scalars: Sequence[Any],
    signature: Signature,
    renamed: Renamed = str,
    context: Context = ORDINARY,
    ordered: frozenset[str] = frozenset(),
) -> ArgumentLayout:
    """The layout of a call.

    Args:
        root: a node of inputs: the tuple of args and kwargs.
        scalars: the scalars of the call. Their values are used only to leave out arguments that
            equal their default.
        signature: of the method that was called.
        renamed: gives the names of classes in this process.
        context: what the call ran in.
        ordered: the paths of plain dicts of which the order of the keys counts, and of scalars of
            which the class counts.
    """
    passed_arguments = PassedArguments.of(root, signature).with_defaults(signature, len(scalars))
    positional = [name for name, _ in passed_arguments.positional]
    passed = passed_arguments.by_name()

    def unpassed(name: str, node: Node) -> bool:
        return _is_default(name, node, scalars, signature)

    nodes = {
        name: node
        for name, node in passed.items()
        if name not in signature.removed and not unpassed(name, node)
    }
    order = {name: i for i, name in enumerate(positional)}
    places = signature.places
    beyond = len(order) + len(places)
    as_passed = VARIADIC in ordered

    def place(name: str) -> tuple[int, str]:
        # As keys of dicts, so that redaction can keep one order of both.
        text = "" if as_passed and name not in places else repr(name)
        return order.get(name, len(order) + places.get(name, beyond)), text

    names = sorted(nodes, key=place)
    leading = 0
    while leading < len(names) and leading < len(positional):
        if names[leading] != positional[leading]:
            break
        leading += 1
    sorted_nodes = {name: nodes[name] for name in names}
    layout = layout_of_nodes(sorted_nodes, leading, renamed, context, signature.data_keys, ordered)
    if not as_passed and sum(name not in places and name not in order for name in names) > 1:
        layout = replace(layout, unordered=(*layout.unordered, VARIADIC))
    left_out = (n for n in passed if n in signature.removed and not unpassed(n, passed[n]))
    defaults = tuple(signature.varying_defaults.values())
    return replace(layout, left_out=tuple(left_out), defaults=defaults)


def varying_ints(layouts: Iterable[ArgumentLayout], signature: Signature) -> frozenset[str]:
    """The parameters with an int as default for which some call passes another int. They vary from
    call to call, as far as other calls leave them out."""
    defaults = signature.int_defaults
    return frozenset(
        name
        for layout in layouts
        for name, node in layout.nodes.items()
        if name in defaults and isinstance(node, ScalarNode) and node.kind == "int"
    )


def counter_key_of(
    layout: ArgumentLayout, facts: Iterable[Sequence[Any]], signature: Signature
) -> Hashable:
    """Equal for calls that traffic counters cannot tell apart. They do not know the value of a
    scalar, so that it may be its parameter's default, which a layout leaves out.

    Args:
        layout: of the call.
        facts: of each tensor, first its dtype and its rank.
        signature: of the method that was called.
    """

    def may_be_default(name: str) -> bool:
        parameter = signature.by_name.get(name)
        return parameter is not None and parameter.has_default and parameter.default is not None

    return tuple(tuple(tensor[:2]) for tensor in facts), tuple(
        (name, key)
        for name, key in layout.keys
        if name != CONTEXT  # whether autocast met an argument is not counted
        and not (isinstance(layout.nodes[name], ScalarNode) and may_be_default(name))
    )


def layout_of_nodes(
    nodes: Mapping[str, Node],
    positional: int,
    renamed: Renamed = str,
    context: Context = ORDINARY,
    data_keys: DataKeys = dict,
    ordered: frozenset[str] = frozenset(),
) -> ArgumentLayout:
    """The layout of a complete set of arguments, or of a single value under any name.

    Args:
        nodes: by the names of the arguments.
        positional: how many of the leading ones were passed by position.
        renamed, context, ordered: as for :func:`layout_of_inputs`.
        data_keys: as :attr:`Signature.data_keys`.
    """
    walk = _Walk(renamed, data_keys, ordered)
    keys: list[tuple[str, Hashable]] = []
    nodes_by_name: dict[str, Node] = {}
    for name, node in nodes.items():
        walk.argument, walk.is_public = name, is_public(name)
        nodes_by_name[name], key = walk.visit(node, "")
        keys.append((name, key))
    keys += context.key
    tensors, scalars = tuple(walk.tensors), tuple(walk.scalars)
    return ArgumentLayout(
        tuple(keys), nodes_by_name, tensors, scalars, positional,
        context=context, ordered=ordered, unordered=tuple(walk.unordered),
    )  # fmt: skip


def _is_default(name: str, node: Node, scalars: Sequence[Any], signature: Signature) -> bool:
    parameter = signature.by_name.get(name)
    if parameter is None or not parameter.has_default or parameter.default_missing:
        return False
    if name in signature.varying and isinstance(node, ScalarNode):
        return False
    default = parameter.default
    if isinstance(node, NoneNode):
        return node.kind == "none" and default is None
    if isinstance(node, BoolNode):
        return default is node.value
    if isinstance(node, ScalarNode) and node.kind != "complex":
        value = scalars[node.scalar]
        return type(value) is type(default) and bool(value == default)
    return False


@dataclass
class _Walk:
    """One pass over the arguments, which numbers tensors and scalars anew and makes keys."""

    renamed: Renamed
    data_keys: DataKeys = dict
    ordered: frozenset[str] = frozenset()
    argument: str = ""
    is_public: bool = True
    tensors: list[LeafPath] = field(default_factory=list)
    scalars: list[LeafPath] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)

    def visit(
        self, node: Node, path: str, *, private: bool = False, owner: str | None = None
    ) -> tuple[Node, Hashable]:
        if isinstance(node, TensorNode):
            kind: Any = "tensor" if node.kind == "tensor" else "array"
            where = LeafPath(self.argument, path, kind, node.leaf, private, owner, self.is_public)
            self.tensors.append(where)
            return node.model_copy(update={"leaf": len(self.tensors) - 1}), kind
        if isinstance(node, ScalarNode):
            kind, number = node.kind, node.scalar
            where = LeafPath(self.argument, path, kind, number, private, owner, self.is_public)
            self.scalars.append(where)
            name = self.renamed(node.type) if node.type else None
            scalar = node.model_copy(update={"scalar": len(self.scalars) - 1, "type": name})
            return scalar, (node.kind, name) if str(where) in self.ordered else node.kind
        if isinstance(node, DictNode):
            lasting = self.data_keys().get(f"{self.argument}{path}")
            if lasting is not None:
                node = _without_data(node, lasting)
        if isinstance(node, SequenceNode | DictNode | FieldsNode | CustomNode):
            return self._container(node, path)
        if isinstance(node, OpaqueNode):
            # The length of a text that is not on the tape is neither a constant nor a scalar.
            return node.model_copy(update={"length": None}), _constant_key(node, self.renamed)
        return node, _constant_key(node, self.renamed)

    def _visit_child(self, child: Node, path: str, label: Any, **how: Any) -> tuple[Node, Hashable]:
        outer = self.is_public
        self.is_public = outer and is_public(str(label))
        child_node = self.visit(child, f"{path}.{label!s}", **how)
        self.is_public = outer
        return child_node

    def _container(self, node: Any, path: str) -> tuple[Node, Hashable]:
        name = self.renamed(node.type) if node.type else None
        update: dict[str, Any] = {"type": name}
        if isinstance(node, FieldsNode):
            container, keys = self._fields(node, path, name)
            update["children"] = container
            return node.model_copy(update=update), (node.kind, name, keys)
        if isinstance(node, DictNode):
            labels, children = _in_order(node)
            container, parts = self._children(children, path, labels)
            # Leaves are numbered in sorted order. The dict keeps its own order, which torch.export
            # requires of each call.
            by_label = dict(zip(typed_keys(labels), container, strict=True))
            update["children"] = tuple(by_label[label] for label in typed_keys(node.keys))
            modules = sorted(str(node.keys[i]) for i in node.modules or ())
            kind: Hashable = ("dict", *modules) if modules else "dict"
            if node.type is None and len(labels) > 1 and not modules:
                whole = f"{self.argument}{path}"
                if whole in self.ordered:
                    kind = "dict", typed_keys(node.keys)
                else:
                    self.unordered.append(whole)
            return node.model_copy(update=update), (kind, name, typed_keys(labels), parts)
        container, parts = self._children(node.children, path, range(len(node.children)))
        update["children"] = container
        if isinstance(node, CustomNode):
            update["context"], context = self.visit(node.context, f"{path}.context")
            return node.model_copy(update=update), ("custom", name, context, parts)
        return node.model_copy(update=update), (node.kind, name, parts)

    def _children(
        self, children: Sequence[Node], path: str, labels: Iterable[Any]
    ) -> tuple[tuple[Node, ...], Hashable]:
        visited = [
            self._visit_child(child, path, label)
            for label, child in zip(labels, children, strict=True)
        ]
        return tuple(node for node, _ in visited), tuple(key for _, key in visited)

    def _fields(
        self, node: FieldsNode, path: str, name: str | None
    ) -> tuple[tuple[Node, ...], Hashable]:
        nodes: dict[str, Node] = {}
        keys: list[Hashable] = []
        pairs = list(zip(node.fields, node.children, strict=True))
        if node.kind != "namedtuple":
            # The order in which attributes were set has no meaning.
            pairs.sort(key=lambda pair: repr(pair[0]))
        for label, child in pairs:
            private = node.kind == "object" and label.startswith("_")
            nodes[label], key = self._visit_child(child, path, label, private=private, owner=name)
            # Private flags of a library (transformers' _is_user_defined) have no meaning for a
            # program.
            if not (private and not children_of(child) and not isinstance(child, TensorNode)):
                keys.append((label, key))
        return tuple(nodes[label] for label in node.fields), tuple(keys)


def _in_order(node: DictNode) -> tuple[tuple[Any, ...], tuple[Node, ...]]:
    """Keys and children of a dict. They are sorted if it is a plain dict: calls that insert the
    same keys in different order have one structure."""
    pairs = list(zip(node.keys, node.children, strict=True))
    if node.type is None:
        pairs.sort(key=lambda pair: (type(pair[0]).__name__, repr(pair[0])))
    return tuple(key for key, _ in pairs), tuple(child for _, child in pairs)


def turned_around(layout: ArgumentLayout, paths: Collection[str]) -> ArgumentLayout:
    """A layout with the keys of some dicts in the opposite order, and with plain numbers instead of
    numpy's or the other way round. Leaves keep their numbers.

    Args:
        layout: of a call.
        paths: of :attr:`ArgumentLayout.unordered`, or of numbers.
    """
    nodes = {name: _turned(node, name, paths) for name, node in layout.nodes.items()}
    if VARIADIC in paths:
        names = list(nodes)
        names[layout.positional :] = reversed(names[layout.positional :])
        nodes = {name: nodes[name] for name in names}
    return replace(layout, nodes=nodes)


_OF_NUMPY = {"int": "numpy:int64", "float": "numpy:float64", "complex": "numpy:complex128"}


def _turned(node: Any, path: str, paths: Collection[str]) -> Any:
    if isinstance(node, ScalarNode) and path in paths:
        return node.model_copy(update={"type": None if node.type else _OF_NUMPY.get(node.kind)})
    children = tuple(
        _turned(child, f"{path}.{label!s}", paths) for label, child in named_children(node)
    )
    if not children:
        return node
    update: dict[str, Any] = {"children": children}
    if isinstance(node, DictNode) and path in paths:
        update = {"keys": node.keys[::-1], "children": children[::-1]}
    return node.model_copy(update=update)


def _without_data(node: DictNode, lasting: frozenset[Hashable]) -> Node:
    """A dict of which only the entries at lasting keys are described. One entry stands for all
    others, in calls that have none, too: they are calls of the same structure."""
    unnamed = OpaqueNode(kind="opaque", type=node.type or "builtins:dict", reason=DATA_KEYS)
    pairs = list(zip(typed_keys(node.keys), node.keys, node.children, strict=True))
    kept = {key: child for typed, key, child in pairs if typed in lasting}
    if not kept:
        return unnamed
    of_modules = [node.keys[i] for i in node.modules or ()]
    modules = tuple(i for i, key in enumerate(kept) if key in of_modules)
    return node.model_copy(
        update={
            "keys": (*kept, OTHER_KEYS),
            "children": (*kept.values(), unnamed),
            "modules": modules or None,
        }
    )


def _constant_key(node: Node, renamed: Renamed) -> Hashable:
    if isinstance(node, NoneNode):
        return node.kind
    if isinstance(node, BoolNode):
        return "true" if node.value else "false"
    if isinstance(node, ConstantNode):
        # A program may run on another device than the recorded one.
        return ("device",) if node.kind == "device" else (node.kind, node.name)
    if isinstance(node, EnumNode):
        return ("enum", renamed(node.type), node.name)
    if isinstance(node, ClassNode):
        return ("class", renamed(node.type))
    assert isinstance(node, OpaqueNode)
    return ("opaque", renamed(node.type))
