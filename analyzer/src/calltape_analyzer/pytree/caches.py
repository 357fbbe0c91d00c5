"""Every rule about caches: which values and arguments are one, which of their ints count tokens,
and when one is empty.

The rules read the tables of :mod:`calltape_schema.cache_classes`, which the recorder reads too. To
teach a new cache class, add it to those tables; nothing has to be changed here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from calltape_schema.cache_classes import (
    ARGUMENT_WORDS,
    CACHE_ENDING,
    CACHES,
    COUNTERS,
    DERIVED,
    LAYER_ENDING,
    LAYERS,
    LAYERS_ATTRIBUTE,
    LIBRARIES,
    PARTS,
    WINDOW_ATTRIBUTE,
    is_cache,
)
from calltape_schema.tree import FieldsNode, Node, TensorNode, children_of

__all__ = [
    "counted_size",
    "has_cache_word",
    "has_known_state",
    "holds_cache",
    "is_cache_argument",
    "is_cache_name",
    "is_cache_part",
    "is_cache_value",
    "is_layer_name",
    "is_of_cache_library",
    "is_same_size",
    "length_part",
    "loaded_cache_classes",
    "set_token_counters",
    "source_of_derived",
    "window_leaves",
    "with_subclasses",
]

# Which values are caches.


def is_cache_name(type_name: str) -> bool:
    """Whether a class name of a tape (``module:qualname``) is that of a cache. A tape does not name
    the base classes, so that a subclass with a name of its own is not found."""
    return type_name.endswith(CACHE_ENDING) or _is_listed(type_name, CACHES)


def is_layer_name(type_name: str) -> bool:
    """Whether a class name is that of a layer of a cache, as far as a name can tell."""
    return type_name.endswith(LAYER_ENDING) or _is_listed(type_name, LAYERS)


def is_cache_value(value: Any) -> bool:
    """Whether an object is a cache whose state is in its attributes."""
    cls = type(value)
    return hasattr(value, "__dict__") and is_cache_name(f"{cls.__module__}:{cls.__qualname__}")


def is_cache_part(node: FieldsNode) -> bool:
    """Whether a node describes a cache or a part of one. A library keeps flags and private
    attributes there, which are no values of a result."""
    if node.kind != "object":
        return False
    is_known = is_cache_name(node.type) or _is_listed(node.type, LAYERS)
    return is_known or node.type.partition(".")[0] in LIBRARIES


def has_known_state(cls: type) -> bool:
    """Whether a class is a cache, or a layer of one, of a library that the tables name: then all
    its state is in attributes, and an instance may be made by setting them."""
    return is_of_cache_library(cls.__module__) and is_cache(cls)


def is_of_cache_library(module: str) -> bool:
    """Whether a module belongs to a library that the tables name."""
    packages = (home.partition(".")[0] for home in (*CACHES.values(), *LAYERS.values()))
    return module.partition(".")[0] in packages


def loaded_cache_classes() -> list[type]:
    """The base classes of caches that this process has loaded, and all their subclasses."""
    bases = [vars(sys.modules[m]).get(n) for n, m in CACHES.items() if m in sys.modules]
    return with_subclasses(base for base in bases if isinstance(base, type))


def with_subclasses(bases: Iterable[type]) -> list[type]:
    """Classes, and all classes below them that this process has loaded."""
    waiting = list(bases)
    classes: list[type] = []
    while waiting:
        cls = waiting.pop()
        classes.append(cls)
        waiting += cls.__subclasses__()
    return list(dict.fromkeys(classes))


def _is_listed(type_name: str, classes: dict[str, str]) -> bool:
    module, _, qualname = type_name.partition(":")
    home = classes.get(qualname.rpartition(".")[2])
    return home is not None and module.partition(".")[0] == home.partition(".")[0]


# Which arguments are what a model keeps between calls.


def is_cache_argument(name: str, node: Node) -> bool:
    """Whether an argument is what a model keeps between calls, by its class or by its name."""
    return (isinstance(node, FieldsNode) and is_cache_name(node.type)) or has_cache_word(name)


def holds_cache(name: str, node: Node) -> bool:
    """Whether an argument is a cache, or an object with a cache among its attributes. Such an
    object may have other parts too: then it is no :func:`is_cache_argument`."""
    if isinstance(node, FieldsNode):
        return is_cache_name(node.type) or any(holds_cache(name, c) for c in children_of(node))
    return has_cache_word(name)


def has_cache_word(name: str) -> bool:
    """Whether the name of an argument says that a model keeps it between calls."""
    return any(word in name for word in ARGUMENT_WORDS)


# What the attributes of caches mean.


def length_part(node: FieldsNode) -> Node | None:
    """The part of a cache that is as long as the whole: its layers, or the first of its caches.
    None for any other object."""
    parts = dict(zip(node.fields, node.children, strict=True))
    layers: Node | None = parts.get(LAYERS_ATTRIBUTE)
    return parts.get(PARTS[0]) if layers is None else layers


def counted_size(path: str) -> tuple[str, int] | None:
    """What an int of a cache counts: the path of the tensor beside it, and the axis (below 0 from
    the end). None if the attribute at this path is no counter."""
    owner, _, attribute = path.rpartition(".")
    counter = COUNTERS.get(attribute)
    return None if counter is None else (f"{owner}.{counter[0]}", counter[1])


def source_of_derived(path: str) -> str | None:
    """The path of the attribute that the private tensor at this path follows from, if any."""
    owner, _, attribute = path.rpartition(".")
    source = DERIVED.get(attribute)
    return None if source is None else f"{owner}.{source}"


def is_same_size(first: Any, second: Any) -> bool:
    """Whether two sizes are equal. While tracing, sizes count as equal only if that is known
    without a new condition in the program."""
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(first == second))


def set_token_counters(cache: Any) -> None:
    """Sets the token counters of a cache that was filled to the tokens that it was filled with.

    Such a cache has the other state of the call that it was rebuilt from, and a sliding-window
    layer masks by its counter. A counter beside a full window stays: it counts more tokens than
    the window has.
    """
    window = getattr(cache, WINDOW_ATTRIBUTE, None)
    most = window - 2 if isinstance(window, int) else 0
    for attribute, (tensor, axis) in COUNTERS.items():
        shape: tuple[int, ...] = getattr(getattr(cache, tensor, None), "shape", ())
        is_counting = axis != 0 and type(getattr(cache, attribute, None)) is int
        if is_counting and len(shape) > 1 and shape[axis] <= most:
            setattr(cache, attribute, shape[axis])
    layers = getattr(cache, LAYERS_ATTRIBUTE, ())
    for layer in layers if isinstance(layers, list | tuple) else ():
        set_token_counters(layer)
    for part in PARTS:
        if hasattr(cache, part):
            set_token_counters(getattr(cache, part))


def window_leaves(node: Node) -> set[int]:
    """The numbers of the tensors in all layers that have a sliding window."""
    if isinstance(node, FieldsNode) and WINDOW_ATTRIBUTE in node.fields:
        return {child.leaf for child in node.children if isinstance(child, TensorNode)}
    return {leaf for child in children_of(node) for leaf in window_leaves(child)}
