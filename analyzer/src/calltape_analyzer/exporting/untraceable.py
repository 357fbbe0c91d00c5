"""What no trace can take, so that nobody waits for one: nested tensors, sparse ones, dicts by data.

torch.export (2.15) fails on a nested tensor, as an argument and where the model makes one; with
``strict=True`` it makes a program of one that can be neither run nor saved. Of a sparse tensor the
tape has no values. In come a variant and its first call. Out goes a sentence that says what to do.
"""

from __future__ import annotations

from calltape_analyzer.pytree.nested_tensors import nested_places
from calltape_analyzer.pytree.placeholder import has_data_keys
from calltape_analyzer.reading.call import Call
from calltape_analyzer.text import listed, printable
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["why_untraceable"]


_STORED = ("strided", "jagged")
"""The layouts whose values a tape has."""


def why_untraceable(variant: VariantFacts, call: Call) -> str | None:
    """Why torch.export can make no program of a variant, and what to do; None if it may.

    Args:
        variant: what is to be exported.
        call: the first call of the variant.
    """
    by_data = [
        str(name) for name, root in variant.group.layout.nodes.items() if has_data_keys(root)
    ]
    if by_data:
        return (
            f"{printable(listed(by_data))} has a dict whose keys do not come back from call to "
            "call: they are data, as ids of requests are, and torch.export takes keys for "
            "structure. A program would take the calls of one set of keys only: give the model a "
            "forward that takes what stands in the dict as lists or tensors, and record that"
        )
    group = variant.group
    layouts = {
        str(place): facts.layout
        for place, facts in zip(group.layout.tensors, group.facts, strict=True)
    }
    passed = [path for _, path in group.layout.nested_places]
    passed += [path for path, layout in layouts.items() if layout == "nested"]
    if passed:
        are = "is a nested tensor" if len(passed) == 1 else "are nested tensors"
        return (
            f"{printable(listed(passed))} {are}, and torch.export makes no program that takes one "
            "and can be run: give the model a forward that takes the values and the offsets and "
            "computes on them, or padded tensors with a mask, and record that"
        )
    sparse = {path: layout for path, layout in layouts.items() if layout not in _STORED}
    if sparse:
        named = listed(sorted(set(sparse.values())))
        return (
            f"{printable(listed(list(sparse)))} of layout {printable(named)} has no values on a "
            "tape, so that no program could be compared: call the model with a dense tensor, or "
            "with the indices and the values, and record that"
        )
    outputs = call.record.outputs
    places = () if outputs is None else nested_places(outputs.spec().root, "outputs")
    made = [path for _, path in places]
    if made:
        return (
            f"the model returns a nested tensor ({printable(listed(made))}), and "
            "torch.export makes no program that makes one: compute on values and offsets, or on "
            "padded tensors with a mask, return these, and record that"
        )
    return None
