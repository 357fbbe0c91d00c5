"""Stored calls as the calls of one graph: dynamic shapes and arguments that hold for all of them.

The contract is that of ``torch.onnx.InputObserver`` (torch 2.15) and of its sibling in yobx: the
same calls give the same shapes and arguments. There is an answer here for some calls that the peers
refuse, or answer with a form that ``torch.export`` refuses (docs/decisions/variants-and-shapes.md).

The call with the most leaves (the first of them) sets the order of the arguments, and which of them
are passed by keyword. Each call is a row of tensors in this order, slot by slot, with gaps where it
has no tensor. Dimensions have the names that the sibling gives them, from the vocabulary of
:mod:`calltape_analyzer.variants.names`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observer.stored_calls import Argument, Shape, StoredCall
from calltape_analyzer.observing.groups import shown_constant
from calltape_analyzer.observing.signature import Key, Signature, nested
from calltape_analyzer.program_source import (
    BatchFor,
    DimNames,
    check_batch,
    check_dim_names,
    is_declared_batch,
)
from calltape_analyzer.pytree.caches import set_token_counters, window_leaves
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.flattening import (
    FlatTree,
    Slot,
    is_empty,
    mapping_keys,
)
from calltape_analyzer.pytree.nodes import nodes_with_paths
from calltape_analyzer.pytree.placeholder import Placeholder, check_rebuilt
from calltape_analyzer.pytree.tensors import zeros
from calltape_analyzer.text import UniqueNames, counted
from calltape_analyzer.variants.names import own_dimension_name, usual_dimension_name
from calltape_schema.tree import FieldsNode, TensorNode

__all__ = ["SingleGraph", "dynamic_dimensions"]

Row: TypeAlias = "list[tuple[Argument, int] | None]"
"""Per slot the argument of a call and the number of the tensor in it; None for a gap."""

_KEPT_APART = (
    "record the two variants on tapes of their own; or, if the model does without the input, "
    "leave it out with remove_inputs"
)


class SingleGraph:
    """Calls of one graph, aligned.

    Args:
        calls: at least one.
        signature: of the recorded method.
        classes: that are known here.

    Raises:
        InferenceError: these are not calls of one graph. The message says which two calls differ,
            and in what.
    """

    def __init__(
        self, calls: Sequence[StoredCall], signature: Signature, classes: ClassIndex
    ) -> None:
        self._calls = calls
        self._signature = signature
        self._classes = classes
        self._best = max(calls, key=lambda call: call.size)  # the first of the largest
        self._has_late = False
        # Per argument of the best call the argument that shows its structure, and its call.
        self._references = [(argument, self._best) for argument in self._best.all]
        for call in calls:
            self._find_references(call)
        for call in calls:
            self.check(call)
        self._slots = [
            SlotSeen(argument.key, signature.name_of(argument.key), slot.path)
            for argument, (shown_slot, _) in zip(self._best.all, self._references, strict=True)
            for slot in shown_slot.slots
        ]
        for call in calls:
            self._add(call)

    # --- alignment --------------------------------------------------------------------------------

    def _find_references(self, call: StoredCall) -> None:
        for i, argument in enumerate(self._in_best_order(call)):
            form = self._references[i][0]
            # An argument of another structure is no reference: the check reports it.
            fits = argument and (
                not form.tensors
                or len(argument.slots) == len(form.slots)
                or _is_partial(form, argument)
            )
            if argument and fits and argument.tensors > form.tensors:
                self._references[i] = (argument, call)

    def _add(self, call: StoredCall) -> None:
        for slot, slot_value in zip(self._slots, self._row(call), strict=True):
            shape = None if slot_value is None else slot_value[0].shape(slot_value[1])
            first_shape = next((seen for seen in slot.shapes if seen is not None), shape)
            if shape is not None and first_shape is not None and len(first_shape) != len(shape):
                before = self._calls[slot.shapes.index(first_shape)]
                raise InferenceError(
                    f"All calls must pass tensors of the same rank: {slot.name}{slot.path} is "
                    f"{list(first_shape)} in {before} and {list(shape)} in {call}",
                    advice=_KEPT_APART,
                )
            slot.shapes.append(shape)
            slot.last = slot_value or slot.last

    def _in_best_order(self, call: StoredCall) -> list[Argument | None]:
        """The arguments of a call in the order of the best call's."""
        best, named = self._best, dict(call.kwargs)
        for argument in call.args[len(best.args) :]:
            # Moved to its name, if the best call has fewer positions. What that call does not have
            # is left out, as by the peers.
            name = self._signature.name_at(int(argument.key))
            variadic = self._signature.variadic_positional
            if variadic is not None and int(argument.key) >= variadic[1]:
                raise self._incomplete(f"*{variadic[0]}", call)
            if name in best.kwargs:
                named.setdefault(name, argument)
        by_position = [self._signature.name_at(i) for i in range(len(best.args))]
        for name, argument in named.items():
            if name in by_position:
                raise self._incomplete(name, call, " by keyword")
            if name not in best.kwargs and (argument.tensors or argument.given is not None):
                raise self._incomplete(name, call)
        positional: list[Argument | None] = [*call.args[: len(best.args)]]
        gaps = [None] * (len(best.args) - len(positional))
        return [*positional, *gaps, *map(named.get, best.kwargs)]

    def _incomplete(self, name: str, call: StoredCall, how: str = "") -> InferenceError:
        has = [self._signature.name_of(argument.key) for argument in self._best.all]
        return InferenceError(
            f"At least one call to the observed model must contain all the named arguments: "
            f"{call} has {name}{how}, and {self._best}, which has the most tensors, has only "
            f"{', '.join(has) or 'none'}",
            advice=f"give value_if_missing={{{name!r}: an empty tensor}}, or make calls in one way",
        )

    def check(self, call: StoredCall) -> None:
        """Raises InferenceError if a call does not belong to this graph, as a call that raised may
        not."""
        self._check_structure(call)
        if call.call is None:
            return  # constants are those of the recorded calls
        names = call.inner.keys() & self._best.inner.keys()
        differ = {key for key in names if call.inner[key] != self._best.inner[key]}
        if differ:
            name = min(differ)
            constants = [{name: stored.inner[name]} for stored in (self._best, call)]
        else:
            constants = [dict(stored.constants) for stored in (self._best, call)]
        if differ or call.constants != self._best.constants:
            shown = [
                f"{_constants_text(values)} in {stored}"
                for values, stored in zip(constants, (self._best, call), strict=True)
            ]
            raise InferenceError(
                f"Two calls were made with different constant values, {' and '.join(shown)}",
                advice=_KEPT_APART,
            )

    def _check_structure(self, call: StoredCall) -> None:
        for argument, (reference, source) in zip(
            self._in_best_order(call), self._references, strict=True
        ):
            if argument is None or argument is reference:
                continue
            key = reference.key
            what = (
                f"Named argument {key!r}" if isinstance(key, str) else f"Positional argument {key}"
            )
            is_as_long = len(argument.slots) == len(reference.slots)
            if not reference.tensors and argument.tensors and not is_as_long:
                # The caller's own arguments, and calls that raised, may have tensors there.
                raise InferenceError(
                    f"{what} has {counted(argument.tensors, 'tensor')} in {call} and none in the "
                    "other calls",
                    advice="record a call that passes them",
                )
            if not argument.tensors or not reference.tensors:
                self._has_late |= reference.tensors > 0 and not is_empty(argument.node)
            elif _is_partial(argument, reference):
                self._has_late = True
            elif not is_as_long:
                raise InferenceError(
                    f"{what} has {counted(len(argument.slots), 'tensor')} in {call} but previously "
                    f"got {counted(len(reference.slots), 'tensor')} in {source}; inference is "
                    f"impossible in that case",
                    advice=_KEPT_APART,
                )
            elif mapping_keys(argument.form) != mapping_keys(reference.form):
                raise InferenceError(
                    f"{what} has other keys in {call} than in {source}", advice=_KEPT_APART
                )

    def _row(self, call: StoredCall) -> Row:
        row: Row = []
        for argument, (reference, _) in zip(
            self._in_best_order(call), self._references, strict=True
        ):
            row += _leaves(argument, reference)
        return row

    # --- dynamic shapes ---------------------------------------------------------------------------

    def dynamic_shapes(
        self, declared: BatchFor = None, names: DimNames = None
    ) -> tuple[Any, ...] | dict[str, Any]:
        """What ``torch.export.export(dynamic_shapes=...)`` takes.

        Args:
            declared: names or positions of arguments whose dimension 0 is declared dynamic although
                it never varied; True for all.
            names: as for :meth:`calltape_analyzer.Tape.infer_dynamic_shapes`.

        Raises:
            UsageError: the parameters are not names and positions, or name an argument that does
                not exist.
        """
        import torch

        keys: set[Key] = {argument.key for argument in self._best.all}
        keys |= set(map(self._signature.name_of, keys))
        keys |= {parameter.name for parameter in self._signature.parameters}
        check_batch(declared, keys)
        check_dim_names(names, keys)
        dynamic = [
            dynamic_dimensions(slot.own, is_declared_batch(slot.key, declared, self._signature))
            for slot in self._slots
        ]
        named = name_dimensions(self._slots, dynamic, names) if names else {}
        number = iter(range(len(self._slots)))

        def shape(_: FlatTree) -> dict[int, Any] | None:
            i = next(number)
            if not self._slots[i].own:
                return None
            return {axis: named.get((i, axis), torch.export.Dim.DYNAMIC) for axis in dynamic[i]}

        shapes = {
            self._signature.name_of(argument.key): reference.form.filled(shape, self._classes)
            for argument, (reference, _) in zip(self._best.all, self._references, strict=True)
        }
        positional = len(self._best.args)
        leading = dict(list(shapes.items())[:positional])
        by_name = {name: shapes[name] for name in shapes if name not in leading}
        values = leading | self._ordered(by_name | dict.fromkeys(self._best.constants))
        return nested(self._signature, positional, values)

    def _ordered(self, named: Mapping[str, Any]) -> dict[str, Any]:
        places = self._signature.places
        return dict(sorted(named.items(), key=lambda item: places.get(item[0], len(places))))

    # --- arguments --------------------------------------------------------------------------------

    def given(self, arguments: tuple[Any, ...] | Mapping[str, Any]) -> StoredCall:
        """Arguments of the caller's own, to be completed. Names of a dict that the calls do not
        have are left out, as by the peer.

        Raises:
            InferenceError: they have another structure.
        """
        if not isinstance(arguments, tuple):
            names = {self._signature.name_of(argument.key) for argument in self._best.all}
            arguments = {name: value for name, value in arguments.items() if name in names}
        stored_call = StoredCall.of_values(arguments)
        self.check(stored_call)
        return stored_call

    def representative(self) -> StoredCall:
        """The call that stands for all.

        The rule of ``torch.onnx.InputObserver``: the first call that passes as many arguments, by
        position and by keyword, as the one with the most tensors. If an argument was passed before
        it had its tensors (a prepared, empty cache), it is instead the first call that has every
        tensor and no dynamic size of 0 or 1, which torch.export would specialize; or the one with
        the fewest of them, if the peers' choice would be completed with a full sliding window.
        """
        counts = len(self._best.args), len(self._best.kwargs)
        similar = (c for c in self._calls if (len(c.args), len(c.kwargs)) == counts)
        first = next(similar, self._best)
        if not self._has_late:
            return first
        small = {
            number: sum(
                (s.shapes[number] or ())[axis] < 2 for s in self._slots for axis in s.dynamic
            )
            for number in range(len(self._calls))
            if all(slot.shapes[number] is not None for slot in self._slots if slot.own)
        }
        if not small:
            return first
        best = min(small, key=small.__getitem__)
        return first if small[best] and not self._fills_a_window(first) else self._calls[best]

    def _fills_a_window(self, call: StoredCall) -> bool:
        """Whether a call would be completed with a sliding window that never varied: it is full in
        all calls that have it, and the call's attention mask leaves no place for its tokens."""
        windows: list[bool] = []
        for reference, _ in self._references:
            leaves = window_leaves(reference.node)
            windows += [slot.leaf in leaves for slot in reference.slots]
        return any(
            slot_value is None and is_window and not slot.dynamic
            for slot_value, is_window, slot in zip(
                self._row(call), windows, self._slots, strict=True
            )
        )

    def arguments(self, call: StoredCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` of a call, completed.

        A tensor that other calls have and this one does not has the last recorded shape, with size
        0 in the last dynamic dimension. If no dimension is dynamic, it is zeros of the whole shape.

        Raises:
            InferenceError: an argument holds an object that was not rebuilt.
        """
        values = [*self._build(call)]
        names = [self._signature.name_of(argument.key) for argument in self._best.all]
        check_rebuilt(zip(names, values, strict=True), self._signature.may_lack)
        positional = len(self._best.args)
        kwargs = dict(zip(self._best.kwargs, values[positional:], strict=True))
        return tuple(values[:positional]), self._ordered({**kwargs, **self._best.constants})

    def tensors(self, call: StoredCall) -> list[tuple[SlotSeen, Any, bool]]:
        """The flattened, completed arguments of a call: per slot its tensor, or None if no call has
        one, and whether the call lacks it.

        Raises:
            InferenceError: as :meth:`arguments`.
        """
        row = self._row(call)
        tensors = self._filled(row, {})
        names = [slot.name for slot in self._slots]
        check_rebuilt(zip(names, tensors, strict=True), self._signature.may_lack)
        return [
            (slot, tensor, slot_value is None and bool(slot.own))
            for slot, tensor, slot_value in zip(self._slots, tensors, row, strict=True)
        ]

    def present(self, call: StoredCall) -> list[Any]:
        """The tensors of a call, slot by slot. None if it has no tensor there."""
        return [
            None if slot_value is None else slot_value[0].tensor(slot_value[1])
            for slot_value in self._row(call)
        ]

    def _filled(self, row: Row, shared: dict[int, Any], start: int = 0) -> list[Any]:
        return [
            self._filler(self._slots[start + i])
            if slot_value is None
            else _read(*slot_value, shared)
            for i, slot_value in enumerate(row)
        ]

    def _build(self, call: StoredCall) -> Iterator[Any]:
        """The arguments of a call in the order of the best call's."""
        row, start = self._row(call), 0
        shared: dict[int, Any] = {}
        for reference, _ in self._references:
            end = start + len(reference.slots)
            slot_values = row[start:end]
            has_gap = any(
                slot_value is None and slot.own
                for slot_value, slot in zip(slot_values, self._slots[start:end], strict=True)
            )
            passed = next(
                (slot_value[0] for slot_value in slot_values if slot_value is not None), None
            )
            if not has_gap and passed is None:
                # Constants, and containers that are empty in every call.
                yield reference.value({})
            elif (
                not has_gap
                and passed is not None
                and _have_one_structure(passed.form, reference.form)
            ):
                yield passed.value(shared)
            else:
                filled = self._filled(slot_values, shared, start)
                places = zip(reference.slots, filled, strict=True)
                rebuilt = reference.build({s.leaf: t for s, t in places if s.leaf is not None})
                if reference.call is not None:
                    set_token_counters(rebuilt)
                yield rebuilt
            start = end

    @staticmethod
    def _filler(slot: SlotSeen) -> Any:
        if slot.last is None:
            return None
        argument, leaf = slot.last
        shape, tensor = argument.shape(leaf), argument.tensor(leaf)
        if 0 in shape or isinstance(tensor, Placeholder):
            return tensor
        last = slot.dynamic[-1] if slot.dynamic else None
        sizes = [0 if axis == last else size for axis, size in enumerate(shape)]
        return zeros(sizes, tensor.dtype, tensor.device)


def _read(argument: Argument, leaf: int, shared: dict[int, Any]) -> Any:
    if argument.given is not None:
        return argument.tensor(leaf)
    if leaf not in shared:
        shared[leaf] = argument.tensor(leaf)
    return shared[leaf]


def _constants_text(constants: Mapping[str, Any]) -> str:
    """Constants for people; a text that does not look like a name is not shown."""
    return f"{{{', '.join(f'{name!r}: {shown_constant(v)}' for name, v in constants.items())}}}"


def _is_partial(argument: Argument, reference: Argument) -> bool:
    """Whether an argument is the same object as the reference with fewer of its tensors: a static
    cache makes its keys and values when it is first updated."""
    if not argument.tensors or len(argument.slots) >= len(reference.slots):
        return False
    ours, theirs = _attribute_paths(argument), _attribute_paths(reference)
    return ours is not None and theirs is not None and set(ours) < set(theirs)


def _attribute_paths(argument: Argument) -> list[str] | None:
    """The attribute path of the tensor in each slot of an object, which does not depend on how its
    class is registered. None if the argument is not an object, or a slot has no tensor."""
    node = argument.node
    if not isinstance(node, FieldsNode) or node.kind != "object":
        return None
    by_leaf: dict[int | None, str] = {}
    for path, below in nodes_with_paths(node, "argument"):
        if isinstance(below, TensorNode):
            by_leaf.setdefault(below.leaf, path)
    slots = [by_leaf[slot.leaf] for slot in argument.slots if slot.leaf in by_leaf]
    return slots if len(slots) == len(argument.slots) == len(set(slots)) else None


def _leaves(argument: Argument | None, reference: Argument) -> Row:
    """The tensors of an argument in the order of the reference's slots."""
    if argument is None or not argument.tensors:
        return [None] * len(reference.slots)

    def leaf(slot: Slot | None) -> tuple[Argument, int] | None:
        return None if slot is None or slot.leaf is None else (argument, slot.leaf)

    if _is_partial(argument, reference):
        have = dict(zip(_attribute_paths(argument) or (), argument.slots, strict=True))
        return [leaf(have.get(path)) for path in _attribute_paths(reference) or ()]
    by_path = {slot.path: slot for slot in argument.slots}
    paths = [slot.path for slot in reference.slots]
    # Two calls may have inserted the keys of a dict in different order.
    slots = map(by_path.get, paths) if by_path.keys() == set(paths) else argument.slots
    return [leaf(slot) for slot in slots]


def _have_one_structure(first: FlatTree, second: FlatTree) -> bool:
    """Whether two forms nest in the same way. Keys of a dict may stand in any order."""
    if first.kind != second.kind or len(first.children) != len(second.children):
        return False
    pairs = zip(first.children, second.children, strict=True)
    if first.kind == "dict":
        children = dict(zip(first.keys, first.children, strict=True))
        if set(children) != set(second.keys):
            return False
        pairs = ((children[k], c) for k, c in zip(second.keys, second.children, strict=True))  # type: ignore[assignment]
    return all(_have_one_structure(a, b) for a, b in pairs)


Dimension: TypeAlias = "tuple[int, int]"
"""A slot (by its place in a list) and an axis."""


def dynamic_dimensions(shapes: Sequence[Shape], set_batch_dimension: bool = False) -> list[int]:
    """The axes on which the shapes of one tensor differ; with ``set_batch_dimension`` always axis 0
    too.

    Raises:
        InferenceError: the shapes differ in rank.
    """
    if len(set(map(len, shapes))) > 1:
        raise InferenceError(f"All shapes must have the same rank: {list(map(list, shapes))}")
    axes = enumerate(zip(*shapes, strict=True))
    return [
        axis for axis, sizes in axes if len(set(sizes)) > 1 or (axis == 0 and set_batch_dimension)
    ]


@dataclass
class SlotSeen:
    """One slot over all calls.

    Attributes:
        key, name: of the argument.
        path: of the slot below the argument; ``""`` if the argument is a tensor.
        shapes: per call; None if it has no tensor here.
        last: the last tensor here.
    """

    key: Key
    name: str
    path: str
    shapes: list[Shape | None] = field(default_factory=list)
    last: tuple[Argument, int] | None = None

    @cached_property
    def own(self) -> list[Shape]:
        """The shapes that there are."""
        return [shape for shape in self.shapes if shape is not None]

    @cached_property
    def dynamic(self) -> list[int]:
        """The axes that had several sizes."""
        return dynamic_dimensions(self.own)


@dataclass
class _Equal:
    """Dimensions that were always equal, with their size per call."""

    usual: str | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    members: list[Dimension] = field(default_factory=list)

    def takes(self, usual: str | None, sizes: Mapping[int, int]) -> bool:
        call_numbers = self.sizes.keys() & sizes.keys()
        is_named_alike = self.usual is None or usual is None or self.usual == usual
        return (
            bool(call_numbers)
            and is_named_alike
            and all(self.sizes[i] == sizes[i] for i in call_numbers)
        )


def name_dimensions(
    slots: Sequence[SlotSeen], dynamic: Sequence[Sequence[int]], names: DimNames
) -> dict[Dimension, str]:
    """Names for dynamic dimensions.

    Args:
        slots: of all tensors.
        dynamic: the dynamic axes of each.
        names: True, or names by argument (name or position) and axis. True gives one name to the
            dimensions that had the same size in every call that has both: the usual one of models
            of transformers, else ``<input>_dim_<n>`` after the first of them. Two dimensions whose
            usual names differ stay two, even if their sizes never differed. With a mapping,
            inputs share only the names that it gives.
    """
    dimensions = [(i, axis) for i, axes in enumerate(dynamic) for axis in axes]
    arguments = {slot.name for slot in slots}
    named: dict[Dimension, str] = {}
    dimension_names = UniqueNames()
    groups = _equal(slots, dimensions, arguments)
    if isinstance(names, Mapping):
        for i, axis in dimensions:
            given_names = names.get(slots[i].name, names.get(slots[i].key, {}))
            if axis in given_names:
                named[i, axis] = given_names[axis]
        apart: dict[tuple[str, int], list[Dimension]] = {}
        for i, axis in dimensions:
            if (i, axis) not in named:
                apart.setdefault((slots[i].name, axis), []).append((i, axis))
        groups = [m for members in apart.values() for m in _equal(slots, members, arguments)]
    for group in groups:
        usual = None if isinstance(names, Mapping) else group.usual
        i, axis = group.members[0]
        short = own_dimension_name(slots[i].name, "", axis)
        free = [name for name in (usual, short) if name and name not in dimension_names.names]
        whole = own_dimension_name(slots[i].name, slots[i].path, axis)
        named |= dict.fromkeys(group.members, dimension_names.add(free[0] if free else whole))
    return named


def _equal(
    slots: Sequence[SlotSeen], dimensions: Sequence[Dimension], arguments: Collection[str]
) -> list[_Equal]:
    """Groups dimensions that were always equal; each joins the first group that it fits."""
    groups: list[_Equal] = []
    for i, axis in dimensions:
        slot = slots[i]
        usual = usual_dimension_name(slot.name, slot.path, len(slot.own[0]), axis, arguments)
        sizes = {n: shape[axis] for n, shape in enumerate(slot.shapes) if shape is not None}
        group = next((candidate for candidate in groups if candidate.takes(usual, sizes)), None)
        if group is None:
            groups.append(group := _Equal())
        group.usual = group.usual or usual
        group.sizes |= sizes
        group.members.append((i, axis))
    return groups
