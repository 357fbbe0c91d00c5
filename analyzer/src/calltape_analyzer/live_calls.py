"""Arguments that were just given, in the form of recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calltape_analyzer.describing import describe
from calltape_analyzer.gathering import Gatherer, Sorted
from calltape_analyzer.layout import layout_of_inputs
from calltape_analyzer.samples import Sample
from calltape_schema.leaves import Leaf
from calltape_schema.tree import Node

__all__ = ["LiveCall"]


class LiveCall:
    """Arguments that were just given, sorted like a recorded call."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], gatherer: Gatherer
    ) -> None:
        described = describe((tuple(args), dict(kwargs)), as_recorded=True)
        root: Node = described.node
        layout = layout_of_inputs(root, described.scalars, gatherer.signature, gatherer.renamed)
        leaves = [_facts_of(tensor) for tensor in described.tensors]
        self.placed: Sorted = gatherer.placed(layout, leaves, described.scalars)
        self.sample = Sample(
            [described.tensors[place.number] for place in layout.tensors],
            [described.scalars[place.number] for place in layout.scalars],
        )


def _facts_of(tensor: Any) -> Leaf:
    return Leaf.model_construct(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(int(size) for size in tensor.shape),
        layout=str(tensor.layout).removeprefix("torch."),
    )
