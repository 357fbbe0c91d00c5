"""Arguments of a call that is being made, sorted like a recorded call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.layout import layout_of_inputs
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.recorded_description import describe_as_recorded
from calltape_schema.leaves import Leaf
from calltape_schema.tree import Node

__all__ = ["LiveCall"]


class LiveCall:
    """Arguments of a call that is being made, not read from a tape.

    Attributes:
        placed: the arguments as a sorted call.
        sample: their values, in the order of its layout.
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], sorter: CallSorter
    ) -> None:
        described = describe_as_recorded((tuple(args), dict(kwargs)), sorter.module_names)
        root: Node = described.node
        layout = layout_of_inputs(root, described.scalars, sorter.signature, sorter.renamed)
        leaves = [_facts_of(tensor) for tensor in described.tensors]
        self.placed: SortedCall = sorter.placed(layout, leaves, described.scalars)
        self.sample = Sample(
            [described.tensors[place.number] for place in layout.tensors],
            layout.scalars_of(described.scalars),
        )


def _facts_of(tensor: Any) -> Leaf:
    return Leaf.model_construct(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(int(size) for size in tensor.shape),
        layout=str(tensor.layout).removeprefix("torch."),
    )
