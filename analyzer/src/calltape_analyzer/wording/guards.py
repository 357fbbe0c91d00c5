"""The conditions of a trace as sentences about arguments.

Takes a guard or a runtime assertion in torch's notation (``torch.sym_max(1, L['x'].size()[0]) !=
4``, ``Ne(u0, 1) on node 'ne'``); returns what a person can act on. What is not known here stays as
torch writes it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from calltape_analyzer.foreign_errors import INPUT, UNBACKED

__all__ = ["assertion_in_words", "guard_in_words"]

_MOST = 1_000
"""Characters of a condition that is put into words. A longer one nobody would read."""
_COMPARED: dict[type, str] = {
    ast.Eq: "is", ast.NotEq: "is not", ast.LtE: "is at most", ast.Lt: "is less than",
    ast.GtE: "is at least", ast.Gt: "is more than",
}  # fmt: skip
_TURNED: dict[type, ast.cmpop] = {
    ast.Eq: ast.Eq(), ast.NotEq: ast.NotEq(), ast.LtE: ast.GtE(), ast.Lt: ast.Gt(),
    ast.GtE: ast.LtE(), ast.Gt: ast.Lt(),
}  # fmt: skip
_FUNCTIONS = {
    "torch.sym_max": "max", "torch.sym_min": "min", "torch.sym_float": "float",
    "torch.sym_int": "int", "math.ceil": "ceil", "math.floor": "floor", "math.trunc": "trunc",
    "math.sqrt": "sqrt",
}  # fmt: skip
_RELATIONS: dict[str, ast.cmpop] = {
    "Eq": ast.Eq(), "Ne": ast.NotEq(), "Le": ast.LtE(), "Lt": ast.Lt(), "Ge": ast.GtE(),
    "Gt": ast.Gt(),
}  # fmt: skip


def guard_in_words(text: str, names: Mapping[str, str]) -> str:
    """A guard: ``x[1] is at most 4``. ``n is at least 0, and n is at most past.0.0[1]``.

    Args:
        text: in torch's notation.
        names: of inputs, by what torch writes for them.
    """
    # What a name is written with, such as dots, means something else in Python: words stand for
    # the names until the sentence is made.
    words: dict[str, str] = {}

    def word(found: re.Match[str]) -> str:
        return words.setdefault(names.get(found[0], found[0]), f"input_{len(words)}_")

    made = _sentence_of(INPUT.sub(word, text.strip()).replace(".size()", ""))
    shown = {word: name for name, word in words.items()}
    return re.sub(r"\binput_\d+_", lambda found: shown.get(found[0], found[0]), made)


def assertion_in_words(condition: str) -> str:
    """What an assertion is about: ``a number that the values tell is not 1``."""
    words = _sentence_of(condition)
    names = sorted(set(UNBACKED.findall(words)))
    if len(names) == 1 and words.startswith(f"{names[0]} is ") and words.count(names[0]) == 1:
        return words.replace(names[0], "a number that the values tell", 1)
    if names:
        follow = "follows" if len(names) == 1 else "follow"
        return f"{words}, where {' and '.join(names)} {follow} from values"
    return words


def _sentence_of(text: str) -> str:
    """A condition as a sentence; as it is if it is long, or no Python."""
    if len(text) > _MOST:
        return text
    try:
        # sympy writes & and | for and and or, with the parentheses that both need.
        plain = re.sub(r"\) & \(", ") and (", re.sub(r"\) \| \(", ") or (", text))
        return _sentence(_Simpler().visit(ast.parse(plain, mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


class _Simpler(ast.NodeTransformer):
    """Writes what torch and sympy write in their way as a person would."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name in _RELATIONS and len(node.args) == 2:
            return ast.Compare(node.args[0], [_RELATIONS[name]], [node.args[1]])
        if name in ("torch.sym_not", "Not") and len(node.args) == 1:
            return ast.UnaryOp(ast.Not(), node.args[0])
        if name in _FUNCTIONS:
            node.func = ast.Name(_FUNCTIONS[name])
        if _FUNCTIONS.get(name) in ("max", "min"):
            node.args = [inner for one in node.args for inner in _flat(one, _FUNCTIONS[name])]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        negated = _negated(node)
        # -(-x // 4)
        if (
            isinstance(negated, ast.BinOp)
            and isinstance(negated.op, ast.FloorDiv)
            and (inner := _negated(negated.left)) is not None
        ):
            return ast.Call(ast.Name("ceil"), [ast.BinOp(inner, ast.Div(), negated.right)], [])
        if isinstance(node.op, ast.Add) and (number := _int(node.left)) is not None:
            sign = ast.Sub() if number < 0 else ast.Add()
            return ast.BinOp(node.right, sign, ast.Constant(abs(number)))
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        # A number stands at the end: 4 >= x.
        if len(node.ops) == 1 and _int(node.left) is not None and type(node.ops[0]) in _TURNED:
            turned = _TURNED[type(node.ops[0])]
            return ast.Compare(node.comparators[0], [turned], [node.left])
        return node


def _flat(node: ast.expr, name: str) -> list[ast.expr]:
    is_same = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    )
    return node.args if is_same and isinstance(node, ast.Call) else [node]


def _negated(node: ast.expr) -> ast.expr | None:
    """What ``-1*x`` is the negative of."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and _int(node.left) == -1:
        return node.right
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _int(node) is None:
        return node.operand
    return None


def _int(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = _int(node.operand)
        return None if found is None else -found
    is_int = isinstance(node, ast.Constant) and type(node.value) is int
    return node.value if is_int and isinstance(node, ast.Constant) else None  # type: ignore[return-value]


def _sentence(node: ast.expr) -> str:
    if isinstance(node, ast.BoolOp):
        word = ", and " if isinstance(node.op, ast.And) else ", or "
        return word.join(map(_part, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"it is not so that {_part(node.operand)}"
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        return f"{left} {_COMPARED[type(node.ops[0])]} {right}"
    return ast.unparse(node)


def _part(node: ast.expr) -> str:
    text = _sentence(node)
    return f"({text})" if isinstance(node, ast.BoolOp) else text
