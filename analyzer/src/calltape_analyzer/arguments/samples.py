"""The values of a call, in the order of a layout: recorded, being passed, or with other sizes.

Takes a call and a variant; returns a :class:`Sample`; or, of a call alone, its arguments as they
were passed. Values that are not on the tape (a recording of shapes, a redacted tape) are made up:
tensors within their recorded range, texts of their recorded length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from calltape_analyzer.arguments.synthetic_values import synthetic_leaf, tiled
from calltape_analyzer.arguments.value_rules import ValueRule, fit_offsets
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.limits import check_memory, memory_limit_of
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.groups import Completion, GroupKey, SortedCall
from calltape_analyzer.observing.layout import LeafPath, layout_of_inputs
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import SizeRow, Span
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.description import describe_as_recorded
from calltape_analyzer.pytree.memory import (
    contiguous,
    copies,
    is_apart,
    on_device,
    place_together,
    relaid_together,
)
from calltape_analyzer.pytree.nodes import nested_places, with_children
from calltape_analyzer.pytree.placeholder import Placeholder, without_argument
from calltape_analyzer.pytree.tensors import (
    dtype_of,
    facts_of_tensors,
    has_flags,
    with_flags,
    zeros,
)
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.records import Tree
from calltape_schema.tree import Node, OpaqueNode, ScalarNode, walk

__all__ = [
    "CompleteInputs",
    "LiveCall",
    "Sample",
    "complete_inputs",
    "completed",
    "has_synthetic_values",
    "in_variant",
    "nudged",
    "recorded_sample",
    "resized",
    "resized_row",
    "sample_in",
]

_MIXING, _SHIFT = 2_654_435_761, 13
"""Of a multiplicative hash (Knuth, The Art of Computer Programming, volume 3, 6.4)."""


@dataclass
class Sample:
    """The tensors and scalars of one call, in the order of a layout.

    ``room`` is how many bytes may be made that are not on the tape; None for the arguments of a
    call that is being made, which have no limit.
    """

    tensors: list[Any]
    scalars: list[Any]
    room: int | None = None

    def cloned(self) -> Sample:
        """The same values in new tensors, which lie in memory as these do: with their strides, and
        in one memory where these share it. An export leaves marks on its inputs (rule 12 of
        docs/decisions/export-strategies.md), and a model may write to them.

        Raises:
            TapeError: ``limit`` if that takes more memory than there is room for.
            InferenceError: torch cannot copy one.
        """
        self._check_room()
        return Sample(copies(self.tensors), [*self.scalars], self.room)

    def contiguous(self) -> Sample:
        """The same values in contiguous tensors; those that already are contiguous are not copied.
        A tensor object that occurs twice stays one object."""
        self._check_room()
        tensor_by_id = {id(t): t for t in self.tensors}
        contiguous_by_id = {
            i: t if t.is_contiguous() else contiguous(t) for i, t in tensor_by_id.items()
        }
        return Sample(
            [contiguous_by_id[id(t)] for t in self.tensors], list(self.scalars), self.room
        )

    def _check_room(self) -> None:
        check_tensors(self.room, self.tensors, [tuple(tensor.shape) for tensor in self.tensors])


def check_tensors(
    room: int | None, tensors: Sequence[Any], shapes: Sequence[Sequence[int]]
) -> None:
    """Refuses tensors that would take more memory than there is room for, in these shapes.

    Raises:
        TapeError: ``limit``.
    """
    sizes = [(shape, tensor.dtype.itemsize) for tensor, shape in zip(tensors, shapes, strict=True)]
    check_memory(room, sizes, "the values of one call")


def recorded_sample(call: Call, sorter: CallSorter, device: Any = None) -> Sample:
    """The values of the arguments of a call.

    Args:
        call: any call.
        sorter: lays the call out.
        device: moves the tensors there; the CPU by default.

    Raises:
        TapeError: the tensors cannot be read.
        InferenceError: a tensor is of a kind that was not recorded.
    """
    import torch

    tree = call.record.inputs
    placed = sorter.sorted(tree)
    room = memory_limit_of(call.tape_bytes)
    places = placed.layout.tensors
    # One object that is passed twice is one leaf, and one object again.
    read = {place.number: _read(call, place, sorter.signature) for place in places}
    lacking = {
        place.number: str(place) for place in places if read[place.number].device.type == "meta"
    }
    _fill_in(tree, read, lacking, room)
    scalars = placed.layout.scalars_of(tree.scalars)
    with_grad = {place.number for place in places if str(place) in sorter.grad_paths}
    tensors_by_leaf = {leaf: t if leaf in with_grad else t.detach() for leaf, t in read.items()}
    tensors = [tensors_by_leaf[place.number] for place in places]
    if sorter.ignored_sharing:
        apart = {place for _, place in sorter.ignored_sharing}
        pairs = zip(tensors, places, strict=True)
        tensors = [copies([one])[0] if str(place) in apart else one for one, place in pairs]
    if lacking:
        fit_offsets(placed.layout.nested, tensors, scalars)
    if device is not None and torch.device(device).type != "cpu":
        tensors = copies(tensors, device)
    return Sample(tensors, scalars, room)


def _fill_in(
    tree: Tree, tensors: dict[int, Any], lacking: Mapping[int, str], room: int | None
) -> None:
    """Makes up the values of tensors within their recorded range.

    Args:
        tree: the inputs of a call.
        tensors: by their number in it, on the meta device those that lack values; changed in place.
        lacking: the numbers of these, each with a text. Another text gives other values.
        room: how many bytes may be made.
    """
    facts = tree.facts()
    spans = {range_.leaf: Span(range_.min, range_.max) for range_ in tree.ranges}
    check_tensors(room, [tensors[i] for i in lacking], [facts[i].shape for i in lacking])
    for leaf, seed in lacking.items():
        dtype = tensors[leaf].dtype
        tensors[leaf] = synthetic_leaf(facts[leaf], dtype, spans.get(leaf), seed)
    place_together(facts, tensors, lacking)


def sample_in(variant: VariantFacts, call: Call, sorter: CallSorter, device: Any = None) -> Sample:
    """The values of a call in the layout of a variant. A merged variant may have more tensors and
    scalars than the call: these are added.

    Raises:
        InferenceError: the call has another structure than the variant.
    """
    sample = recorded_sample(call, sorter, device)
    placed = sorter.sorted(call.record.inputs)
    return in_variant(variant, sample, placed.key, placed.row, device)


def in_variant(
    variant: VariantFacts, sample: Sample, key: GroupKey, row: SizeRow, device: Any = None
) -> Sample:
    """A sample of any group that a variant takes, in the variant's layout.

    Args:
        variant: the variant.
        sample, key, row: values, group and sizes of a call.
        device: where tensors are made that the call lacks; the CPU by default.

    Raises:
        InferenceError: the variant takes no calls of the group.
    """
    if variant.group.key.covers(key):
        return sample
    completion = variant.completion_of(key)
    if completion is None:
        raise InferenceError("the call has another structure")
    return completed(sample, completion, row, device)


def completed(sample: Sample, completion: Completion, row: SizeRow, device: Any = None) -> Sample:
    """A sample with the tensors and scalars that it lacks; the tensors have size zero.

    Raises:
        TapeError: ``limit`` if that takes more memory than there is room for.
        InferenceError: torch cannot make one.
    """
    whole = completion.row(row)
    dtypes = {i: dtype_of(name) for i, name in completion.dtypes.items()}
    lacking = [(whole.shapes[i], dtypes[i].itemsize) for i in completion.missing]
    check_memory(sample.room, lacking, "what a call lacks")
    tensors: list[Any] = []
    for i, at in enumerate(completion.tensors):
        if at is not None:
            tensors.append(sample.tensors[at])
        else:
            tensors.append(zeros(whole.shapes[i], dtypes[i], device))
    scalars = [
        constant if number is None else sample.scalars[number]
        for number, constant in zip(completion.scalars, completion.constants, strict=True)
    ]
    for number, value in zip(completion.layout.int_scalars, whole.ints, strict=True):
        scalars[number] = value
    return Sample(tensors, scalars, sample.room)


def _read(call: Call, place: LeafPath, signature: Signature) -> Any:
    tensor: Any = call.tensor("inputs", place.number)
    if isinstance(tensor, Placeholder):
        raise InferenceError(
            f"{place} of call {call.number} is a {tensor.type_name}, which was not kept "
            f"({tensor.reason})",
            advice=without_argument(place.argument)
            if signature.may_lack(place.argument)
            else "pass a dense tensor of a plain dtype there, and record again",
        )
    return tensor


def resized(
    sample: Sample,
    variant: VariantFacts,
    row: int,
    values: Sequence[int],
    rules: Mapping[int, ValueRule] | None = None,
    *,
    salt: str = "",
) -> Sample:
    """A sample of one of the variant's rows, with other values of its symbols. Its tensors lie in
    memory as those of the sample do.

    Args:
        sample: the values of a call of that row.
        variant, row: of the call.
        values: of each symbol.
        rules: what integer tensors have to do with sizes, by the number of the tensor
            (:func:`~calltape_analyzer.arguments.value_rules.value_rules`); nothing by default.
        salt: another text gives other values, as far as they are free.

    Raises:
        TapeError: ``limit`` if that takes more memory than there is room for.
        InferenceError: torch cannot make, or copy, one of its tensors; some share memory in a way
            that is not known at other sizes.
    """
    shapes, ints = resized_row(variant, row, values)
    # The sample that it is made of stays in memory.
    before = [tuple(tensor.shape) for tensor in sample.tensors]
    check_tensors(sample.room, sample.tensors * 2, [*before, *shapes])
    recorded = [symbol.values[row] for symbol in variant.symbols]
    places = zip(sample.tensors, shapes, variant.group.layout.tensors, strict=True)
    tensors: list[Any] = []
    for i, (tensor, shape, place) in enumerate(places):
        rule = (rules or {}).get(i)
        resized_tensor = (
            rule.resized(tensor.cpu(), shape, recorded, values) if rule is not None else None
        )
        if resized_tensor is None:
            span = variant.group.ranges.get(i)
            resized_tensor = tiled(tensor, shape, span, str(place), salt=salt)
        tensors.append(resized_tensor.to(tensor.device))
    tensors = relaid_together(tensors, sample.tensors)
    for tensor, old in zip(tensors, sample.tensors, strict=True):
        tensor.requires_grad_(old.requires_grad)
    scalars = variant.with_ints(sample.scalars, ints)
    fit_offsets(variant.group.layout.nested, tensors, scalars)
    return Sample(tensors, scalars, sample.room)


def nudged(sample: Sample) -> Sample:
    """A sample with each float changed by one unit in its last place, up or down. Values that are
    there twice, as in a sample that was resized, go different ways: no tie stays one."""
    import torch

    made = sample.cloned()
    for number, tensor in enumerate(made.tensors):
        if tensor.is_floating_point() and tensor.layout is torch.strided and tensor.numel():
            places = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
            sides = (places * _MIXING >> _SHIFT) % 2
            step = torch.finfo(tensor.dtype).eps * (1 - 2 * sides).to(tensor.dtype)
            moved = torch.where(tensor.isfinite(), tensor + tensor * step, tensor)
            if is_apart(tensor.shape, tensor.stride()):
                tensor.data.copy_(moved)  # it lies as it did
            else:
                made.tensors[number] = moved.detach().requires_grad_(tensor.requires_grad)
    return made


def resized_row(variant: VariantFacts, row: int, values: Sequence[int]) -> SizeRow:
    """One of the variant's rows, with other values of its symbols."""
    recorded = variant.rows.row(row)
    shapes = [list(shape) for shape in recorded.shapes]
    ints = list(recorded.ints)
    for symbol, value in zip(variant.symbols, values, strict=True):
        for column in symbol.columns:
            if column.axis is None:
                ints[column.index] = value
            else:
                shapes[column.index][column.axis] = value
    for counter, dimension in variant.counting_ints.items():
        assert dimension.axis is not None
        ints[counter.index] = shapes[dimension.index][dimension.axis]
    return SizeRow(tuple(tuple(shape) for shape in shapes), tuple(ints))


class LiveCall:
    """Arguments of a call that is being made, not read from a tape.

    Attributes:
        placed: the arguments as a sorted call.
        sample: their values, in the order of its layout.
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], sorter: CallSorter
    ) -> None:
        described = describe_as_recorded((tuple(args), dict(kwargs)), lambda: sorter.module_names)
        root: Node = described.node
        tensors = described.tensors
        leaves, objects = facts_of_tensors(tensors), list(map(id, tensors))
        context = Context.now((leaf.device for leaf in leaves), sorter.modes)
        layout = layout_of_inputs(
            root, described.scalars, sorter.signature, sorter.renamed, context, sorter.ordered
        )
        self.placed: SortedCall = sorter.placed(layout, leaves, described.scalars, objects)
        self.sample = Sample(
            [tensors[place.number] for place in layout.tensors],
            layout.scalars_of(described.scalars),
        )


_STAND_INS: dict[str, Any] = {"int": 1, "float": 1.0, "complex": (1.0, 0.0)}


class CompleteInputs(NamedTuple):
    """Arguments to call a model with.

    Attributes:
        args, kwargs: as they were passed.
        synthetic: how many of their values are not the recorded ones.
        laid_out: how many of their tensors were made contiguous.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    synthetic: int
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
    import torch

    tree, room = call.record.inputs, memory_limit_of(call.tape_bytes)
    facts = tree.facts()
    lacking = {
        i: str(i)
        for i, leaf in enumerate(facts)
        # One that was on the meta device when the model was called never had values.
        if leaf.key is None
        and leaf.device != "meta"
        and isinstance(call.tensor("inputs", i), torch.Tensor)
    }
    scalars = list(tree.scalars)
    root = _StandIns(scalars, room).within(tree.spec().root)
    synthetic = len(lacking) + len(scalars) - len(tree.scalars)
    if not synthetic and not are_contiguous and not any(map(has_flags, facts)):
        return CompleteInputs(*call.inputs_on(device), 0)
    tensors = {leaf: call.tensor("inputs", leaf) for leaf in range(len(facts))}
    _fill_in(tree, tensors, lacking, room)
    fit_offsets([node for node, _ in nested_places(root)], tensors, scalars)
    real = {i: t for i, t in tensors.items() if isinstance(t, torch.Tensor)}
    are_mixed = any(fact.device != "cpu" for fact in facts)
    stay = {i for i, fact in enumerate(facts) if are_mixed and fact.device == "cpu"}
    moved = [i for i, t in real.items() if t.device.type != "meta" and i not in stay]
    tensors = on_device(tensors, moved, device)
    spread: list[int] = []
    if are_contiguous:
        # The tape has one element of an expanded axis, however long it is.
        strided = (i for i in real if tensors[i].layout is torch.strided)
        spread = [i for i in strided if not tensors[i].is_contiguous()]
        shapes = [(facts[i].shape, tensors[i].dtype.itemsize) for i in spread]
        check_memory(room, shapes, "contiguous arguments of one call")
        tensors |= {i: contiguous(tensors[i]) for i in spread}
    else:
        tensors = {leaf: with_flags(tensor, facts[leaf]) for leaf, tensor in tensors.items()}
    args, kwargs = call.build("inputs", root, tensors, scalars)
    return CompleteInputs(args, kwargs, synthetic, len(spread))


def has_synthetic_values(call: Call) -> bool:
    """Whether the tape lacks the value of an argument, so that it is made up. A tensor that was on
    the meta device when the model was called never had one."""
    tree = call.record.inputs
    if any(leaf.key is None and leaf.device != "meta" for leaf in tree.facts()):
        return True
    nodes = walk(tree.spec().root)
    return any(isinstance(node, OpaqueNode) and node.of is not None for node in nodes)


class _StandIns:
    """Stand-ins for scalars whose values the policy kept off the tape."""

    def __init__(self, scalars: list[Any], room: int) -> None:
        self._scalars = scalars
        self._room = room

    def within(self, node: Node) -> Node:
        """The node with a scalar in place of each that is not on the tape."""
        if not isinstance(node, OpaqueNode):
            return with_children(node, self.within)
        if node.of is None:
            return node
        length = 1 if node.length is None else self._scalars[node.length]
        if node.of in ("str", "bytes"):
            length = length if type(length) is int and length >= 0 else 1
            check_memory(self._room, [((length,), 1)], "a text that is not on the tape")
            self._room -= length
            value: Any = "x" * length if node.of == "str" else b"x" * length
        else:
            value = _STAND_INS[node.of]
        self._scalars.append(value)
        return ScalarNode.model_construct(kind=node.of, scalar=len(self._scalars) - 1, type=None)
