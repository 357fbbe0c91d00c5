"""Which argument of one call is which of another's.

In come call patterns. The call with the most leaves (the first of them) sets the order and the
calling convention, as in ``torch.onnx.InputObserver``. Out goes a row for each pattern: its tensors
in this order, slot by slot, with gaps where it has no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from calltape_analyzer.errors import InferenceError, NotOneProgramError
from calltape_analyzer.inference.binding import Argument, Bound
from calltape_analyzer.inference.patterns import CallPattern
from calltape_analyzer.observing.signature import Key, Signature
from calltape_analyzer.observing.switches import shown_constant
from calltape_analyzer.pytree.flattening import Slot, is_empty, mapping_keys
from calltape_analyzer.text import counted
from calltape_schema.tree import DictNode, FieldsNode, Node, TensorNode, children_of

__all__ = ["AlignedLeaf", "AlignedRow", "Alignment"]


class AlignedLeaf(NamedTuple):
    """A tensor of a call pattern: its argument, and the number of its leaf."""

    argument: Argument
    leaf: int


AlignedRow: TypeAlias = "tuple[AlignedLeaf | None, ...]"
"""The tensors of a call pattern, one per slot; None if it has no tensor there."""


@dataclass
class Alignment:
    """All patterns laid beside the best one.

    Attributes:
        signature: of the recorded method.
        best: the pattern with the most leaves.
        bind_keywords: as for :meth:`of`.
        references: for each argument of the best pattern the argument that shows its structure, and
            the pattern that it is of: its own, or the first one that has more tensors.
        has_late: whether some call passed an object that has no tensors yet, or not all, and has
            them in other calls (a cache before the first call).
        notes: what a reader should know about how the calls were aligned.
    """

    signature: Signature
    best: CallPattern
    bind_keywords: bool = True
    references: list[tuple[Argument, CallPattern]] = field(default_factory=list)
    has_late: bool = False
    notes: list[str] = field(default_factory=list)
    _rows: dict[Bound, AlignedRow] = field(default_factory=dict)
    _arguments: dict[Bound, list[Argument | None]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, patterns: Sequence[CallPattern], signature: Signature, *, bind_keywords: bool = True
    ) -> Alignment:
        """Aligns patterns.

        Args:
            patterns: in the order of their first call; at least one.
            signature: of the recorded method.
            bind_keywords: whether a keyword argument may stand for one that the best pattern passes
                by position. ``torch.onnx.InputObserver`` refuses that.

        Raises:
            InferenceError: these are not calls of one program. The message says which two calls
                differ, and in what.
        """
        best = patterns[0]
        for pattern in patterns:
            if pattern.bound.size > best.bound.size:
                best = pattern
        alignment = cls(signature, best, bind_keywords)
        alignment._find_references(patterns)
        for pattern in patterns:
            alignment._check_constants(pattern)
            alignment.row(pattern)
        return alignment

    @property
    def keys(self) -> list[Key]:
        """The keys of the arguments, positions first."""
        return [argument.key for argument in self.best.bound.all]

    @property
    def names(self) -> frozenset[str]:
        """The names of the best pattern's arguments, by position and by keyword."""
        return frozenset(self.signature.name_of(key) for key in self.keys)

    def row(self, pattern: CallPattern) -> AlignedRow:
        """The tensors of a pattern, slot by slot.

        Raises:
            InferenceError: the pattern does not align with the others.
        """
        key = pattern.bound
        if key not in self._rows:
            arguments = self._in_best_order(pattern)
            leaves: list[AlignedLeaf | None] = []
            for argument, (reference, _) in zip(arguments, self.references, strict=True):
                leaves += _leaves(argument, reference)
            self._rows[key] = tuple(leaves)
        return self._rows[key]

    def needed(self, pattern: CallPattern) -> AlignedRow:
        """The row without the slots that have no tensor in any call."""
        shown = [slot for argument, _ in self.references for slot in argument.slots]
        row = self.row(pattern)
        return tuple(leaf for leaf, slot in zip(row, shown, strict=True) if slot.leaf is not None)

    def _find_references(self, patterns: Sequence[CallPattern]) -> None:
        found = [(argument, self.best) for argument in self.best.bound.all]
        for pattern in patterns:
            for i, argument in enumerate(self._in_best_order(pattern)):
                known = found[i][0]
                # An argument of another structure is no reference: check_structure reports it.
                fits = argument and (
                    not known.tensors
                    or len(argument.slots) == len(known.slots)
                    or is_partial(known, argument)
                )
                if argument and fits and argument.tensors > known.tensors:
                    found[i] = (argument, pattern)
        self.references = found
        for pattern in patterns:
            self.check_structure(pattern)

    def _check_constants(self, pattern: CallPattern) -> None:
        ours, theirs = dict(self.best.inner), dict(pattern.inner)
        both = ours.keys() & theirs.keys()
        differ = {key for key in both if ours[key] != theirs[key]}
        if differ:
            name = min(differ)
            one, other = shown_constant(ours[name]), shown_constant(theirs[name])
            raise NotOneProgramError(
                f"Two calls were made with different constant values, {name}={one} in "
                f"{self.best.label} and {name}={other} in {pattern.label}"
            )
        if dict(pattern.constants) != dict(self.best.constants):
            raise NotOneProgramError(
                f"Two calls were made with different constant values, "
                f"{_shown_all(self.best.constants)} in {self.best.label} and "
                f"{_shown_all(pattern.constants)} in {pattern.label}"
            )

    def _in_best_order(self, pattern: CallPattern) -> list[Argument | None]:
        """The arguments of a pattern in the order of the best pattern's."""
        key = pattern.bound
        if key not in self._arguments:
            self._arguments[key] = list(self._ordered(pattern))
        return self._arguments[key]

    def _ordered(self, pattern: CallPattern) -> Iterator[Argument | None]:
        best = self.best.bound
        named = dict(pattern.bound.kwargs)
        positional = pattern.bound.args[: len(best.args)]
        for argument in pattern.bound.args[len(best.args) :]:
            self._move(argument, named, pattern)
        self._check_names(named, pattern)
        for i in range(len(best.args)):
            if i < len(positional):
                yield positional[i]
            else:
                yield named.get(self.signature.name_at(i))
        for name in best.kwargs:
            yield named.get(name)

    def _move(self, argument: Argument, named: dict[str, Argument], pattern: CallPattern) -> None:
        """Binds a positional argument by its name, if the best call has fewer positions."""
        name = self.signature.name_at(int(argument.key))
        variadic = self.signature.variadic_positional
        if variadic is not None and int(argument.key) >= variadic[1]:
            raise self._incomplete(f"*{variadic[0]}", pattern)
        if name in self.best.bound.kwargs:
            named.setdefault(name, argument)
        elif argument.tensors:
            # torch.onnx.InputObserver leaves it out too, and does not say so.
            self.notes.append(
                f"{name} of {pattern.label} is left out: {self.best.label}, which has "
                f"the most tensors, does not have it"
            )

    def _check_names(self, named: dict[str, Argument], pattern: CallPattern) -> None:
        best = self.best.bound
        by_position = {self.signature.name_at(i) for i in range(len(best.args))}
        for name, argument in named.items():
            if name in best.kwargs:
                continue
            if name in by_position and self.bind_keywords:
                continue
            if name in by_position:
                raise self._incomplete(name, pattern, "by keyword")
            if argument.tensors or argument.given is not None:
                raise self._incomplete(name, pattern)

    def _incomplete(self, name: str, pattern: CallPattern, how: str = "") -> NotOneProgramError:
        has = [self.signature.name_of(argument.key) for argument in self.best.bound.all]
        return NotOneProgramError(
            f"At least one call to the observed model must contain all the named arguments: "
            f"{pattern.label} has {name}{' ' + how if how else ''}, and {self.best.label}, "
            f"which has the most tensors, has only {', '.join(has) or 'none'}",
            remedy=f"give value_if_missing={{{name!r}: an empty tensor}}, or make calls in one way",
        )

    def check(self, pattern: CallPattern) -> None:
        """Raises InferenceError if a call is none of this program: one that raised may be any."""
        self.check_structure(pattern)
        self._check_constants(pattern)

    def check_structure(self, pattern: CallPattern) -> None:
        """Raises InferenceError if an argument has other parts than in the other calls."""
        arguments = self._in_best_order(pattern)
        for argument, (reference, source) in zip(arguments, self.references, strict=True):
            if argument is None or argument is reference:
                continue
            if not reference.tensors:
                self._check_nothing(argument, reference, pattern)
                continue
            if not argument.tensors:
                self.has_late |= not is_empty(argument.node)
                continue
            if is_partial(argument, reference):
                self.has_late = True
                continue
            if len(argument.slots) != len(reference.slots):
                raise NotOneProgramError(
                    f"{_called(argument, reference)} has {counted(len(argument.slots), 'tensor')} "
                    f"in {pattern.label} but previously got "
                    f"{counted(len(reference.slots), 'tensor')} in {source.label}; inference is "
                    f"impossible in that case"
                )
            if mapping_keys(argument.form) != mapping_keys(reference.form):
                raise NotOneProgramError(
                    f"{_called(argument, reference)} has other keys in {pattern.label} than in "
                    f"{source.label}"
                )

    def _check_nothing(self, argument: Argument, reference: Argument, pattern: CallPattern) -> None:
        """Checks an argument that has no tensor in any of the calls. The caller's own arguments,
        and calls that raised, may have tensors there."""
        if argument.tensors and len(argument.slots) != len(reference.slots):
            raise InferenceError(
                f"{_called(argument, reference)} has {counted(argument.tensors, 'tensor')} in "
                f"{pattern.label} and none in the other calls",
                advice="record a call that passes them",
            )


def is_partial(argument: Argument, reference: Argument) -> bool:
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
    by_leaf: dict[int, str] = {}
    for path, found in _tensor_nodes(node, ""):
        by_leaf.setdefault(found.leaf, path)
    own = [None if slot.leaf is None else by_leaf.get(slot.leaf) for slot in argument.slots]
    complete = [path for path in own if path is not None]
    return complete if len(complete) == len(own) == len(set(complete)) else None


def _tensor_nodes(node: Node, path: str) -> Iterator[tuple[str, TensorNode]]:
    if isinstance(node, TensorNode):
        yield path, node
        return
    names: Sequence[Any] = range(len(children_of(node)))
    if isinstance(node, FieldsNode):
        names = node.fields
    elif isinstance(node, DictNode):
        names = node.keys
    for name, child in zip(names, children_of(node), strict=True):
        yield from _tensor_nodes(child, f"{path}.{name!s}")


def _called(argument: Argument, reference: Argument) -> str:
    key = reference.key
    return f"Named argument {key!r}" if isinstance(key, str) else f"Positional argument {key}"


def _leaves(argument: Argument | None, reference: Argument) -> list[AlignedLeaf | None]:
    """The tensors of an argument in the order of the reference's slots."""
    if argument is None or not argument.tensors:
        return [None] * len(reference.slots)
    if is_partial(argument, reference):
        have = dict(zip(_attribute_paths(argument) or (), argument.slots, strict=True))
        return [_leaf_in(argument, have.get(path)) for path in _attribute_paths(reference) or ()]
    by_path = {slot.path: _leaf_in(argument, slot) for slot in argument.slots}
    paths = [slot.path for slot in reference.slots]
    if by_path.keys() == set(paths):
        # Two calls may have inserted the keys of a dict in different order.
        return [by_path[path] for path in paths]
    return list(by_path.values())


def _leaf_in(argument: Argument, slot: Slot | None) -> AlignedLeaf | None:
    return None if slot is None or slot.leaf is None else AlignedLeaf(argument, slot.leaf)


def _shown_all(constants: Sequence[tuple[str, Any]]) -> str:
    """Constants for people; a text that does not look like a name is not shown."""
    return f"{{{', '.join(f'{name!r}: {shown_constant(value)}' for name, value in constants)}}}"
