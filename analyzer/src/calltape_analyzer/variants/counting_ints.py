"""The ints of a cache that count a dimension of a tensor beside them, such as the tokens so far."""

from __future__ import annotations

from calltape_analyzer.observing.columns import Column
from calltape_analyzer.observing.groups import Group
from calltape_analyzer.pytree.caches import counted_size

__all__ = ["counting_ints_of"]


def counting_ints_of(group: Group) -> dict[Column, Column]:
    """The ints of cache layers that count a dimension, each with that dimension."""
    layout = group.layout
    tensors = {(path.argument, path.path): i for i, path in enumerate(layout.tensors)}
    found: dict[Column, Column] = {}
    for column, path in zip(layout.int_columns, layout.ints, strict=True):
        counted = counted_size(path.path)
        if path.owner is None or counted is None:
            continue
        beside, axis = counted
        tensor = tensors.get((path.argument, beside))
        if tensor is not None and group.facts[tensor].rank >= 2:
            found[column] = group.dimensions(tensor)[axis]
    return found
