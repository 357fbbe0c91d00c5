"""The arguments of stored calls, by the rules of ``torch.onnx.InputObserver`` (torch 2.15), and
what an observer shows of each call (``observer.info``).

The rules differ from those of a layout. A None, int, float, bool or str that is passed by keyword
is not an argument; it is a constant, if it differs from a scalar default. One that is passed by
position is an argument, even if it equals the default. Arguments by keyword stand in the order of
the signature. What ``value_if_missing`` gives is added to every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from calltape_analyzer.comparison.comparing import recorded_leaves
from calltape_analyzer.comparison.reports import Incomparable
from calltape_analyzer.errors import InferenceError, KeyTypeError, UnsupportedError, UsageError
from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.signature import Key, PassedArguments, Signature
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.description import Description, describe_as_recorded
from calltape_analyzer.pytree.flattening import Flattener, FlatTree, Slot
from calltape_analyzer.pytree.memory import as_before, as_numbers
from calltape_analyzer.pytree.nodes import Unknown
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.pytree.rendering import render
from calltape_analyzer.pytree.tensors import facts_of_tensors
from calltape_analyzer.reading.call import Call
from calltape_schema.tree import BoolNode, Leaf, Node, NoneNode, ScalarNode

__all__ = ["Argument", "InputCandidate", "ObserverInfo", "Shape", "StoredCall"]

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of one call, flattened.

    Attributes:
        key: its name, or its position.
        node: its spec.
        form: how it flattens.
        call: that passed it; None if it came from the caller of an inference.
        facts: of the leaves of the call, or of what was given.
        given: what came from the caller of an inference.
    """

    key: Key
    node: Node
    form: FlatTree
    call: Call | None = None
    facts: Sequence[Leaf] = ()
    given: Description | None = None

    @classmethod
    def of_value(cls, key: Key, value: Any) -> Argument:
        """An argument made of a Python value."""
        described = describe_as_recorded(value)
        facts = facts_of_tensors(described.tensors)
        flattener = Flattener(facts, described.scalars, ClassIndex(described.classes))
        form = flattener.flatten(described.node)
        return cls(key, described.node, form, facts=facts, given=described)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The slots of the form, in flattening order."""
        return tuple(self.form.slots())

    @cached_property
    def tensors(self) -> int:
        """How many tensors it has."""
        return sum(slot.leaf is not None for slot in self.slots)

    def shape(self, leaf: int) -> Shape:
        """The sizes of one tensor."""
        return self.facts[leaf].shape

    def tensor(self, leaf: int) -> Any:
        """One tensor, read or copied anew, because an export may leave marks on it; without its
        gradient's history, and on the device that it was on."""
        if self.given is not None:
            given_tensor = self.given.tensors[leaf]
            return as_before(as_numbers(given_tensor.detach()).clone(), given_tensor)
        assert self.call is not None
        tensor = self.call.tensor("inputs", leaf)
        if isinstance(tensor, Placeholder):
            return tensor
        device = self.facts[leaf].device
        return tensor.detach() if device == "cpu" else tensor.detach().to(device)

    def build(self, tensors: dict[int, Any]) -> Any:
        """The value with other tensors, by their number."""
        if self.call is not None:
            return self.call.build("inputs", self.node, tensors)
        import torch
        from torch.utils import _pytree as pytree

        assert self.given is not None
        replaced = {id(old): tensors.get(i, old) for i, old in enumerate(self.given.tensors)}
        return pytree.tree_map_only(
            torch.Tensor, lambda tensor: replaced.get(id(tensor), tensor), self.given.value
        )

    def value(self, shared: dict[int, Any]) -> Any:
        """The value as it was passed.

        Args:
            shared: the tensors of the call that were read so far, by number.
        """
        memo = {} if self.call is None else shared
        for slot in self.slots:
            if slot.leaf is not None and slot.leaf not in memo:
                memo[slot.leaf] = self.tensor(slot.leaf)
        return self.build(memo)


@dataclass(frozen=True, eq=False)
class StoredCall:
    """The arguments of one call.

    Attributes:
        args: passed by position.
        kwargs: passed by keyword, in the order of the signature.
        constants: the scalars passed by keyword that count.
        inner: the scalars that are a positional argument or part of an argument, by path.
        call: the call; None for arguments of the caller of an inference.
    """

    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    constants: Mapping[str, Any]
    inner: Mapping[str, Any]
    call: Call | None = None

    @cached_property
    def all(self) -> tuple[Argument, ...]:
        """All arguments, positional ones first."""
        return (*self.args, *self.kwargs.values())

    @cached_property
    def size(self) -> int:
        """Number of slots."""
        return sum(len(argument.slots) for argument in self.all)

    def __str__(self) -> str:
        return "the given arguments" if self.call is None else f"call {self.call.number}"

    @classmethod
    def of(
        cls,
        call: Call,
        classes: ClassIndex,
        signature: Signature,
        value_if_missing: Mapping[Key, Any],
    ) -> StoredCall:
        """The arguments of a recorded call.

        Args:
            call: of a tape.
            classes: that are known there.
            signature: of the recorded method.
            value_if_missing: values by name or position. A value by name is the argument if the
                call does not pass the parameter. A value by position replaces the argument at this
                position, as in ``torch.onnx.InputObserver``.

        Raises:
            UsageError: ``value_if_missing`` names a parameter that does not exist.
            UnsupportedError: it has a position that the call did not pass.
            KeyTypeError: it has a key that is neither name nor position.
        """
        tree = call.record.inputs
        scalars = tree.scalars
        facts = tree.facts()
        flattener = Flattener(facts, scalars, classes)
        passed = PassedArguments.of(tree.spec().root, signature)
        args = [
            Argument(i, node, flattener.flatten(node), call, facts)
            for i, (_, node) in enumerate(passed.positional)
        ]
        named: dict[str, Argument] = {}
        constants: dict[str, Any] = {}
        for name, node in passed.named:
            if _is_scalar(node):
                constants[name] = _scalar_of(node, scalars)
            elif not isinstance(node, NoneNode):
                named[name] = Argument(name, node, flattener.flatten(node), call, facts)
        _add_missing(args, named, signature, value_if_missing)
        complete = signature.complete
        args = [a for a in args if complete.name_at(int(a.key)) not in signature.removed]
        args = [replace(argument, key=i) for i, argument in enumerate(args)]
        kwargs = {
            name: named[name]
            for name in _in_order(signature, named)
            if name not in signature.removed
        }
        inner = {
            f"{signature.name_of(argument.key)}{slot.path}": _scalar_of(slot.node, scalars)
            for argument in (*args, *kwargs.values())
            for slot in argument.slots
            if argument.call is not None and _is_scalar(slot.node)
        }
        kwargs_kept = {
            name: constants[name]
            for name in _in_order(signature, constants)
            if signature.is_constant(name, constants[name])
        }
        return cls(tuple(args), kwargs, kwargs_kept, inner, call)

    @classmethod
    def of_values(cls, arguments: tuple[Any, ...] | Mapping[str, Any]) -> StoredCall:
        """Arguments of the caller of an inference: a tuple of positional ones, or a dict by name.
        Scalars are left out, because constants are those of the recorded calls."""
        if isinstance(arguments, tuple):
            args = tuple(Argument.of_value(i, value) for i, value in enumerate(arguments))
            return cls(args, {}, {}, {})
        kwargs = {
            name: Argument.of_value(name, value)
            for name, value in arguments.items()
            if value is not None and not isinstance(value, int | float | str)
        }
        return cls((), kwargs, {}, {})


def _in_order(signature: Signature, names: Mapping[str, Any]) -> list[str]:
    return sorted(names, key=lambda name: signature.places.get(name, len(signature.places)))


def _is_scalar(node: Any) -> bool:
    is_number = isinstance(node, ScalarNode) and node.kind in ("int", "float", "str")
    return is_number or isinstance(node, BoolNode)


def _scalar_of(node: Any, scalars: Sequence[Any]) -> Any:
    return node.value if isinstance(node, BoolNode) else scalars[node.scalar]


def _add_missing(
    positional: list[Argument],
    named: dict[str, Argument],
    signature: Signature,
    value_if_missing: Mapping[Key, Any],
) -> None:
    names = signature.complete.names
    advice = f"name one of the parameters {', '.join(names)}"
    for key, value in value_if_missing.items():
        what = f"Unexpected keyword argument k={key!r} in value_if_missing"
        if not isinstance(key, int | str):
            raise KeyTypeError(
                f"Unexpected type {type(key).__name__} of the key {key!r} in value_if_missing",
                advice="use the name or the position of a parameter",
            )
        if isinstance(key, int):
            if key >= len(names):
                raise UsageError(f"{what}: the method has {len(names)} parameters", advice=advice)
            if key >= len(positional):
                raise UnsupportedError(
                    f"{what}: a recorded call has {len(positional)} positional arguments",
                    advice=f"give the value by name, as {names[key]!r}",
                )
            positional[key] = Argument.of_value(key, value)
        elif key not in named:
            if key not in names and signature.variadic_keyword is None:
                raise UsageError(what, advice=advice)
            position = names.index(key) if key in names else len(positional)
            if position >= len(positional):
                named[key] = Argument.of_value(key, value)
            elif isinstance(positional[position].node, NoneNode):
                positional[position] = Argument.of_value(position, value)


class InputCandidate:
    """The arguments of one call.

    Attributes:
        args, kwargs: as passed, without None and scalars passed by keyword, with
            ``value_if_missing``.
        cst_kwargs: the scalars passed by keyword that differ from their default.
        flat_list: the tensors in flattening order; None if there is none.
        aligned_flat_list: the same in the order of all calls, None for those that this call lacks.
            None in place of the list for arguments that do not belong to an observer, or to calls
            that cannot be one program.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        clone: bool,
        cst_kwargs: dict[str, Any],
        *,
        aligned: Callable[[], list[Any]] | None = None,
    ) -> None:
        import torch
        from torch.utils import _pytree as pytree

        if clone:
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, lambda tensor: tensor.detach().clone(), (args, kwargs)
            )
        self.args = args
        self.kwargs = kwargs
        self.cst_kwargs = dict(cst_kwargs)
        self._aligned = aligned
        self.flat_list = [
            None
            if slot.leaf is None or argument.given is None
            else argument.given.tensors[slot.leaf]
            for argument in (
                *(Argument.of_value(i, value) for i, value in enumerate(args)),
                *(Argument.of_value(name, value) for name, value in kwargs.items()),
            )
            for slot in argument.slots
        ]

    def __len__(self) -> int:
        return len(self.flat_list)

    def __str__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.args)} args, {len(self.kwargs)} kwargs, "
            f"{len(self)} tensors)"
        )

    def str_obs(self) -> str:
        """The arguments on one line."""
        return (
            f"{type(self).__name__}(args={render(self.args)}, kwargs={render(self.kwargs)}, "
            f"cst_kwargs={self.cst_kwargs})"
        )

    @property
    def aligned_flat_list(self) -> list[Any] | None:
        if self._aligned is None:
            return None
        try:
            return self._aligned()
        except InferenceError:
            return None

    @property
    def n_aligned_tensors(self) -> int:
        """Number of leaves of all calls together."""
        aligned = self.aligned_flat_list
        if aligned is None:
            raise InferenceError("This input was not aligned with the others.")
        return len(aligned)


class ObserverInfo:
    """What an observer has seen so far, read from its tapes.

    Args:
        calls: in order.
        stored: gives the arguments of a call by its position.
        aligned: gives its tensors in the order of all calls.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        stored: Callable[[int], StoredCall],
        aligned: Callable[[int], list[Any]],
    ) -> None:
        self._calls = calls
        self._stored = stored
        self._aligned = aligned

    def __len__(self) -> int:
        return len(self._calls)

    @cached_property
    def inputs(self) -> list[InputCandidate]:
        """The arguments of each call."""
        return [self._candidate(i) for i in range(len(self._calls))]

    @property
    def flat_outputs(self) -> list[list[Any]]:
        """The tensors that each call returned, flattened; None if there is none."""
        return [self.outputs(index) for index in self.returned]

    @property
    def returned(self) -> list[int]:
        """Positions of the calls that did not raise."""
        return [i for i, call in enumerate(self._calls) if call.record.outputs is not None]

    @property
    def latencies(self) -> list[float]:
        """Seconds that each call took."""
        return [self.latency(index) for index in self.returned]

    def outputs(self, index: int) -> list[Any]:
        """The tensors that one call returned, detached and in flattening order; None where there is
        none."""
        call = self._calls[index]
        tree = call.record.outputs
        if tree is None:
            return []
        form = Flattener(tree.facts(), tree.scalars, ClassIndex()).flatten(tree.spec().root)
        leaves = (slot.leaf for slot in form.slots())
        outputs: list[Any] = [
            None if leaf is None else call.tensor("outputs", leaf) for leaf in leaves
        ]
        return [output.detach() if hasattr(output, "detach") else output for output in outputs]

    def call(self, index: int) -> Call:
        """One call."""
        return self._calls[index]

    def unknown(self, index: int) -> list[Fact]:
        """The parts of what one call returned that nothing can be compared with, and why."""
        leaves = recorded_leaves(self._calls[index]) or {}
        return [
            Incomparable.of(path, leaf)
            for path, leaf in leaves.items()
            if isinstance(leaf, Unknown | Placeholder)
        ]

    def latency(self, index: int) -> float:
        """Seconds that one call took."""
        return self._calls[index].duration or 0.0

    def _candidate(self, index: int) -> InputCandidate:
        stored, shared = self._stored(index), dict[int, Any]()
        args = tuple(argument.value(shared) for argument in stored.args)
        kwargs = {name: argument.value(shared) for name, argument in stored.kwargs.items()}
        constants = dict(stored.constants)
        return InputCandidate(args, kwargs, False, constants, aligned=lambda: self._aligned(index))
