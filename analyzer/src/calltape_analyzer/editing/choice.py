"""Selecting calls of a tape by time, outcome, sizes and novelty.

Records are decoded only if a condition needs them. Tensor bytes are never read. Python parses a
condition on sizes, such as ``sequence_length > 512 and batch_size == 1``, but evaluates nothing:
the syntax tree is translated into functions, and any node that is not listed is rejected.
"""

from __future__ import annotations

import ast
import operator
import re
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, pairwise
from typing import Annotated, Any, TypeAlias

from pydantic import Field, field_validator

from calltape_analyzer.errors import UsageError, is_damage
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.size_table import Column, value_in
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.plain_data import PlainData
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import pattern_of, some_of
from calltape_schema.affine_span import AffineSpan
from calltape_schema.bounds import MAX_COUNT
from calltape_schema.errors import TapeError
from calltape_schema.recent import Recent
from calltape_schema.records import CallRecord

__all__ = ["Choice", "ConditionSizes", "Expression", "select_calls"]

_MAX_TEXT = 1000
_MAX_NODES = 200
_MAX_BITS = 64
_ADVICE = "write it like `sequence_length > 512 and input_ids[0] == 1`"

# A whole name, such as `cache.layers.0.keys[2]`, and one part of it; group 1 is a position.
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.(?:\w+|\*)|\[[^\]]*\])+")
_PART = re.compile(r"\[[^\]]*\]|\.(\d+)(?!\w)")

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
# No powers: `9**9**9` would fill the memory.
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_
}  # fmt: skip


class Expression:
    """A condition.

    Args:
        text: comparisons of names, dimensions (``x[0]``) and numbers with ``== != < <= > >=``,
            joined by ``and``, ``or``, ``not``; sums, products, ``//`` and ``%`` of them. Names are
            written as calltape prints them (``cache.layers.0.keys[2]``); a key that is not an
            identifier is quoted (``cache["a-b"][1]``).

    Attributes:
        references: the sizes that the condition names, each with all its possible spellings, the
            likeliest first: ``x[0]`` is a dimension of ``x``, or the first element of a list.

    Raises:
        UsageError: the text is not such a condition.
    """

    def __init__(self, text: str) -> None:
        self.references: list[tuple[str, ...]] = []
        self._evaluate = _compiled(_parsed(text), self.references)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the condition is true of a call. As in SQL, a comparison is unknown if the call
        lacks one of its sizes, or if it divides by zero; so is ``not`` of it. ``or`` needs one true
        part, ``and`` all of them. An unknown condition does not hold.

        Args:
            sizes: the sizes of the call by name: symbols, dimensions and ints.
        """
        return bool(self._evaluate(sizes))


def _parsed(text: str) -> ast.expr:
    if len(text) > _MAX_TEXT:
        raise UsageError(f"a condition of {len(text)} characters (at most {_MAX_TEXT})")
    python = _NAME.sub(_with_brackets, text.strip())
    try:
        tree = ast.parse(python, mode="eval").body
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{text!r:.100} is not a condition", advice=_ADVICE) from None
    if len(nodes) > _MAX_NODES:
        raise UsageError(f"a condition of {len(nodes)} parts (at most {_MAX_NODES})")
    return tree


def _with_brackets(name: re.Match[str]) -> str:
    """A name with positions as Python writes them: ``xs[0]`` for ``xs.0``."""
    if ".*" in name[0] or "[*]" in name[0]:
        raise UsageError(
            f"{name[0]!r:.100} stands for several sizes",
            advice="name one of them, such as `cache.layers.0.keys[2]`",
        )
    return _PART.sub(lambda part: f"[{part[1]}]" if part[1] else part[0], name[0])


_Evaluate: TypeAlias = Callable[[Mapping[str, int]], Any]
"""Returns the value of an expression for the sizes of a call: a number or a bool; None if it is
unknown."""


def _compiled(node: ast.expr, references: list[tuple[str, ...]]) -> _Evaluate:
    """A function that evaluates a node. Adds the sizes that the node names to ``references``.

    Raises:
        UsageError: the node is not supported.
    """
    names = _names_of(node)
    if names:
        references.append(names)
        return lambda sizes: next((sizes[name] for name in names if name in sizes), None)
    if isinstance(node, ast.Constant) and (
        type(node.value) in (float, bool)
        or (type(node.value) is int and node.value.bit_length() <= _MAX_BITS)
    ):
        return lambda sizes: node.value
    if isinstance(node, ast.BoolOp):
        return _joined([_compiled(p, references) for p in node.values], type(node.op) is ast.Or)
    function: Callable[..., Any]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        function, operands = _SIGNS[type(node.op)], [node.operand]
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        function, operands = _ARITHMETIC[type(node.op)], [node.left, node.right]
    elif isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
        signs = [_COMPARISONS[type(op)] for op in node.ops]
        function, operands = partial(_compare, signs), [node.left, *node.comparators]
    else:
        source = ast.unparse(node)
        raise UsageError(f"{source!r:.100} cannot be part of a condition", advice=_ADVICE)
    parts = [_compiled(part, references) for part in operands]

    def applied(sizes: Mapping[str, int]) -> Any:
        values = [part(sizes) for part in parts]
        if None in values:
            return None
        try:
            return function(*values)
        except (ZeroDivisionError, OverflowError):
            return None

    return applied


def _joined(parts: list[_Evaluate], decisive: bool) -> _Evaluate:
    """Evaluates ``or``, which one true part decides, or ``and``, which one false part decides."""

    def joined(sizes: Mapping[str, int]) -> bool | None:
        values = [None if value is None else bool(value) for value in (p(sizes) for p in parts)]
        if decisive in values:
            return decisive
        return None if None in values else not decisive

    return joined


def _compare(signs: list[Callable[[Any, Any], bool]], *values: Any) -> bool:
    return all(sign(*pair) for sign, pair in zip(signs, pairwise(values), strict=True))


def _names_of(node: ast.expr) -> tuple[str, ...]:
    """The spellings of a name, an attribute or an element; empty for other nodes."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return tuple(f"{below}.{node.attr}" for below in _names_of(node.value)[-1:])
    if isinstance(node, ast.Subscript) and (index := _index(node.slice)) is not None:
        below = _names_of(node.value)[-1:]
        return tuple(text for name in below for text in (f"{name}[{index}]", f"{name}.{index}"))
    return ()


def _index(node: ast.expr) -> int | str | None:
    """An axis, a position, or a string key."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if not isinstance(node, ast.Constant):
        return None
    if type(node.value) is int and node.value.bit_length() <= _MAX_BITS:
        return sign * node.value
    return node.value if type(node.value) is str and sign == 1 else None


_MAX_NAMED = 20
# Bounds of what is remembered about earlier calls; the last call may exceed them. Beyond them every
# call counts as novel, so that no novel one is left out.
_MAX_PATTERNS = 65_536
MAX_NUMBERS = 1_000_000
_MAX_CONSTANTS = 256

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Choice(PlainData):
    """Conditions on calls. All of them must hold; then ``novel`` and ``first`` select from the
    remaining calls, in this order. To select calls in any other way, use ``tape.only(calls=...)``.

    Attributes:
        start, end: when the call began, in seconds since 1970 (UTC): from ``start``, and before
            ``end``.
        raised: True for calls that raised, False for those that did not.
        where: conditions on sizes (:class:`~calltape_analyzer.editing.choice.Expression`).
        novel: only calls that add evidence to the ones before, and those with the smallest and the
            largest sizes.
        first: at most this many calls.
    """

    start: Finite | None = None
    end: Finite | None = None
    raised: bool | None = None
    where: tuple[str, ...] = ()
    novel: bool = False
    first: int | None = Field(default=None, ge=0, le=MAX_COUNT)

    @field_validator("where", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """The conditions that were set."""
        return self.model_dump(exclude_defaults=True)


def select_calls(tape: Tape, choice: Choice) -> array[int]:
    """The positions of the calls that meet the conditions. Corrupted calls are never selected; the
    tape's ``damage`` lists them.

    Raises:
        UsageError: a condition names a size that no call has.
    """
    tape.calls.scan()  # finds corrupted calls, which the index of a file may list
    selected: Iterable[int] = range(len(tape.calls))
    if choice.where or (choice.start, choice.end, choice.raised) != (None, None, None):
        selected = _meeting(tape, choice)
    if choice.novel:
        selected = _novel(tape, selected)
    return array("Q", islice(selected, choice.first))


def _meeting(tape: Tape, choice: Choice) -> Iterator[int]:
    sizes = (
        ConditionSizes(tape, [Expression(text) for text in choice.where]) if choice.where else None
    )
    results = Recent()  # calls of a file that share inputs share one
    for position, call in enumerate(tape.calls.including_unsound()):
        # The table of a group has the times, so calls of other hours are not decoded.
        began = call.segment.scan().times[call.position] / 1e9
        if choice.start is not None and began < choice.start:
            continue
        if choice.end is not None and began >= choice.end:
            continue
        record = _record_of(call)
        if record is None or choice.raised not in (None, record.error is not None):
            continue
        if sizes is not None:
            inputs = call.segment, call.segment.inputs_number(call.position)
            if not results.once(inputs, partial(sizes.meet, call)):
                continue
        yield position


def _record_of(call: Call) -> CallRecord | None:
    try:
        return call.record
    except TapeError as error:
        if not is_damage(error):
            raise
        return None  # the tape's damage lists it


def _novel(tape: Tape, positions: Iterable[int]) -> list[int]:
    sorter, novelty = CallSorter.of(tape), _Novelty()
    novel: set[int] = set()
    for position in positions:
        record = _record_of(tape.calls[position])
        if record is None:
            continue
        raised = None if record.error is None else record.error.type
        if novelty.add(sorter.sorted(record.inputs), raised, position):
            novel.add(position)
    return sorted(novel.union(novelty.extremes()))


class _Novelty:
    """Finds calls whose sizes add evidence to those of earlier calls."""

    def __init__(self) -> None:
        self._spans: dict[Hashable, AffineSpan] = {}  # by kind and pattern of equal sizes
        # By kind, the smallest value of each size, followed by the largest of each, negated; each
        # with the first call that had it.
        self._extremes: dict[Hashable, list[tuple[int, int]]] = {}
        self._constants: dict[Hashable, set[Hashable]] = {}
        self._room = MAX_NUMBERS

    def add(self, call: SortedCall, raised: str | None, position: int) -> bool:
        """Adds a call, and returns whether it is novel.

        Args:
            call: its group and sizes.
            raised: the type of its exception, if it raised one.
            position: its position on the tape.
        """
        if self._room <= 0:
            return True
        # Texts and floats distinguish kinds of calls as long as there are few of them.
        constants: Hashable = call.key.constants
        known_constants = self._constants.setdefault(call.key[:2], set())
        if constants not in known_constants:
            if len(known_constants) < _MAX_CONSTANTS:
                known_constants.add(constants)
            else:
                constants = None
        kind = (call.key.layout, call.key.facts, constants, raised)
        sizes = [size for shape in call.row.shapes for size in shape] + list(call.row.ints)
        # The pattern says which sizes are equal, and which are 0 or 1.
        first: dict[int, int] = {}
        pattern = tuple(
            -1 - size if size in (0, 1) else first.setdefault(size, i)
            for i, size in enumerate(sizes)
        )
        key = (kind, pattern)
        span = self._spans.get(key)
        if span is None:
            if len(self._spans) >= _MAX_PATTERNS:
                return True
            self._room -= len(sizes)
            span = self._spans[key] = AffineSpan()
        values = [*sizes, *(-size for size in sizes)]
        extremes = self._extremes.get(kind) or [(value, position) for value in values]
        self._extremes[kind] = [
            extreme if extreme[0] <= value else (value, position)
            for extreme, value in zip(extremes, values, strict=True)
        ]
        if not span.add(list(first)):
            return False
        self._room -= len(first)
        return True

    def extremes(self) -> Iterable[int]:
        """The positions of calls with the smallest and the largest value of each size."""
        for extremes in self._extremes.values():
            yield from (position for _, position in extremes)


class ConditionSizes:
    """Evaluates conditions on the sizes of calls, which have the names that people use: symbols
    (``sequence_length``), dimensions (``input_ids[1]``) and ints (``n``). An int that a call does
    not pass has its default value.

    Args:
        tape: the tape with the calls.
        expressions: the conditions.

    Raises:
        UsageError: an expression names a size that no call has.
    """

    def __init__(self, tape: Tape, expressions: Sequence[Expression]) -> None:
        self._expressions = expressions
        self._variants = [variant.facts for variant in tape.whole.variants()]
        layouts = (facts.group.layout for facts in self._variants)
        self._sorter = CallSorter.of(tape).agreeing(layouts)
        self._columns: dict[int, dict[str, Column]] = {}
        for facts in self._variants:
            ranks = [fact.rank for fact in facts.group.facts]
            symbols = {symbol.name: symbol.columns[0] for symbol in facts.symbols}
            columns = _columns_by_name(facts.rows.columns, facts.group.layout, ranks)
            self._columns[id(facts)] = columns | symbols
        self._defaults = tape.signature.int_defaults
        all_names: list[Iterable[str]] = [*self._columns.values(), self._defaults]
        names = dict.fromkeys(chain.from_iterable(all_names))
        for expression in expressions:
            for spellings in expression.references:
                if not any(name in names for name in spellings):
                    raise UsageError(
                        f"no call has a size named {spellings[0]}",
                        advice=f"the sizes are: {_examples(names) or 'none'}",
                    )

    def meet(self, call: Call) -> bool:
        """Whether the sizes of a call meet all conditions.

        Raises:
            TapeError: its record breaks the format.
        """
        sizes = self.of(call)
        return all(expression.holds(sizes) for expression in self._expressions)

    def of(self, call: Call) -> dict[str, int]:
        """The sizes of a call.

        Raises:
            TapeError: its record breaks the format.
        """
        placed = self._sorter.sorted(call.record.inputs)
        facts = next((variant for variant in self._variants if variant.has(placed)), None)
        if facts is None:
            ranks = list(map(len, placed.row.shapes))
            columns = _columns_by_name(placed.row.columns, placed.layout, ranks)
        else:
            columns = self._columns[id(facts)]
        # A layout has no ints that have their default value.
        passed = placed.layout.nodes
        defaults = {name: value for name, value in self._defaults.items() if name not in passed}
        return defaults | {name: value_in(placed.row, column) for name, column in columns.items()}


def _columns_by_name(
    columns: Iterable[Column], layout: ArgumentLayout, ranks: Sequence[int]
) -> dict[str, Column]:
    """Columns as ``x[1]``, and counted from the end as ``x[-1]``."""
    by_name: dict[str, Column] = {}
    for column in columns:
        by_name[layout.column_name(column)] = column
        if column.axis is not None:
            from_end = column.axis - ranks[column.index]
            by_name[f"{layout.path(column)}[{from_end}]"] = column
    return by_name


def _examples(names: Iterable[str]) -> str:
    """Names to choose from; of those that differ only in positions, the first."""
    similar: dict[str, list[str]] = {}
    for name in names:
        if "[-" not in name:
            similar.setdefault(pattern_of(name), []).append(name)
    examples = [
        group[0] if len(group) == 1 else f"{group[0]} and {len(group) - 1} like it"
        for group in similar.values()
    ]
    return some_of(examples, _MAX_NAMED)
