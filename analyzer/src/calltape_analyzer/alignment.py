"""Which argument of one call is which of another's.

The call with the most leaves (the first of them) sets the order and the calling convention, as in
``torch.onnx.InputObserver``; every other call is laid beside it, slot by slot, with gaps where it
has no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from calltape_analyzer.binding import Argument, Bound, Key, Signature
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.flattening import is_empty, mapping_keys
from calltape_analyzer.patterns import Pattern
from calltape_schema.tree import DictNode, FieldsNode, Node, TensorNode, children_of

__all__ = ["Alignment", "Cell", "Row"]

Cell: TypeAlias = "tuple[Argument, int] | None"
"""Where the tensor of a slot is: an argument and its leaf; None where the call has none."""

Row: TypeAlias = "tuple[Cell, ...]"

_SPLIT = (
    "record the two kinds of call on tapes of their own, or leave an input out with "
    "Tape.remove_inputs"
)


@dataclass
class Alignment:
    """All patterns laid beside the best one.

    Attributes:
        best: the pattern with the most leaves.
        references: per argument of the best pattern, the argument that shows its structure: its
            own, or the first that has more tensors; with the pattern it is of.
        has_late: whether some call passed, instead of leaving it out, an object that has no
            tensors yet, or not all, and has them in other calls (a cache before the first call).
        notes: what was decided on the way.
    """

    signature: Signature
    best: Pattern
    bind_keywords: bool = True
    references: list[tuple[Argument, Pattern]] = field(default_factory=list)
    has_late: bool = False
    notes: list[str] = field(default_factory=list)
    _rows: dict[Bound, Row] = field(default_factory=dict)
    _layouts: dict[Bound, list[Argument | None]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, patterns: Sequence[Pattern], signature: Signature, *, bind_keywords: bool = True
    ) -> Alignment:
        """Aligns patterns.

        Args:
            patterns: in the order of their first call; at least one.
            signature: of the recorded method.
            bind_keywords: whether a keyword argument may stand for one that the best pattern passes
                by position. ``torch.onnx.InputObserver`` refuses that.

        Raises:
            InferenceError: the calls are not calls of one program; says which differ in what.
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
        """The names of the best pattern's arguments, however it passes them."""
        return frozenset(self.signature.name_of(key) for key in self.keys)

    def row(self, pattern: Pattern) -> Row:
        """The tensors of a pattern, slot by slot.

        Raises:
            InferenceError: it does not align.
        """
        key = pattern.bound
        if key not in self._rows:
            layout = self._layout(pattern)
            cells: list[Cell] = []
            for argument, (reference, _) in zip(layout, self.references, strict=True):
                cells += _cells(argument, reference)
            self._rows[key] = tuple(cells)
        return self._rows[key]

    def needed(self, pattern: Pattern) -> Row:
        """The row without the slots that have no tensor in any call."""
        shown = [slot for argument, _ in self.references for slot in argument.slots]
        row = self.row(pattern)
        return tuple(c for c, slot in zip(row, shown, strict=True) if slot.leaf is not None)

    def _find_references(self, patterns: Sequence[Pattern]) -> None:
        found = [(argument, self.best) for argument in self.best.bound.all]
        for pattern in patterns:
            for i, argument in enumerate(self._layout(pattern)):
                known = found[i][0]
                # Another structure is reported below, and shows nothing.
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

    def _check_constants(self, pattern: Pattern) -> None:
        ours, theirs = dict(self.best.inner), dict(pattern.inner)
        both = ours.keys() & theirs.keys()
        differ = {key for key in both if ours[key] != theirs[key]}
        if differ:
            name = min(differ)
            raise InferenceError(
                f"Two calls were made with different constant values, {name}={ours[name]!r} in "
                f"{self.best.label} and {name}={theirs[name]!r} in {pattern.label}",
                advice=_SPLIT,
            )
        if dict(pattern.constants) != dict(self.best.constants):
            raise InferenceError(
                f"Two calls were made with different constant values, "
                f"{dict(self.best.constants)} in {self.best.label} and "
                f"{dict(pattern.constants)} in {pattern.label}",
                advice=_SPLIT,
            )

    def _layout(self, pattern: Pattern) -> list[Argument | None]:
        """The arguments of a pattern in the order of the best pattern's."""
        key = pattern.bound
        if key not in self._layouts:
            self._layouts[key] = list(self._laid_out(pattern))
        return self._layouts[key]

    def _laid_out(self, pattern: Pattern) -> Iterator[Argument | None]:
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

    def _move(self, argument: Argument, named: dict[str, Argument], pattern: Pattern) -> None:
        """A positional argument beyond those of the best call goes by its name."""
        name = self.signature.name_at(int(argument.key))
        variadic = self.signature.variadic_positional
        if variadic is not None and int(argument.key) >= variadic[1]:
            raise self._incomplete(f"*{variadic[0]}", pattern)
        if name in self.best.bound.kwargs:
            named.setdefault(name, argument)
        elif argument.tensors:
            # The contract: InputObserver leaves it out without a word.
            self.notes.append(
                f"{name} of {pattern.label} is left out: {self.best.label}, which has "
                f"the most tensors, does not have it"
            )

    def _check_names(self, named: dict[str, Argument], pattern: Pattern) -> None:
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

    def _incomplete(self, name: str, pattern: Pattern, how: str = "") -> InferenceError:
        has = [str(argument.key) for argument in self.best.bound.all]
        return InferenceError(
            f"At least one call to the observed model must contain all the named arguments: "
            f"{pattern.label} has {name}{' ' + how if how else ''}, and {self.best.label}, "
            f"which has the most tensors, has only {', '.join(has) or 'none'}",
            advice=f"give value_if_missing={{{name!r}: an empty tensor}}, or make calls in one way",
        )

    def check_structure(self, pattern: Pattern) -> None:
        """Raises InferenceError where an argument has other parts than in the other calls."""
        layout = self._layout(pattern)
        for argument, (reference, source) in zip(layout, self.references, strict=True):
            if argument is None or argument is reference:
                continue
            if not reference.tensors:
                self._check_nothing(argument, reference)
                continue
            if not argument.tensors:
                self.has_late |= not is_empty(argument.node)
                continue
            if is_partial(argument, reference):
                self.has_late = True
                continue
            if len(argument.slots) != len(reference.slots):
                raise InferenceError(
                    f"{_called(argument, reference)} has {len(argument.slots)} tensors in "
                    f"{pattern.label} but previously got {len(reference.slots)} tensors in "
                    f"{source.label}; inference is impossible in that case",
                    advice=_SPLIT,
                )
            if mapping_keys(argument.form) != mapping_keys(reference.form):
                raise InferenceError(
                    f"{_called(argument, reference)} has other keys in {pattern.label} than in "
                    f"{source.label}",
                    advice=_SPLIT,
                )

    def _check_nothing(self, argument: Argument, reference: Argument) -> None:
        """No recorded call has a tensor here; the caller's own arguments may."""
        if argument.tensors and len(argument.slots) != len(reference.slots):
            raise InferenceError(
                f"{_called(argument, reference)} has {argument.tensors} tensors in the given "
                f"arguments and none in the recorded calls",
                advice="record a call that passes them",
            )


def is_partial(argument: Argument, reference: Argument) -> bool:
    """Whether an argument is an object that will have the reference's tensors and has only some of
    them yet: a static cache makes its keys and values when it is first updated."""
    if not argument.tensors or len(argument.slots) >= len(reference.slots):
        return False
    ours, theirs = _places(argument), _places(reference)
    return ours is not None and theirs is not None and set(ours) < set(theirs)


def _places(argument: Argument) -> list[str] | None:
    """Where in its attributes an object has the tensor of each slot, however its class is
    registered; None for anything but an object, and where a slot has no tensor."""
    node = argument.node
    if not isinstance(node, FieldsNode) or node.kind != "object":
        return None
    places: dict[int, str] = {}
    for path, found in _tensor_nodes(node, ""):
        places.setdefault(found.leaf, path)
    own = [None if slot.leaf is None else places.get(slot.leaf) for slot in argument.slots]
    complete = [place for place in own if place is not None]
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


def _cells(argument: Argument | None, reference: Argument) -> list[Cell]:
    if argument is None or not argument.tensors:
        return [None] * len(reference.slots)
    if is_partial(argument, reference):
        have = dict(zip(_places(argument) or (), argument.slots, strict=True))
        found = [have.get(place) for place in _places(reference) or ()]
        return [
            None if slot is None or slot.leaf is None else (argument, slot.leaf) for slot in found
        ]
    cells: dict[str, Cell] = {}
    for slot in argument.slots:
        cells[slot.path] = (argument, slot.leaf) if slot.leaf is not None else None
    paths = [slot.path for slot in reference.slots]
    if cells.keys() == set(paths):
        # By path: two calls may have inserted the keys of a dict in different order.
        return [cells[path] for path in paths]
    return list(cells.values())
