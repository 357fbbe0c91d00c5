"""From the calls of a tape to observations. Reads records, never tensor bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from calltape_analyzer.binding import Signature
from calltape_analyzer.call import Calls
from calltape_analyzer.layout import Layout, Place, Renamed, layout_of_inputs, likeness_of
from calltape_analyzer.observations import Group, Key, Observations, Row, TensorFacts
from calltape_analyzer.switches import shown_constant
from calltape_analyzer.tallies import Seen, Span
from calltape_schema.leaves import Leaf
from calltape_schema.records import Tree
from calltape_schema.tree import Node, ScalarNode, children_of

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["Gatherer", "Sorted", "difference_of"]


_MAX_TEXT = 1024


class Sorted(NamedTuple):
    """A call's group (by its key) and row."""

    key: Key
    layout: Layout
    facts: tuple[TensorFacts, ...]
    constants: tuple[Any, ...]
    row: Row
    leaves: tuple[Leaf, ...]
    signature: Signature

    def likeness(self) -> Hashable:
        """Equal for calls that counters of the whole traffic cannot tell apart."""
        facts = tuple((fact.dtype, fact.rank) for fact in self.facts)
        return likeness_of(self.layout, facts, self.signature)


class Gatherer:
    """Sorts calls into groups, looking at each combination of structure, leaves and scalars once.

    Args:
        signature: of the recorded method.
        renamed: from a class name on the tape to the name that it has here.
    """

    def __init__(self, signature: Signature, renamed: Renamed = str) -> None:
        self.signature = signature
        self.renamed = renamed
        self._layouts: dict[Hashable, Layout] = {}
        self._switches: dict[bytes, tuple[tuple[int, Any], ...]] = {}

    @classmethod
    def of(cls, tape: Tape, renamed: Renamed | None = None) -> Gatherer:
        """The one way in which calls of a tape are laid out: without the arguments that
        :meth:`Tape.remove_inputs` took out.

        Args:
            tape: lends its signature and, by default, its classes.
            renamed: as above.
        """
        return cls(tape.signature, renamed or tape.class_index.renamed)

    def observations(self, calls: Calls, *, ranges: bool = False) -> Observations:
        """What was seen in the calls.

        Args:
            calls: of one or more tapes.
            ranges: whether the ranges of integer tensors are collected too, which needs a look at
                every record; without, at one of each combination of structure, leaves and scalars.

        Raises:
            TapeError: a call's record breaks the format.
        """
        returned, raised = Observations(of_raised=False), Observations()
        found = ((call, 1) for call in calls) if ranges else calls.by_inputs()
        for call, count in found:
            into = returned if call.record.error is None else raised
            placed = self.sorted(call.record.inputs)
            group = _added(into, placed, Seen(count, call.ref))
            _add_ranges(group, placed, call.record.inputs)
        if returned.groups:
            returned.raised = raised.calls
            return returned
        raised.raised = raised.calls
        return raised

    def sorted(self, tree: Tree) -> Sorted:
        """Group and row of a call with these inputs."""
        return self.placed(self._layout(tree), tree.facts(), tree.scalars)

    def placed(self, layout: Layout, leaves: Sequence[Leaf], scalars: Sequence[Any]) -> Sorted:
        """Group and row of a layout with these leaves and scalars."""
        own = tuple(leaves[place.number] for place in layout.tensors)
        facts = tuple(map(TensorFacts.of, own))
        others = [place for place in layout.scalars if place.kind != "int"]
        constants = tuple(scalars[place.number] for place in others)
        told: dict[int, tuple[str, str]] = {}  # many places may share one long text
        typed = tuple(
            told.get(place.number) or told.setdefault(place.number, _typed(value))
            for place, value in zip(others, constants, strict=True)
            if not place.private
        )
        ints = tuple(scalars[place.number] for place in layout.scalars if place.kind == "int")
        row = Row(tuple(leaf.shape for leaf in own), ints)
        return Sorted(
            Key(layout.keys, facts, typed), layout, facts, constants, row, own, self.signature
        )

    def _layout(self, tree: Tree) -> Layout:
        # Of the scalars only those that equal a default decide the layout.
        switches = self._switches.get(tree.structure)
        if switches is None:
            switches = _switches(tree.spec().root, self.signature)
            self._switches[tree.structure] = switches
        on = tuple(_is_same(tree.scalars[index], default) for index, default in switches)
        found = self._layouts.get((tree.structure, on))
        if found is None:
            root = tree.spec().root
            found = layout_of_inputs(root, tree.scalars, self.signature, self.renamed)
            self._layouts[tree.structure, on] = found
        return found


def _typed(value: Any) -> tuple[str, str]:
    """Equal for equal values, and no longer than a few hundred characters."""
    kind = type(value).__name__
    if not isinstance(value, (str, bytes)) or len(value) <= _MAX_TEXT:
        return kind, repr(value)
    data = value if isinstance(value, bytes) else value.encode(errors="surrogatepass")
    return kind, f"{value[:_MAX_TEXT]!r} {hashlib.blake2b(data).hexdigest()}"


def difference_of(group: Group, placed: Sorted) -> str:
    """In what a call is not one of a group."""
    ours, theirs = dict(group.layout.keys), dict(placed.layout.keys)
    for name in ours.keys() - theirs.keys():
        return f"{name} is missing"
    for name in theirs.keys() - ours.keys():
        return f"{name} is not expected"
    for name, key in ours.items():
        if theirs[name] != key:
            return f"{name} has another structure"
    for place, known, facts in zip(group.layout.tensors, group.facts, placed.facts, strict=False):
        if known != facts:
            return (
                f"{place} is {facts.dtype} of rank {facts.rank}, not {known.dtype} of {known.rank}"
            )
    given = dict(zip(group.others, placed.constants, strict=False))
    for place, known in group.fixed():
        if _typed(known) != _typed(given.get(place)):
            return _other_value(place, known, given.get(place))
    return "another structure"


def _other_value(place: Place, known: Any, value: Any) -> str:
    shown, usual = shown_constant(value), shown_constant(known)
    return f"{place} is {shown}, not {usual if usual != shown else 'the recorded one'}"


def _switches(root: Node, signature: Signature) -> tuple[tuple[int, Any], ...]:
    """The scalars among the arguments whose parameter has a scalar default, with that default."""
    args, kwargs = children_of(root)
    named = [(signature.complete.name_at(i), node) for i, node in enumerate(args.children)]
    named += zip(kwargs.keys, kwargs.children, strict=True)
    return tuple(
        (node.scalar, parameter.default)
        for name, node in named
        if isinstance(node, ScalarNode)
        and (parameter := signature.by_name.get(name)) is not None
        and parameter.has_default
    )


def _is_same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _added(to: Observations, placed: Sorted, seen: Seen) -> Group:
    to.calls += seen.calls
    group = to.group_of(placed.key, placed, seen.first)
    group.add(placed.row, placed.leaves, seen)
    return group


def _add_ranges(group: Group, placed: Sorted, tree: Tree) -> None:
    by_leaf = {found.leaf: Span(found.min, found.max) for found in tree.ranges}
    for i, place in enumerate(placed.layout.tensors):
        if place.number in by_leaf:
            group.spans(i, by_leaf[place.number])
