"""The cache classes that calltape knows, and what their attributes mean.

To support a new cache class, change only this file: add its name, and the names of its attributes
that count something. The recorder reads the names, and describes a cache by its attributes. The
rules of the analyzer (``calltape_analyzer/pytree/caches.py``) use all of it. No name here causes an
import.
"""

from __future__ import annotations

from calltape_schema.objects import module_of, mro_of, name_of

CACHE_ENDING = "Cache"
"""A class is a cache if its name, or that of a base class, ends like this."""

LAYER_ENDING = "Layer"
"""If only the name of a class is known, it may be a layer of a cache if the name ends like this."""

CACHES: dict[str, str] = {"Cache": "transformers.cache_utils"}
"""Base classes of caches: class name to module. Their subclasses are caches too. The analyzer
registers all of them with torch's pytree, if the module is loaded."""

LAYERS: dict[str, str] = {
    "CacheLayerMixin": "transformers.cache_utils",
    "DummyLayer": "transformers.cache_utils",
    "LinearAttentionCacheLayerMixin": "transformers.cache_utils",
    "LinearAttentionLayer": "transformers.cache_utils",
}
"""Base classes of a cache's layers: class name to module."""

LIBRARIES: frozenset[str] = frozenset({"transformers"})
"""Libraries with many more classes of layers. Any object of theirs that is not a dataclass counts
as a part of a cache."""

LAYERS_ATTRIBUTE = "layers"
"""The attribute of a cache that lists its layers. A cache without layers is empty."""

PARTS: tuple[str, ...] = ("self_attention_cache", "cross_attention_cache")
"""Attributes of a cache that are caches. The whole is as long as the first of them."""

COUNTERS: dict[str, tuple[str, int]] = {
    "cumulative_length": ("keys", -2),
    "batch_size": ("keys", 0),
    "max_batch_size": ("keys", 0),
}
"""Ints that are the size of a tensor of the same object: the tensor's attribute, and the axis. If
the window of a layer is full, it has counted more tokens than it keeps, and the int is not that
size."""

WINDOW_ATTRIBUTE = "sliding_window"
"""The attribute of a cache layer with the length of its sliding window."""

DERIVED: dict[str, str] = {"_sliding_window_tensor": WINDOW_ATTRIBUTE}
"""Private tensors that are derived from another attribute of the same object, with that
attribute."""

ARGUMENT_WORDS: tuple[str, ...] = ("past", "cache")
"""An argument whose name contains one of these is state that a model keeps between calls, whatever
its class."""


def is_cache(cls: type) -> bool:
    """Whether a class is a cache or a layer of one, so that its attributes are all of its state.

    Only names are compared. Whether torch's pytree has a registration for the class makes no
    difference: a tape must not depend on what was registered in the server.
    """
    for base in mro_of(cls):
        name = name_of(base)
        if name.endswith(CACHE_ENDING):
            return True
        module = LAYERS.get(name) or CACHES.get(name)
        if module is not None and _library(module_of(base)) == _library(module):
            return True
    return False


def _library(module: str) -> str:
    return module.partition(".")[0]
