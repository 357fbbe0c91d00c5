"""Conditions on the sizes of a call, as text: ``sequence_length > 512 and batch_size == 1``.

Python parses the text but evaluates nothing: the syntax tree is translated into functions here, and
any node that is not listed is rejected.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

from calltape_analyzer.errors import UsageError

__all__ = ["Expression"]

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
        shown = ast.unparse(node)
        raise UsageError(f"{shown!r:.100} cannot be part of a condition", advice=_ADVICE)
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
