"""Conditions on the sizes of a call, as text: ``sequence_length > 512 and batch_size == 1``.

In comes text that somebody typed. Out goes a function of the sizes of one call. Nothing is
evaluated by Python: the syntax tree is walked here, and only what is listed here is understood.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, TypeGuard

from calltape_analyzer.errors import UsageError

__all__ = ["Expression", "Reference"]

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


class Reference(tuple[str, ...]):
    """A size that an expression names: the spellings that may stand for it, the likeliest first.
    ``x[0]`` is a dimension of ``x``, or the first element of a list of ints."""

    def __str__(self) -> str:
        return self[0]


class Expression:
    """A condition.

    Args:
        text: comparisons of names, dimensions (``x[0]``) and numbers with ``== != < <= > >=``,
            joined by ``and``, ``or``, ``not``; sums, products, ``//`` and ``%`` of them. Names are
            those that are shown (``cache.layers.0.keys[2]``); a key that is no word has quotes
            (``cache["a-b"][1]``).

    Attributes:
        references: the sizes that it names.

    Raises:
        UsageError: it is anything else.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._tree = _parsed(text)
        self.references = tuple(_references(self._tree))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true of a call. As in SQL, a comparison is unknown if the call lacks one of
        its sizes, or has a divisor of zero there; so is ``not`` of it. ``or`` needs one part that
        is true, ``and`` all of them. What is unknown in the end is not true.

        Args:
            sizes: by name: symbols, dimensions and ints.
        """
        return _truth(self._tree, sizes) is True


def _parsed(text: str) -> ast.expr:
    if len(text) > _MAX_TEXT:
        raise UsageError(f"a condition of {len(text)} characters (at most {_MAX_TEXT})")
    python = _as_python(text.strip())
    try:
        tree = ast.parse(python, mode="eval").body
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{text!r:.100} is no condition", advice=_ADVICE) from None
    if len(nodes) > _MAX_NODES:
        raise UsageError(f"a condition of {len(nodes)} parts (at most {_MAX_NODES})")
    _check(tree)
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


def _check(node: ast.expr) -> None:
    """Raises for every part that is not understood."""
    if _reference(node) is not None:
        return
    if isinstance(node, ast.Constant) and _is_number(node.value):
        return
    parts = _parts(node)
    if parts is None:
        shown = ast.unparse(node)
        raise UsageError(f"{shown!r:.100} cannot be part of a condition", advice=_ADVICE)
    for part in parts:
        _check(part)


def _parts(node: ast.expr) -> list[ast.expr] | None:
    """The parts of an operation that is understood; None for anything else."""
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return [node.operand]
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return [node.left, node.right]
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
        return [node.left, *node.comparators]
    return None


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return value.bit_length() <= _MAX_BITS
    return type(value) in (float, bool)


def _references(node: ast.expr) -> Iterator[Reference]:
    found = _reference(node)
    if found is not None:
        yield found
        return
    for part in _parts(node) or ():
        yield from _references(part)


def _reference(node: ast.expr) -> Reference | None:
    """What a name, an attribute or an element refers to; None for anything else."""
    if isinstance(node, ast.Subscript):
        below, place = _path(node.value), _place(node.slice)
        if below is None or place is None:
            return None
        return Reference((f"{below}[{place}]", f"{below}.{place}"))
    path = _path(node)
    return None if path is None else Reference((path,))


def _path(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        below = _path(node.value)
        return None if below is None else f"{below}.{node.attr}"
    if isinstance(node, ast.Subscript):
        below, place = _path(node.value), _place(node.slice)
        return None if below is None or place is None else f"{below}.{place}"
    return None


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


def _truth(node: ast.expr, sizes: Mapping[str, int]) -> bool | None:
    """Whether a condition is true; None if that is unknown."""
    if isinstance(node, ast.BoolOp):
        decisive = isinstance(node.op, ast.Or)
        parts = [_truth(part, sizes) for part in node.values]
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if _is_not(node):
        found = _truth(node.operand, sizes)
        return None if found is None else not found
    try:
        return bool(_value(node, sizes))
    except (KeyError, ZeroDivisionError, OverflowError):
        return None


def _is_not(node: ast.expr) -> TypeGuard[ast.UnaryOp]:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Any:
    """A number, or whether a part is true.

    Raises:
        KeyError: the call lacks a size.
    """
    found = _reference(node)
    if found is not None:
        return _size(found, sizes)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BoolOp) or _is_not(node):
        truth = _truth(node, sizes)
        if truth is None:
            raise KeyError(ast.unparse(node))
        return truth
    if isinstance(node, ast.UnaryOp):
        return _SIGNS[type(node.op)](_value(node.operand, sizes))
    if isinstance(node, ast.BinOp):
        return _ARITHMETIC[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    assert isinstance(node, ast.Compare)
    values_ = [_value(part, sizes) for part in (node.left, *node.comparators)]
    pairs = pairwise(values_)
    return all(_COMPARISONS[type(o)](*pair) for o, pair in zip(node.ops, pairs, strict=True))


def _size(reference: Reference, sizes: Mapping[str, int]) -> int:
    """A size by any of its spellings.

    Raises:
        KeyError: the call lacks it.
    """
    for name in reference:
        if name in sizes:
            return sizes[name]
    raise KeyError(str(reference))
