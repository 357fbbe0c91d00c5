"""Large tensors with the same values: a tape has them once."""

from __future__ import annotations

from collections.abc import Iterator

from calltape_analyzer.minimising.changed_calls import ChangedCall
from calltape_analyzer.minimising.search import Search
from calltape_analyzer.reading.call import Call
from calltape_schema.tree import Leaf

__all__ = ["share_values"]

_LEAST_BYTES = 512
"""A tape is made of blocks of so many bytes: less saves nothing."""


def share_values(search: Search) -> None:
    """Gives large arguments of a call the values of an earlier argument of the same dtype and
    shape, where the failure allows it."""
    for at in range(len(search.tape.calls)):
        for leaf, other in list(_pairs(search.tape.calls[at])):
            made = list(search.tape.calls)
            changed = ChangedCall(made[at])
            changed.share(leaf, other)
            built = changed.built()
            calls = [built if i == at else call for i, call in enumerate(made)]
            search.keeps(f"{changed.call.record.inputs.facts()[leaf].key}: as another one", calls)


def _pairs(call: Call) -> Iterator[tuple[int, int]]:
    """Each leaf that may have the values of an earlier one, with the first such one."""
    first: dict[object, int] = {}
    for place, leaf in enumerate(call.record.inputs.facts()):
        if leaf.key is None or len(call.stored("inputs", place) or b"") < _LEAST_BYTES:
            continue
        other = first.setdefault(_form(leaf), place)
        if other != place and call.record.inputs.facts()[other].key != leaf.key:
            yield place, other


def _form(leaf: Leaf) -> object:
    """What leaves have in common whose bytes mean the same."""
    return leaf.dtype, leaf.shape, leaf.strides, leaf.expanded, repr(leaf.quantizer), leaf.layout
