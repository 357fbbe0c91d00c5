"""What no trace can take, so that nobody waits for one: nested tensors, sparse ones, dicts by data.

torch.export (2.15) fails on a nested tensor, as an argument and where the model makes one; with
``strict=True`` it makes a program of one that can be neither run nor saved. Of a sparse tensor the
tape has no values. In come a variant and its first call. Out goes what it has.
"""

from __future__ import annotations

from calltape_analyzer.programs.reasons import Untraceable, UntraceableKind
from calltape_analyzer.pytree.nodes import nested_places
from calltape_analyzer.pytree.placeholder import has_data_keys
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["why_untraceable"]


_STORED = ("strided", "jagged")
"""The layouts whose values a tape has."""


def why_untraceable(variant: VariantFacts, call: Call) -> Untraceable | None:
    """Why torch.export can make no program of a variant; None if it may.

    Args:
        variant: what is to be exported.
        call: the first call of the variant.
    """
    by_data = [
        str(name) for name, root in variant.group.layout.nodes.items() if has_data_keys(root)
    ]
    if by_data:
        return Untraceable(UntraceableKind.DATA_KEYS, tuple(by_data))
    group = variant.group
    layouts = {
        str(place): facts.layout
        for place, facts in zip(group.layout.tensors, group.facts, strict=True)
    }
    passed = [path for _, path in group.layout.nested_places]
    passed += [path for path, layout in layouts.items() if layout == "nested"]
    if passed:
        return Untraceable(UntraceableKind.NESTED, tuple(passed))
    sparse = {path: layout for path, layout in layouts.items() if layout not in _STORED}
    if sparse:
        layouts_of = tuple(sorted(set(sparse.values())))
        return Untraceable(UntraceableKind.SPARSE, tuple(sparse), layouts_of)
    outputs = call.record.outputs
    places = () if outputs is None else nested_places(outputs.spec().root, "outputs")
    made = [path for _, path in places]
    if made:
        return Untraceable(UntraceableKind.RETURNS_NESTED, tuple(made))
    return None
