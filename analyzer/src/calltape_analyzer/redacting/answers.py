"""What the analysis says of a tape, as typed facts that have no names.

A tensor or a scalar is the number that it has in the first call of its variant, and a variant is
that call: redaction keeps both. So two tapes are compared without a look at keys and sentences,
which are made of these facts. In come two tapes, and what was replaced in the second. Out goes
where their shapes or variants differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from calltape_analyzer.inference.findings import ArgumentFinding, Nesting, ShapeFindings
from calltape_analyzer.observing.columns import Column
from calltape_analyzer.observing.fixed_values import structure_values
from calltape_analyzer.observing.sizes_seen import MAX_SIZES_SHOWN
from calltape_analyzer.plain_data import plain
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.tape import Tape
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.row_conditions import CounterIs, Fixed
from calltape_analyzer.variants.symbols import Relation, Symbol
from calltape_schema.errors import TapeError

__all__ = ["Answers", "Comparison", "Question", "apart", "difference"]


class Question(NamedTuple):
    """What is compared.

    Attributes:
        about: ``shapes``, ``variants``, ``variant``, ``symbols``, ``tensor`` or ``scalar``.
        first: the number of the first call of the variant; None for all of the tape.
        number: of the tensor or scalar.
    """

    about: str
    first: int | None = None
    number: int | None = None


class Answers:
    """What the analysis says of a tape. It is asked once.

    Attributes:
        variants: none if the question is an error.
        errors: for each question that is one, its class.
        shapes: of all calls as one program.
    """

    def __init__(self, tape: Tape) -> None:
        self.errors: dict[str, str] = {}
        self.variants: list[Variant] = self._asked("variants", tape.variants) or []
        self.shapes: ShapeFindings | None = self._asked("shapes", tape.shape_findings)
        for number, one in enumerate(self.variants):
            self._asked(f"shapes of variant {number}", one.shape_findings)

    def _asked(self, question: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except TapeError as error:
            self.errors[question] = f"{type(error).__name__}: {error.kind}"
            return None


class Comparison:
    """How two tapes are compared.

    Args:
        pseudonyms: of the second tape.
        replaced: the places of numbers that they stand for, as the first tape names them.
        kept: whether the value at a place of the first tape was kept.
        ranges: whether ranges of elements are to be the same.
    """

    def __init__(
        self, pseudonyms: Pseudonyms, replaced: Collection[str], kept: Callable[[str], bool],
        *, ranges: bool,
    ) -> None:  # fmt: skip
        self._pseudonyms = pseudonyms
        self._replaced = replaced
        self._kept = kept
        self._ranges = ranges
        self._hidden: dict[int, frozenset[int]] = {}
        self._names: dict[Question, str] = {}

    def answers(self, said: Answers, *, is_new: bool) -> dict[Question, Any]:
        """What is said of a tape, so that it can be compared. The first one comes first.

        Args:
            said: of one of the two.
            is_new: whether it is the redacted one.
        """
        found: dict[Question, Any] = {}
        for variant in said.variants:
            first = variant.facts.every.first.number
            if not is_new:
                self._note_names(first, variant)
            found.update(self._of_variant(first, variant, is_new))
        found[Question("variants")] = sorted(said.errors.items()), len(said.variants)
        found[Question("shapes")] = None if said.shapes is None else _shapes(said.shapes)
        return found

    def in_words(self, question: Question) -> str:
        """A question with the names of the old tape."""
        name = self._names.get(question, "")
        return name if question.about == "variant" else f"{question.about} {name}".rstrip()

    def _note_names(self, first: int, variant: Variant) -> None:
        layout = variant.facts.group.layout
        hidden = (place.number for place in layout.scalars if str(place) in self._replaced)
        self._hidden[first] = frozenset(hidden)
        self._names[Question("variant", first)] = variant.facts.public_name
        self._names[Question("symbols", first)] = f"of {variant.facts.public_name}"
        for about, places in (("tensor", layout.tensors), ("scalar", layout.scalars)):
            for place in places:
                self._names[Question(about, first, place.number)] = str(place)

    def _of_variant(
        self, first: int, variant: Variant, is_new: bool
    ) -> Iterator[tuple[Question, Any]]:
        facts, findings = variant.facts, variant.findings
        layout, group = facts.group.layout, facts.group
        hidden = self._hidden.get(first, frozenset[int]())

        def at(column: Column) -> tuple[int, int]:
            """The number of a scalar and -1, or that of a tensor and the axis."""
            return layout.path(column).number, -1 if column.axis is None else column.axis

        def is_hidden(column: Column) -> bool:
            return column.is_int and layout.path(column).number in hidden

        def decided(column: Column) -> Any:
            found, counted = facts.dimensions[column], facts.counted.get(column)
            if is_hidden(column):
                return found.dynamic, found.reason
            return (
                found.dynamic, found.reason, facts.every.span(column),
                counted and (counted.values, counted.calls, len(counted.shared_with)),
            )  # fmt: skip

        def sizes(symbol: Symbol) -> Any:
            shown = next((one for one in symbol.columns if not is_hidden(one)), None)
            if shown is None:
                return None
            seen = sorted(facts.every.sizes(shown).items())
            return len(seen), [
                (size, one.calls, one.first.number) for size, one in islice(seen, MAX_SIZES_SHOWN)
            ]

        for number, (place, one) in enumerate(zip(layout.tensors, findings.tensors, strict=True)):
            columns = group.dimensions(number)
            yield Question("tensor", first, place.number), (
                group.facts[number], [decided(column) for column in columns], one.layouts,
                group.devices[number : number + 1], one.range if self._ranges else None,
            )  # fmt: skip
        counting = {column: at(other) for column, other in facts.counting_ints.items()}
        for column in layout.int_columns:
            place = layout.path(column)
            found = decided(column), counting.get(column)
            yield Question("scalar", first, place.number), found
        for place in group.varying:
            yield Question("scalar", first, place.number), ("varies", place.kind)
        for place, value in group.fixed():
            shown = None if place.number in hidden else value
            if not is_new and not self._kept(str(place)):
                shown = self._pseudonym(shown)
            yield Question("scalar", first, place.number), plain(shown)
        columns_of = [tuple(sorted(map(at, symbol.columns))) for symbol in facts.symbols]
        symbols = [
            (columns, _relation(one.relation, columns_of), sizes(one), one.ambiguous, one.capped)
            for columns, one in zip(columns_of, facts.symbols, strict=True)
        ]
        yield Question("symbols", first), sorted(symbols)
        yield Question("variant", first), (
            findings.calls, findings.all_calls, findings.context, facts.capped, layout.positional,
            # What is listed follows the order of keys.
            [place.number for place in (*layout.tensors, *layout.scalars)],
            sorted(_condition(one, at) for one in facts.conditions),
            Counter((one.kind, one.text) for one in structure_values(layout)), group.key.shared,
        )  # fmt: skip

    def _pseudonym(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._pseudonyms.text(value)
        return self._pseudonyms.data(value) if isinstance(value, bytes) else value


def difference(before: Mapping[Question, Any], after: Mapping[Question, Any]) -> Question | None:
    """The first question that two tapes answer differently; None if there is none."""
    names = dict.fromkeys((*before, *after))
    return next((name for name in names if before.get(name) != after.get(name)), None)


def apart(before: Any, after: Any) -> Any:
    """The parts in which two answers differ, which are as deep as they go."""
    is_same_form = isinstance(before, list | tuple) and isinstance(after, list | tuple)
    if not is_same_form or len(before) != len(after):
        return before, after
    pairs = enumerate(zip(before, after, strict=True))
    return {number: apart(one, other) for number, (one, other) in pairs if one != other}


def _shapes(found: ShapeFindings) -> Any:
    return (
        found.calls, found.as_tuple, found.variadic and found.variadic[1],
        found.extra and len(found.extra[1]), found.representative,
        sorted(((one.passed, _nested(one, one.nesting)) for one in found.arguments), key=repr),
    )  # fmt: skip


def _nested(argument: ArgumentFinding, nesting: Nesting) -> Any:
    """An argument without names. The entries of a dict have no order here."""
    leaf = None if nesting.leaf is None else argument.leaves[nesting.leaf]
    axes = [
        (one.dynamic, one.reason, one.distinct, one.whole, one.sizes)
        for one in (() if leaf is None else leaf.axes)
    ]
    children = [_nested(argument, one) for one in nesting.children]
    if nesting.kind == "dict":
        children.sort(key=repr)
    told = leaf and (leaf.dtype, leaf.calls, leaf.missing)
    return nesting.kind, nesting.type, told, axes, children


def _relation(relation: Relation | None, columns_of: list[tuple[tuple[int, int], ...]]) -> Hashable:
    if relation is None:
        return ()
    return tuple(sorted((factor, columns_of[i]) for factor, i in relation.terms)), relation.constant


def _condition(one: Any, at: Callable[[Column], tuple[int, int]]) -> tuple[Any, ...]:
    if isinstance(one, Fixed):
        return at(one.column), one.value, one.negated
    assert isinstance(one, CounterIs)
    return at(one.counter), *at(one.keys), one.open
