"""Arguments of a call that is being made, sorted like a recorded call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.layout import layout_of_inputs
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.description import describe_as_recorded
from calltape_analyzer.pytree.memory import Place, place_of
from calltape_schema.tree import Leaf, Node

__all__ = ["LiveCall", "facts_of_tensors"]


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
        tensors = described.tensors
        context = Context.now((str(one.device) for one in tensors), sorter.asked)
        layout = layout_of_inputs(
            root, described.scalars, sorter.signature, sorter.renamed, context, sorter.ordered
        )
        leaves, objects = facts_of_tensors(tensors), list(map(id, tensors))
        self.placed: SortedCall = sorter.placed(layout, leaves, described.scalars, objects)
        self.sample = Sample(
            [tensors[place.number] for place in layout.tensors],
            layout.scalars_of(described.scalars),
        )


def facts_of_tensors(tensors: Sequence[Any]) -> list[Leaf]:
    """The facts of live tensors by which calls are sorted, as a tape would have them."""
    import torch

    memories: dict[Any, list[int]] = {}
    places: dict[int, Place] = {}
    for i, tensor in enumerate(tensors):
        if tensor.layout is torch.strided and tensor.device.type != "meta":
            with suppress(RuntimeError, NotImplementedError):  # a subclass without memory
                memory = tensor.device, tensor.untyped_storage()._cdata
                places[i] = place_of(tensor)
                memories.setdefault(memory, []).append(i)
    shared: dict[int, tuple[int, int]] = {}
    for number, members in enumerate(memories.values()):
        if len(members) > 1:
            begin = min(places[i].offset for i in members)
            shared |= {i: (number, places[i].offset - begin) for i in members}
    found: list[Leaf] = []
    for i, tensor in enumerate(tensors):
        storage, offset = shared.get(i, (None, 0))
        is_plain = i not in places or tensor.is_contiguous()
        found.append(
            Leaf.model_construct(
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(int(size) for size in tensor.shape),
                layout=str(tensor.layout).removeprefix("torch."),
                strides=None if is_plain else places[i].strides,
                storage=storage,
                offset=offset,
            )
        )
    return found
