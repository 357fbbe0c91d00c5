"""Plain numbers that look like data, and those among them that the analysis needs.

The number of a customer is an int, and so is a number of tokens. In comes a tape. Out go the places
whose numbers are replaced, and the places where they stay: there they follow from sizes, or sizes
from them, so that shapes, variants and explanations would be others without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from calltape_analyzer.editing.withholding import names_of_path
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.traffic_counters import Values
from calltape_analyzer.redacting.placed_nodes import placed_nodes
from calltape_analyzer.redacting.treatment import Treatments
from calltape_analyzer.tape import Tape
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.errors import TapeError
from calltape_schema.privacy import is_setting
from calltape_schema.tree import Node, ScalarNode, Structure

__all__ = ["LongNumbers", "is_long", "long_numbers"]

_MAX_KNOWN = 1024


class LongNumbers(NamedTuple):
    """The places of numbers, as the analysis names them.

    Attributes:
        replaced: those of which any is no setting, where the analysis does not need them.
        needed: likewise, where it does.
        asked: where the analysis needs numbers that somebody asked to replace, or that are data
            because they are in a long list.
        listed: likewise replaced, because another call has a long list there.
    """

    replaced: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()

    def all_needed(self) -> LongNumbers:
        """The same if no number is to be replaced."""
        return self._replace(replaced=frozenset(), needed=self.replaced | self.needed)


def long_numbers(tape: Tape, treatments: Treatments) -> LongNumbers:
    """The numbers of a tape that look like data, and those that are to be replaced.

    Raises:
        TapeError: the tape cannot be read.
    """
    places = _Places(tape, treatments)
    free = places.long | places.asked
    if not free:
        return LongNumbers()
    try:
        variants = tape.variants()
    except (InferenceError, TapeError):  # then the analysis needs none
        variants = []
    needed: set[str] = set()
    while True:
        more = {one for variant in variants for one in _needed(variant.facts, free - needed)}
        if not more:
            break
        needed |= more
    return LongNumbers(
        frozenset(places.long - needed - places.asked),
        frozenset(places.long & needed - places.asked),
        frozenset(places.asked & needed),
        frozenset(places.long & places.asked - needed),
    )


def is_long(value: Any) -> bool:
    """Whether a number, or a complex one as it stands on a tape, looks like data."""
    return not all(map(is_setting, value if isinstance(value, tuple) else (value,)))


class _Places:
    """Walks over a tape once.

    Attributes:
        long: the places of numbers that look like data in any call, and nobody asked for.
        asked: the places of numbers that are to be replaced in any case.
    """

    def __init__(self, tape: Tape, treatments: Treatments) -> None:
        self._signature, self._treatments = tape.signature, treatments
        defaults = (one.default for one in tape.signature.parameters)
        self._code = {(type(one), one) for one in defaults if type(one) in (int, float)}
        self._by_structure: dict[bytes, list[tuple[int, str]]] = {}
        self.long: set[str] = set()
        self.asked: set[str] = set()
        for call in tape.calls:
            try:
                tree = call.record.inputs
                for scalar, name in self._numbers(tree.structure, tree.spec()):
                    value = tree.scalars[scalar]
                    if name not in self.long and is_long(value) and not self._is_code(value):
                        self.long.add(name)
            except TapeError:
                continue  # it stands in the tape's damage
        for group in tape.counters.groups.values():
            for scalar, name in self._numbers(group.kind.structure, group.spec):
                values = group.scalars[scalar]
                if values is not None and self._are_long(values):
                    self.long.add(name)

    def _are_long(self, values: Values) -> bool:
        """Whether any of the values that were counted is no setting."""
        every = {values.min, values.max, *values.sizes}
        return any(is_long(one) and (values.other_calls or not self._is_code(one)) for one in every)

    def _is_code(self, value: Any) -> bool:
        """Whether a number is the default of a parameter."""
        return (type(value), value) in self._code

    def _numbers(self, structure: bytes, spec: Structure) -> list[tuple[int, str]]:
        """The plain numbers of a tree: where each stands among its scalars, and its place."""
        found = self._by_structure.get(structure)
        if found is None:
            if len(self._by_structure) >= _MAX_KNOWN:
                self._by_structure.clear()
            found = self._by_structure[structure] = list(self._named(spec.root))
        return found

    def _named(self, root: Node) -> Iterator[tuple[int, str]]:
        for placed in placed_nodes(root):
            node = placed.node
            if not isinstance(node, ScalarNode) or node.kind in ("str", "bytes"):
                continue
            treatment = self._treatments.of(placed.path)
            name = list(names_of_path(placed.path, self._signature))[-1]
            if treatment is not None and treatment.way == "keep":
                continue
            is_named = treatment is not None and treatment.names_one
            if is_named or placed.in_list:
                if treatment is None or treatment.way != "shapes_only":
                    self.asked.add(name)
            elif not placed.in_cache:
                yield node.scalar, name


def _needed(facts: VariantFacts, free: Collection[str]) -> Iterator[str]:
    """The places among some that are related to others, as this variant has it: ints that always
    equal a size or an int that stays, from which a size follows, or that follow from one."""
    layout = facts.group.layout
    related = {i for i, symbol in enumerate(facts.symbols) if symbol.relation is not None}
    related.update(i for j in list(related) for _, i in _terms(facts, j))
    for number, symbol in enumerate(facts.symbols):
        names = [layout.column_name(column) for column in symbol.columns if column.is_int]
        own = [name for name in names if name in free]
        if number in related or len(own) < len(symbol.columns):
            yield from own
    for column in facts.counting_ints:
        if layout.column_name(column) in free:
            yield layout.column_name(column)


def _terms(facts: VariantFacts, number: int) -> Iterator[tuple[int, int]]:
    relation = facts.symbols[number].relation
    yield from relation.terms if relation is not None else ()
