"""Conditions on the sizes of a call, as text: ``sequence_length > 512 and batch_size == 1``.

Takes text that somebody typed; returns a function of the sizes of one call. Nothing is evaluated by
Python: the syntax tree is walked here once, and only what is listed here is understood.
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

# Names with all that follows: `cache.layers.0.keys[2]`. Of a part, group 1 is a position.
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.(?:\w+|\*)|\[[^\]]*\])+")
_PART = re.compile(r"\[[^\]]*\]|\.(\d+)(?!\w)")

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
# No powers: two digits would make an int that fills the memory.
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
            those that are shown (``cache.layers.0.keys[2]``); a key that is no word has quotes
            (``cache["a-b"][1]``).

    Attributes:
        references: the sizes that it names, each with the spellings that may stand for it, the
            likeliest first: ``x[0]`` is a dimension of ``x``, or the first element of a list.

    Raises:
        UsageError: it is anything else.
    """

    def __init__(self, text: str) -> None:
        self.references: list[tuple[str, ...]] = []
        self._meaning = _meaning_of(_parsed(text), self.references)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true of a call. As in SQL, a comparison is unknown if the call lacks one of
        its sizes, or has a divisor of zero there; so is ``not`` of it. ``or`` needs one part that
        is true, ``and`` all of them. What is unknown in the end is not true.

        Args:
            sizes: by name: symbols, dimensions and ints.
        """
        return bool(self._meaning(sizes))


def _parsed(text: str) -> ast.expr:
    if len(text) > _MAX_TEXT:
        raise UsageError(f"a condition of {len(text)} characters (at most {_MAX_TEXT})")
    python = _as_python(text.strip())
    try:
        tree = ast.parse(python, mode="eval").body
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{text!r:.100} is not a condition", advice=_ADVICE) from None
    if len(nodes) > _MAX_NODES:
        raise UsageError(f"a condition of {len(nodes)} parts (at most {_MAX_NODES})")
    return tree


def _as_python(text: str) -> str:
    """The text with positions as Python writes them: ``xs[0]`` for ``xs.0``."""
    return _NAME.sub(_with_brackets, text)


def _with_brackets(name: re.Match[str]) -> str:
    if ".*" in name[0] or "[*]" in name[0]:
        raise UsageError(
            f"{name[0]!r:.100} stands for several sizes",
            advice="name one of them, such as `cache.layers.0.keys[2]`",
        )
    return _PART.sub(lambda part: f"[{part[1]}]" if part[1] else part[0], name[0])


_Meaning: TypeAlias = Callable[[Mapping[str, int]], Any]
"""What a part is in a call with these sizes: a number, or whether it is true; None if that is
unknown."""


def _meaning_of(node: ast.expr, references: list[tuple[str, ...]]) -> _Meaning:
    """The meaning of a part. Adds the sizes that it names to ``references``.

    Raises:
        UsageError: it is not understood.
    """
    names = _names_of(node)
    if names:
        references.append(names)
        return lambda sizes: next((sizes[name] for name in names if name in sizes), None)
    if isinstance(node, ast.Constant) and _is_number(node.value):
        return lambda sizes: node.value
    if isinstance(node, ast.BoolOp):
        return _joined([_meaning_of(p, references) for p in node.values], type(node.op) is ast.Or)
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
    parts = [_meaning_of(part, references) for part in operands]

    def applied(sizes: Mapping[str, int]) -> Any:
        values = [part(sizes) for part in parts]
        if None in values:
            return None
        try:
            return function(*values)
        except (ZeroDivisionError, OverflowError):
            return None

    return applied


def _joined(parts: list[_Meaning], decisive: bool) -> _Meaning:
    """``or``, which one true part decides, or ``and``, which one false part decides."""

    def joined(sizes: Mapping[str, int]) -> bool | None:
        found = [None if value is None else bool(value) for value in (p(sizes) for p in parts)]
        if decisive in found:
            return decisive
        return None if None in found else not decisive

    return joined


def _compare(signs: list[Callable[[Any, Any], bool]], *values: Any) -> bool:
    return all(sign(*pair) for sign, pair in zip(signs, pairwise(values), strict=True))


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return value.bit_length() <= _MAX_BITS
    return type(value) in (float, bool)


def _names_of(node: ast.expr) -> tuple[str, ...]:
    """The spellings of a name, an attribute or an element; none for anything else."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return tuple(f"{below}.{node.attr}" for below in _names_of(node.value)[-1:])
    if isinstance(node, ast.Subscript) and (place := _place(node.slice)) is not None:
        below = _names_of(node.value)[-1:]
        return tuple(made for name in below for made in (f"{name}[{place}]", f"{name}.{place}"))
    return ()


def _place(node: ast.expr) -> int | str | None:
    """An axis, a position, or a key that is text."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if not isinstance(node, ast.Constant):
        return None
    if type(node.value) is int and node.value.bit_length() <= _MAX_BITS:
        return sign * node.value
    return node.value if type(node.value) is str and sign == 1 else None
