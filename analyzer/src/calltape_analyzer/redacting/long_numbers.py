"""Plain numbers that look like data, and those among them that the analysis needs.

The number of a customer is an int, and so is a number of tokens. In comes a tape. Out go the places
whose numbers are replaced; the places where they stay, because they follow from sizes, or sizes
from them, so that shapes, variants and explanations would be others without them; and the places
where nothing stays: numbers that follow from each other or from other ints, and from no size, as
the numbers of customers and of their orders may. No others would follow in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from calltape_analyzer.editing.withholding import names_of_path
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.traffic_counters import Values
from calltape_analyzer.pytree.placed_nodes import placed_nodes
from calltape_analyzer.redacting.treatment import Treatments
from calltape_analyzer.tape import Tape
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol
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
        needed_lists: where the analysis needs numbers of long lists, which are data.
        listed: likewise replaced, because another call has a long list there.
        apart: those that follow from each other or from other ints, and from no size: nothing of
            them stays.
        unwanted: those of which nothing is to stay, by a pattern with wildcards.
    """

    replaced: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    needed_lists: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()
    unwanted: frozenset[str] = frozenset()

    @property
    def withheld(self) -> frozenset[str]:
        """All of which nothing stays."""
        return self.apart | self.unwanted

    def all_needed(self) -> LongNumbers:
        """The same if no number is to be replaced."""
        return self._replace(replaced=frozenset(), needed=self.replaced | self.needed)


def long_numbers(tape: Tape, treatments: Treatments) -> LongNumbers:
    """The numbers of a tape that look like data, and those that are to be replaced.

    Raises:
        TapeError: the tape cannot be read.
    """
    places = _Places(tape, treatments)
    long = places.long - places.unwanted
    free = long | places.listed
    if not free:
        return LongNumbers(unwanted=frozenset(places.unwanted))
    try:
        variants = [variant.facts for variant in tape.variants()]
    except (InferenceError, TapeError):  # then the analysis needs none
        variants = []
    needed = {one for facts in variants for one in _needed(facts, free)}
    apart = {one for facts in variants for one in _apart(facts, free - needed)}
    rest = long - apart
    return LongNumbers(
        frozenset(rest - needed - places.listed),
        frozenset(rest & needed - places.listed),
        frozenset(places.listed & needed),
        frozenset(rest & places.listed - needed),
        frozenset(apart),
        frozenset(places.unwanted),
    )


def is_long(value: Any) -> bool:
    """Whether a number, or a complex one as it stands on a tape, looks like data."""
    return not all(map(is_setting, value if isinstance(value, tuple) else (value,)))


class _Places:
    """Walks over a tape once.

    Attributes:
        long: the places of numbers that look like data in any call.
        listed: the places of numbers in long lists, which are data in any case.
        unwanted: those of ``long`` of which nothing is to stay.
    """

    def __init__(self, tape: Tape, treatments: Treatments) -> None:
        self._signature, self._treatments = tape.signature, treatments
        defaults = (one.default for one in tape.signature.parameters)
        self._code = {(type(one), one) for one in defaults if type(one) in (int, float)}
        self._by_structure: dict[bytes, list[tuple[int, str]]] = {}
        self.long: set[str] = set()
        self.listed: set[str] = set()
        self.unwanted: set[str] = set()
        self._unwanted_if_long: set[str] = set()
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
        self.unwanted = self.long & self._unwanted_if_long

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
        for placed in placed_nodes(root, named=self._signature.positional):
            node = placed.node
            if not isinstance(node, ScalarNode) or node.kind in ("str", "bytes"):
                continue
            treatment = self._treatments.of(placed.path)
            name = list(names_of_path(placed.path, self._signature))[-1]
            if treatment is not None and treatment.way == "keep":
                continue
            if placed.in_list:
                if treatment is None:
                    self.listed.add(name)
            elif not placed.in_cache and (treatment is None or not treatment.names_one):
                if treatment is not None:
                    self._unwanted_if_long.add(name)
                yield node.scalar, name


def _needed(facts: VariantFacts, free: Collection[str]) -> Iterator[str]:
    """The places among some that have to do with sizes, as this variant has it: ints that always
    equal a size, from which a size follows, or that follow from one, be it by way of other ints."""
    for symbols in _related(facts):
        if not _are_ints(symbols):
            yield from (name for name in _names(facts, symbols) if name in free)
    for column in facts.counting_ints:
        if facts.group.layout.column_name(column) in free:
            yield facts.group.layout.column_name(column)


def _apart(facts: VariantFacts, free: Collection[str]) -> Iterator[str]:
    """The places among some whose numbers equal ints that stay, or follow from others, where no
    size has to do with them."""
    for symbols in _related(facts):
        names = _names(facts, symbols)
        own = [name for name in names if name in free]
        if _are_ints(symbols) and (len(symbols) > 1 or len(own) < len(names)):
            yield from own


def _are_ints(symbols: Iterable[Symbol]) -> bool:
    return all(column.is_int for symbol in symbols for column in symbol.columns)


def _names(facts: VariantFacts, symbols: Iterable[Symbol]) -> list[str]:
    columns = (column for symbol in symbols for column in symbol.columns if column.is_int)
    return [facts.group.layout.column_name(column) for column in columns]


def _related(facts: VariantFacts) -> Iterator[list[Symbol]]:
    """The symbols of a variant, those that are related to each other together."""
    together = [{number} for number in range(len(facts.symbols))]
    for number, symbol in enumerate(facts.symbols):
        for _, other in symbol.relation.terms if symbol.relation is not None else ():
            few, many = sorted((together[number], together[other]), key=len)
            if few is not many:
                many |= few
                for one in few:
                    together[one] = many
    for found in {id(one): one for one in together}.values():
        yield [facts.symbols[one] for one in sorted(found)]
