"""The arguments of a recorded call in full, so that a model can be called with them.

In comes a call. Out go its arguments; values that the tape does not have (a recording of shapes, a
redacted tape) are made up: tensors within their recorded range, texts of their recorded length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from calltape_analyzer.arguments.new_tensors import fit_offsets, made_up_leaf
from calltape_analyzer.limits import check_memory, memory_limit_of
from calltape_analyzer.observing.tallies import Span
from calltape_analyzer.pytree.memory import contiguous, on_device, place_together
from calltape_analyzer.pytree.nodes import nested_places, with_children
from calltape_analyzer.pytree.tensors import has_flags, with_flags
from calltape_analyzer.reading.call import Call
from calltape_schema.tree import Leaf, Node, OpaqueNode, ScalarNode, walk

__all__ = ["CompleteInputs", "complete_inputs", "has_made_up"]

_STAND_INS: dict[str, Any] = {"int": 1, "float": 1.0, "complex": (1.0, 0.0)}


class CompleteInputs(NamedTuple):
    """Arguments to call a model with.

    Attributes:
        args, kwargs: as they were passed.
        made_up: how many of their values are not the recorded ones.
        laid_out: how many of their tensors were made contiguous.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made_up: int
    laid_out: int = 0


def complete_inputs(
    call: Call, device: Any = "cpu", *, are_contiguous: bool = False
) -> CompleteInputs:
    """The arguments of a call, made anew each time.

    Args:
        call: any call.
        device: where its tensors go, as :meth:`Call.inputs_on` says.
        are_contiguous: whether tensors are contiguous, however they lay in memory.

    Raises:
        TapeError: as :attr:`Call.inputs`; ``limit`` if the values that are not on the tape would
            take too much memory.
        InferenceError: torch has no such tensor, or nobody can tell the sizes of one.
    """
    tree = call.record.inputs
    missing = _missing_tensors(call, tree.facts())
    texts = _Texts(list(tree.scalars), memory_limit_of(call.tape_bytes))
    root = texts.with_stand_ins(tree.spec().root)
    is_flagged = any(map(has_flags, tree.facts()))
    if not missing and not texts.made_up and not are_contiguous and not is_flagged:
        return CompleteInputs(*call.inputs_on(device), 0)
    shapes = [(tuple(t.shape), t.dtype.itemsize) for t in missing.values()]
    check_memory(memory_limit_of(call.tape_bytes), shapes, "the arguments of one call")
    spans = {found.leaf: Span(found.min, found.max) for found in tree.ranges}
    facts = tree.facts()
    are_mixed = any(one.device != "cpu" for one in facts)
    tensors = {leaf: call.tensor("inputs", leaf) for leaf in range(len(facts))}
    for leaf, shell in missing.items():
        tensors[leaf] = made_up_leaf(facts[leaf], shell.dtype, spans.get(leaf), str(leaf))
    fit_offsets([node for node, _ in nested_places(root)], tensors, texts.scalars)
    place_together(facts, tensors, missing)
    moved = [leaf for leaf, one in enumerate(facts) if _moves(tensors[leaf], one, are_mixed)]
    tensors = on_device(tensors, moved, device)
    spread: list[int] = []
    if are_contiguous:
        # The tape has one element of an expanded axis, however long it is.
        spread = [i for i, tensor in tensors.items() if _is_spread(tensor)]
        shapes = [(facts[i].shape, tensors[i].dtype.itemsize) for i in spread]
        check_memory(memory_limit_of(call.tape_bytes), shapes, "contiguous arguments of one call")
        tensors |= {i: contiguous(tensors[i]) for i in spread}
    if not are_contiguous:
        tensors = {leaf: with_flags(tensor, facts[leaf]) for leaf, tensor in tensors.items()}
    args, kwargs = call.build("inputs", root, tensors, texts.scalars)
    return CompleteInputs(args, kwargs, len(missing) + texts.made_up, len(spread))


def has_made_up(call: Call) -> bool:
    """Whether the tape lacks the value of an argument, so that it is made up. A tensor that was on
    the meta device when the model was called never had one."""
    tree = call.record.inputs
    if any(leaf.key is None and leaf.device != "meta" for leaf in tree.facts()):
        return True
    nodes = walk(tree.spec().root)
    return any(isinstance(node, OpaqueNode) and node.of is not None for node in nodes)


def _missing_tensors(call: Call, facts: tuple[Leaf, ...]) -> dict[int, Any]:
    """The leaves without a value, as meta tensors. A tensor that was on the meta device when the
    model was called never had one."""
    import torch

    shells = {i: call.tensor("inputs", i) for i, leaf in enumerate(facts) if leaf.key is None}
    return {
        i: shell
        for i, shell in shells.items()
        if isinstance(shell, torch.Tensor) and facts[i].device != "meta"
    }


def _is_spread(value: Any) -> bool:
    import torch

    is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return is_strided and not value.is_contiguous()


def _moves(value: Any, facts: Leaf, are_mixed: bool) -> bool:
    import torch

    stays = facts.device == "cpu" and are_mixed
    return not stays and isinstance(value, torch.Tensor) and value.device.type != "meta"


class _Texts:
    """Stand-ins for scalars whose values the policy kept off the tape."""

    def __init__(self, scalars: list[Any], limit: int) -> None:
        self.scalars = scalars
        self.made_up = 0
        self._room = limit

    def with_stand_ins(self, node: Node) -> Node:
        """The node with a scalar in place of each that is not on the tape."""
        if isinstance(node, OpaqueNode):
            return node if node.of is None else self._stand_in(node)
        return with_children(node, self.with_stand_ins)

    def _stand_in(self, node: OpaqueNode) -> Node:
        assert node.of is not None
        length = 1 if node.length is None else self.scalars[node.length]
        if node.of in ("str", "bytes"):
            length = length if type(length) is int and length >= 0 else 1
            check_memory(self._room, [((length,), 1)], "a text that is not on the tape")
            self._room -= length
            value: Any = "x" * length if node.of == "str" else b"x" * length
        else:
            value = _STAND_INS[node.of]
        self.scalars.append(value)
        self.made_up += 1
        return ScalarNode.model_construct(kind=node.of, scalar=len(self.scalars) - 1, type=None)
