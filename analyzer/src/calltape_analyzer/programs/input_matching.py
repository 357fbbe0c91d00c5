"""Which value of a call is which input of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from calltape_analyzer.arguments.plan import identifier
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.layout import ArgumentLayout

__all__ = ["CallValue", "match_inputs", "values_of_layout"]


class CallValue(NamedTuple):
    """A tensor or an int of a call: its argument, the path below it, and its number among the
    tensors or the scalars."""

    argument: str
    path: str
    kind: Literal["tensor", "int"]
    number: int


def values_of_layout(layout: ArgumentLayout) -> list[CallValue]:
    """The tensors of a layout, and then its ints."""
    found = [CallValue(p.argument, p.path, "tensor", i) for i, p in enumerate(layout.tensors)]
    return found + [
        CallValue(path.argument, path.path, "int", i)
        for i, path in zip(layout.int_scalars, layout.ints, strict=True)
    ]


def match_inputs(names: Sequence[str], values: Iterable[CallValue]) -> dict[str, CallValue]:
    """The value of a call for each input of a model.

    By name if the names tell it (``past_key_values_layers_0_keys``, or an argument and the number
    of the value in it), because an exporter leaves out what the program does not use; otherwise by
    order, if there are as many tensors as inputs.

    Raises:
        InferenceError: neither is possible.
    """
    known: dict[str, CallValue] = {}
    counts: Counter[str] = Counter()
    tensors: list[CallValue] = []
    for value in values:
        argument, number = identifier(value.argument), counts[value.argument]
        counts[value.argument] += 1
        for name in (identifier(f"{value.argument}{value.path}"), f"{argument}_{number}"):
            known.setdefault(name, value)
        if value.kind == "tensor":
            tensors.append(value)
    # The exporter adds _orig to the name of an input that is also a value within the graph.
    found = {name: known.get(name) or known.get(name.removesuffix("_orig")) for name in names}
    missing = [name for name, value in found.items() if value is None]
    if not missing:
        return {name: value for name, value in found.items() if value is not None}
    if len(names) != len(tensors):
        raise InferenceError(
            f"the model's inputs {', '.join(missing[:5])} are not in the call, which has "
            f"{len(tensors)} tensors for {len(names)} inputs",
            advice="export with the arguments and shapes of these calls",
        )
    return dict(zip(names, tensors, strict=True))
