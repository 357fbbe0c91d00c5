"""The guards of an exported program on its inputs, as data.

``torch.export`` turns the assumptions of a trace into guards: sizes that became constants,
dimensions that must be equal, ranges. An ``ExportedProgram`` checks them when it runs. An ONNX
model has lost them, and would compute something else. So every program keeps them
(docs/decisions/guards-and-verdicts.md). Takes dtypes and sizes; returns why the program would
reject them. Nothing is run.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from calltape_analyzer.facts import Rejection
from calltape_analyzer.foreign_errors import inputs_of_guard
from calltape_analyzer.programs import reasons

__all__ = ["MAX_TEXT", "Conditions", "Sized"]


@dataclass(frozen=True)
class Sized:
    """The dtype and shape of a tensor, and if known its strides and the offset of its first
    element, both in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    offset: int | None = None


MAX_TEXT = 10_000
"""Characters of a condition; a longer one is not evaluated."""
_TOO_LARGE = 2**128
_MAX_EXPONENT = 4
_MAX_DIGITS = 400


class _UnknownError(Exception):
    """A guard that cannot be evaluated."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of one program.

    Attributes:
        inputs: per input its name, dtype and sizes: an int, or the name of a symbol or of an
            expression that has a range, or None for another expression. An int input has no dtype,
            and one size: itself.
        ranges: smallest and largest value of symbols.
        guards: conditions in torch's words: ``L['x'].size()[1] <= 4``.
    """

    inputs: tuple[tuple[str, str | None, tuple[int | str | None, ...]], ...]
    ranges: Mapping[str, tuple[int | None, int | None]]
    guards: tuple[str, ...]

    @classmethod
    def of(cls, program: Any, names: Sequence[str]) -> Conditions:
        """The conditions of an ``ExportedProgram``.

        Args:
            program: the program.
            names: of its inputs, for people.
        """
        kinds = [s for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
        nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        inputs: list[tuple[str, str | None, tuple[int | str | None, ...]]] = []

        def declared(size: Any) -> int | str | None:
            if type(size) is int:
                return size
            expression = size.node.expr
            # torch checks the ranges and equality of expressions that have a range of their own.
            has_range = expression.is_symbol or expression in program.range_constraints
            return str(expression) if has_range else None

        for name, spec in zip(names, kinds, strict=True):
            value: Any = nodes[spec.arg.name].meta.get("val") if spec.arg.name in nodes else None
            if hasattr(value, "shape"):
                dtype = str(value.dtype).removeprefix("torch.")
                inputs.append((name, dtype, tuple(map(declared, value.shape))))
            else:
                # The value of an int that the trace made a constant, else its symbol.
                is_int = type(value) is int or type(value).__name__ == "SymInt"
                inputs.append((name, None, (declared(value),) if is_int else ()))
        ranges = {
            str(symbol): (_bound(limits.lower), _bound(limits.upper))
            for symbol, limits in program.range_constraints.items()
        }
        guards = tuple(str(text) for text in program._guards_code)
        return cls(tuple(inputs), ranges, guards)

    def reject(self, values: Sequence[Any], arguments: Mapping[str, Any]) -> Rejection | None:
        """Why inputs are rejected; None if the program would accept them.

        Args:
            values: the inputs in order: :class:`Sized`, or ints.
            arguments: the same, nested as the program's arguments by name.
        """
        bound: dict[str, int] = {}
        for (name, dtype, sizes), value in zip(self.inputs, values, strict=True):
            if dtype is None and sizes and type(value) is int:
                rejection = self._size(name, sizes[0], value, bound)
                if rejection is not None:
                    return rejection
            if not isinstance(value, Sized) or dtype is None:
                continue
            if value.dtype != dtype:
                return reasons.OtherDtype(name, value.dtype, dtype)
            if len(sizes) != len(value.shape):
                return reasons.OtherRank(name, len(value.shape), len(sizes))
            for axis, (declared, size) in enumerate(zip(sizes, value.shape, strict=True)):
                rejection = self._size(f"{name}[{axis}]", declared, size, bound)
                if rejection is not None:
                    return rejection
        broken = next((text for text in self.guards if _holds(text, arguments) is False), None)
        if broken is None:
            return None
        names = {
            id(value): name
            for (name, *_), value in zip(self.inputs, values, strict=True)
            if isinstance(value, Sized)
        }

        def name_of(keys: Sequence[str | int]) -> str:
            value: Any = arguments
            for key in keys:  # the guard was evaluated with them
                value = value[key]
            return names.get(id(value)) or ".".join(map(str, keys))

        return reasons.GuardFails(
            broken, tuple(name_of(keys) for _, keys in inputs_of_guard(broken))
        )

    def _size(
        self, where: str, declared: int | str | None, size: int, bound: dict[str, int]
    ) -> Rejection | None:
        if isinstance(declared, int):
            return None if declared == size else reasons.OtherSize(where, size, declared)
        if declared is None:
            return None
        bound_size = bound.setdefault(declared, size)
        if bound_size != size:
            return reasons.UnequalSizes(where, size, bound_size)
        low, high = self.ranges.get(declared, (None, None))
        # A trace never has sizes of 0 and 1, so its range begins at 2; torch does not check that.
        if low is not None and low > 2 and size < low:
            return reasons.OutOfRange(where, size, least=low)
        if high is not None and size > high:
            return reasons.OutOfRange(where, size, most=high)
        return None

    def can_be_evaluated(self, arguments: Mapping[str, Any]) -> bool:
        """Whether every guard can be evaluated. If one cannot, the program serves only verified
        sizes, because an ONNX model or a loaded program would not check it."""
        return all(_holds(text, arguments) is not None for text in self.guards)


def _bound(limit: Any) -> int | None:
    try:
        bound = int(limit)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None  # infinite
    return bound if abs(bound) < 2**62 else None


def _power(base: float, exponent: float) -> Any:
    """A power as torch writes it: ``** 0.5`` for a root. A large one would take all memory."""
    if abs(exponent) > _MAX_EXPONENT or base < 0:
        raise _UnknownError
    return base**exponent


def _rounded(value: float, digits: int | None = None) -> float:
    """A rounded number. For millions of digits before the point, Python would compute for hours."""
    if digits is not None and abs(digits) > _MAX_DIGITS:
        raise _UnknownError
    return round(value, digits)


# Not &, | and shifts: torch writes them without the parentheses that Python needs.
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "abs": abs,
    "int": int,
    "float": float,
    "round": _rounded,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.trunc": math.trunc,
    "math.sqrt": math.sqrt,
    "torch.sym_max": max,
    "torch.sym_min": min,
    "torch.sym_float": float,
    "torch.sym_int": int,
    "torch.sym_not": operator.not_,
}


def _holds(text: str, arguments: Mapping[str, Any]) -> bool | None:
    """Whether a condition holds; None if it cannot be evaluated here."""
    try:
        return bool(_evaluate(_parsed(text), arguments))
    except (_UnknownError, SyntaxError, ValueError, LookupError, TypeError, ArithmeticError):
        return None
    except (RecursionError, MemoryError):  # what the parser raises for a text that is too deep
        return None


# For unknown escapes, and for a number with a keyword at its end, Python's parser prints a warning.
_WARNED = re.compile(r"[0-9A-FJa-fj.](?:and|else|for|if|in|is|not|or)")


@lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_TEXT or _WARNED.search(re.sub(r"'[^']*'", "", text)) or "\\" in text:
        raise _UnknownError
    return ast.parse(text.strip(), mode="eval").body


def _evaluate(node: ast.expr, arguments: Mapping[str, Any]) -> Any:
    """The value of a guard. Only the forms below are evaluated, because a guard may come from an
    untrusted file."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, str, bool):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        one, other = _evaluate(node.left, arguments), _evaluate(node.right, arguments)
        return _number(_OPERATORS[type(node.op)](_number(one), _number(other)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        value = _evaluate(node.operand, arguments)
        return not value if isinstance(node.op, ast.Not) else -_number(value)
    if isinstance(node, ast.BoolOp):
        # All parts are evaluated, so that one that cannot be evaluated is noticed.
        parts = [_evaluate(value, arguments) for value in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.Compare) and all(type(op) in _OPERATORS for op in node.ops):
        values = [_number(_evaluate(one, arguments)) for one in (node.left, *node.comparators)]
        pairs = zip(node.ops, values, values[1:], strict=False)
        return all(_OPERATORS[type(op)](left, right) for op, left, right in pairs)
    if isinstance(node, ast.Call) and not node.keywords and ast.unparse(node.func) in _FUNCTIONS:
        args = [_number(_evaluate(one, arguments)) for one in node.args]
        return _number(_FUNCTIONS[ast.unparse(node.func)](*args))
    return _reference(node, arguments)


def _reference(node: ast.expr, arguments: Mapping[str, Any]) -> Any:
    """``L['x'][0].size()[1]``, or ``L['n']``."""
    if isinstance(node, ast.Name) and node.id == "L":
        return arguments
    if isinstance(node, ast.Subscript):
        return _reference(node.value, arguments)[_evaluate(node.slice, arguments)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        owner = _reference(node.func.value, arguments)
        if isinstance(owner, Sized):
            facts = {"size": owner.shape, "stride": owner.strides, "storage_offset": owner.offset}
            fact = facts.get(node.func.attr)
            if fact is not None:
                return fact
    raise _UnknownError


def _number(value: Any) -> Any:
    if not isinstance(value, int | float) or abs(value) >= _TOO_LARGE:
        raise _UnknownError
    return value
