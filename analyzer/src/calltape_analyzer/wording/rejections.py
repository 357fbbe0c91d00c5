"""Rejections of calls as sentences.

Guards and runtime assertions come in torch's notation: ``torch.sym_max(1, L['x'].size()[0]) != 4``,
``Ne(u0, 1) on node 'ne'``. They become sentences about arguments. Parts that this module does not
know stay as torch writes them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeGuard

from calltape_analyzer.foreign_errors import INPUT, AssertionFailed, OtherAssertion
from calltape_analyzer.programs import reasons
from calltape_analyzer.pytree.classes import is_never_made
from calltape_analyzer.pytree.placeholder import LEFT_OUT
from calltape_analyzer.text import printable
from calltape_analyzer.variants.facts import ExcludedSize, FixedSize, NewZeros, OtherVariant
from calltape_schema.remedies import Remedy

__all__ = ["WORDS"]

_MAX_NAME = 200
_MAX_REASON = 160
_MAX_ERROR = 240
_FOR_CALLS = "the program is for calls in which"


def _excluded(fact: ExcludedSize) -> str:
    what = "values" if fact.is_int else "sizes"
    return f"{fact.place} is {fact.got}; it is for other {what}"


def _zeros(fact: NewZeros) -> str:
    are = "is" if len(fact.places) == 1 else "are"
    zero = f"{', '.join(fact.places)} {are} 0, which was never recorded"
    return zero if fact.why is None else f"{zero}; {fact.why}"


def _unknown_class(fact: reasons.UnknownClass) -> str:
    shown = printable(fact.type_name[:_MAX_NAME])
    what = f"{fact.argument} {'is' if fact.is_whole else 'holds'} a Placeholder for {shown}"
    if is_never_made(fact.type_name):
        return f"{what}, of which no object is made; pass an object of that class"
    short = shown.rpartition(":")[2]
    how = Remedy(f"load_programs(..., classes=[{short}])", f"pass --classes {shown}")
    return f"{what}, which was not known when the programs were loaded; {how}"


def _range(fact: reasons.OutOfRange) -> str:
    bound = f"least {fact.least}" if fact.least is not None else f"most {fact.most}"
    return f"{fact.place} is {fact.got}; the program takes at {bound}"


def _value(fact: reasons.OtherValue) -> str:
    expected = "another" if fact.wanted is None else fact.wanted
    return f"{fact.place} is {fact.got}; this program has {expected}"


def _unverified(fact: reasons.Unverified) -> str:
    only = "" if fact.only is None else f"; it {fact.only}"
    if fact.recorded:
        return f"calls of these sizes were recorded, and it was not verified with them{only}"
    return f"it was not verified at these sizes{only}"


def _not_exported(fact: reasons.NotExported) -> str:
    why = str(fact.why)
    cut = why if len(why) <= _MAX_REASON else f"{why[:_MAX_REASON]}…"
    return f"not exported: {cut}"


def _assertion(fact: AssertionFailed) -> str:
    place = f": {fact.place}" if fact.place else ""
    return f"{_FOR_CALLS} {assertion_in_words(fact.condition)}{place}"


_MAX_CHARACTERS = 1_000
"""Longer conditions are not translated, because nobody would read them."""
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
    "math.sqrt": "sqrt", "ToFloat": "float", "FloorToInt": "floor", "CeilToInt": "ceil",
    "TruncToInt": "trunc", "RoundToInt": "round", "ceiling": "ceil", "Max": "max", "Min": "min",
}  # fmt: skip
_OPERATORS: dict[str, ast.operator] = {
    "FloorDiv": ast.FloorDiv(), "FloatTrueDiv": ast.Div(), "IntTrueDiv": ast.Div(),
    "Mod": ast.Mod(), "PythonMod": ast.Mod(), "FloatPow": ast.Pow(), "PowByNatural": ast.Pow(),
}  # fmt: skip
"""The functions of torch's expressions (``torch.utils._sympy.functions``) that are operators."""
_RELATIONS: dict[str, ast.cmpop] = {
    "Eq": ast.Eq(), "Ne": ast.NotEq(), "Le": ast.LtE(), "Lt": ast.Lt(), "Ge": ast.GtE(),
    "Gt": ast.Gt(),
}  # fmt: skip


def guard_in_words(text: str, names: Mapping[str, str]) -> str:
    """A guard as a sentence: ``x[1] is at most 4``.

    Args:
        text: the guard in torch's notation.
        names: the names of inputs by torch's expressions for them.
    """
    # Names are no Python expressions, so identifiers replace them until the sentence is complete.
    identifiers: dict[str, str] = {}

    def identifier(match: re.Match[str]) -> str:
        name = names.get(match[0], match[0])
        return identifiers.setdefault(name, f"input_{len(identifiers)}_")

    sentence = _translated(INPUT.sub(identifier, text.strip()).replace(".size()", ""))
    by_identifier = {identifier: name for name, identifier in identifiers.items()}
    return re.sub(r"\binput_\d+_", lambda match: by_identifier.get(match[0], match[0]), sentence)


def assertion_in_words(condition: str) -> str:
    """An assertion as a sentence: ``a number computed from the inputs is not 1``."""
    sentence = _translated(condition)
    symbols = sorted(set(_SYMBOL.findall(sentence)))
    numbers = [number for number in symbols if not number.startswith("s")]
    if len(_SYMBOL.findall(sentence)) == 1 and numbers and sentence.startswith(f"{numbers[0]} is "):
        return sentence.replace(numbers[0], "a number computed from the inputs", 1)
    names = _numbered("number", numbers) | _numbered("input", [*{*symbols} - {*numbers}])
    sentence = _SYMBOL.sub(lambda match: names[match[0]], sentence)
    if numbers:
        follow = "follows" if len(numbers) == 1 else "follow"
        listed = " and ".join(names[number] for number in numbers)
        return f"{sentence}, where {listed} {follow} from values"
    return sentence


_SYMBOL = re.compile(r"\b(?:z?uf?|zf|s)\d+\b")
"""What torch calls numbers of values, and the sizes and ints of inputs."""


def _numbered(name: str, symbols: Sequence[str]) -> dict[str, str]:
    """A name for each symbol."""
    if len(symbols) == 1:
        return {symbols[0]: name}
    return {symbol: f"{name}_{i}" for i, symbol in enumerate(sorted(symbols), 1)}


def _translated(text: str) -> str:
    """A condition as a sentence; unchanged if it is too long or not valid Python."""
    if len(text) > _MAX_CHARACTERS:
        return text
    try:
        # sympy writes ``(a) & (b)`` and ``(a) | (b)``.
        python = re.sub(r"\) & \(", ") and (", re.sub(r"\) \| \(", ") or (", text))
        return _sentence(_Simplifier().visit(ast.parse(python, mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


class _Simplifier(ast.NodeTransformer):
    """Rewrites the notation of torch and sympy as a person would write it."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name in _RELATIONS and len(node.args) == 2:
            return ast.Compare(node.args[0], [_RELATIONS[name]], [node.args[1]])
        if name in ("torch.sym_not", "Not") and len(node.args) == 1:
            return ast.UnaryOp(ast.Not(), node.args[0])
        if name in _OPERATORS and len(node.args) == 2:
            return ast.BinOp(node.args[0], _OPERATORS[name], node.args[1])
        if name in _FUNCTIONS:
            node.func = ast.Name(_FUNCTIONS[name])
        if _FUNCTIONS.get(name) in ("max", "min"):
            nested = [a.args if _is_call(a, _FUNCTIONS[name]) else [a] for a in node.args]
            node.args = list(chain.from_iterable(nested))
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        negated = _negated(node)
        # ``-(-x // 4)`` becomes ``ceil(x / 4)``.
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
        if len(node.ops) > 1:
            return node
        # ``4 >= x`` becomes ``x <= 4``.
        left, right, order = node.left, node.comparators[0], type(node.ops[0])
        if _is_number(left) and order in _TURNED:
            node = ast.Compare(right, [_TURNED[order]], [left])
            left, right = right, left
        # A bound of a float is asserted as ``2*x <= 1.0``.
        if (
            isinstance(left, ast.BinOp)
            and isinstance(left.op, ast.Mult)
            and _int(left.left) == 2
            and _is_number(right)
            and _int(right) is None
        ):
            return ast.Compare(left.right, node.ops, [ast.Constant(ast.literal_eval(right) / 2)])
        return node


def _is_call(node: ast.expr, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _negated(node: ast.expr) -> ast.expr | None:
    """``x`` for ``-1*x`` and ``-x``; None for anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and _int(node.left) == -1:
        return node.right
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _int(node) is None:
        return node.operand
    return None


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _int(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _int(node.operand)
        return None if value is None else -value
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


WORDS = {
    FixedSize: "{place} is {got}; it was {wanted} in every recorded call of this variant",
    OtherVariant: "not {condition}",
    ExcludedSize: _excluded,
    NewZeros: _zeros,
    reasons.OtherCall: "{difference}",
    reasons.UnknownClass: _unknown_class,
    reasons.LeftOut: lambda fact: f"{', '.join(fact.names)} is passed, which {LEFT_OUT} left out",
    reasons.OtherDtype: "{place} is {got}; the {by} takes {wanted}",
    reasons.OtherRank: "{place} has rank {got}; the {by} takes {wanted}",
    reasons.OtherSize: "{place} is {got}; the {by} takes {wanted}",
    reasons.UnequalSizes: "{place} is {got}; the program wants {wanted}, as elsewhere",
    reasons.UnequalNames: "{place} is {got} and {other} is {wanted}, both {name}",
    reasons.OutOfRange: _range,
    reasons.GuardFails: lambda fact: f"{_FOR_CALLS} {guard_in_words(fact.guard, fact.named)}",
    reasons.ByTrace: "{condition} (a condition of its trace)",
    reasons.OtherValue: _value,
    reasons.SharesMemory: "{place} has memory of the model, by its {own}, and the model returns "
    "something else than for a copy",
    reasons.Unverified: _unverified,
    reasons.RunFailed: lambda fact: str(fact.why)[:_MAX_ERROR],
    reasons.NotExported: _not_exported,
    reasons.NoProgram: lambda fact: "; ".join(
        f"{name}: {why}" for name, why in zip(fact.names, fact.whys, strict=False)
    ),
    reasons.FilledState: "the call has a filled {name}, which is not an input of the model",
    AssertionFailed: _assertion,
    OtherAssertion: "{said}",
}
