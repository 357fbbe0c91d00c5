"""Keeps every assertion of a trace in its program.

A trace that knows the values of its sample notes what they decided: ``if x.mean().item() > 0.5`` on
the false side is the assertion ``zuf0 <= 0.5``. When torch (2.15) writes these assertions into the
graph, it drops a bound of a single float, which it takes for a range that is checked elsewhere, and
whatever it has no operator for: a float together with a size, or a float that was converted to an
int. Once an ``if`` has found ``u0 == 2 * s0``, it uses the node of ``u0`` for ``2 * s0`` as well,
so that the assertion compares the node with itself. A program without an assertion silently serves
the other side of the ``if``. Here the assertions are written in a form that torch keeps, and a
program that still lacks one is rejected (docs/decisions/onnx.md).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Proxy

from calltape_analyzer.exporting.causes import place_in_the_model
from calltape_analyzer.foreign_errors import ASKS, UNBACKED, asserted_condition, place_in_model

__all__ = ["kept_assertions", "require_assertions"]

_ASSERT = torch.ops.aten._assert_scalar.default
_UNLIMITED = 2**62
"""A bound beyond it is none: sizes end at 2**63 - 1, and torch rounds that."""


@contextlib.contextmanager
def kept_assertions(*, of_model: bool = True) -> Iterator[None]:
    """Makes a trace, or a conversion, write all assertions into the graph. Does nothing if this
    torch writes them in another way; then :func:`require_assertions` rejects the program.

    Args:
        of_model: whether the model itself runs, so that its lines are known.
    """
    # Not imported above, because torch imports a computer algebra system for them.
    passes: list[Any] = [importlib.import_module(name) for name in _INSERTING]
    shapes: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    analysis: Any = importlib.import_module("torch.utils._sympy.reference").PythonReferenceAnalysis
    inserting: Any = importlib.import_module("torch.fx.passes.runtime_assert")
    insert_before = getattr(passes[0], INSERT, None)
    lacks_operator = getattr(shapes, _LACKS_OPERATOR, None)
    if insert_before is None or lacks_operator is None or not hasattr(inserting, _OF_NODE):
        yield
        return
    relational = importlib.import_module("sympy").core.relational.Relational

    def insert(module: Any, environment: Any, *args: Any, **kwargs: Any) -> Any:
        for found in environment.deferred_runtime_asserts.values():
            found[:] = [_in_kept_form(assertion, of_model=of_model) for assertion in found]
        of_node = functools.partial(_unsolved, environment)
        with _patched([(shapes, _LACKS_OPERATOR, lacks), (inserting, _OF_NODE, of_node)]):
            returned = insert_before(module, environment, *args, **kwargs)
        _say_where(module.graph, environment)
        return returned

    def lacks(expression: Any) -> bool:
        # Sizes of results are left as they are: only assertions have operators of ours.
        return not expression.has(relational) and lacks_operator(expression)

    methods = [(analysis, name, staticmethod(method)) for name, method in _METHODS.items()]
    with _patched([*((one, INSERT, insert) for one in passes), *methods]):
        yield


@contextlib.contextmanager
def _patched(names: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Sets attributes of modules and classes within the block."""
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in names]
    try:
        for owner, name, value in names:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


_INSERTING = "torch._export.utils", "torch.export.exported_program"
INSERT = "insert_deferred_runtime_asserts"
_LACKS_OPERATOR = "_has_uninterpretable_sympy_function"
_OF_NODE = "_get_sym_val"


def _unsolved(environment: Any, node: Any) -> Any:
    """What a node computes, as an expression of unbacked symbols, even if an ``if`` found what they
    are equal to; None if it is no number."""
    value = node.meta.get("example_value", node.meta.get("val"))
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return None
    expression: Any = value.node._expr
    renamed = environment.unbacked_renamings
    replacements = {
        symbol: renamed.get(symbol, symbol)
        if UNBACKED.fullmatch(str(symbol))
        else environment.replace(symbol)
        for symbol in expression.free_symbols
    }
    return expression.xreplace(replacements)


def _in_kept_form(assertion: Any, *, of_model: bool) -> Any:
    """An assertion that torch keeps. A bound of a single float is written so that torch does not
    take it for a range: ``2*zuf0 <= 1.0`` for ``zuf0 <= 0.5``, which is the same for every float.

    Args:
        assertion: of a trace.
        of_model: whether the model itself runs. Then the assertion names its line, because torch
            drops the stack afterwards.
    """
    place = place_in_the_model(assertion.stack.summary()) if of_model else None
    message = assertion.msg if place is None else f"{ASKS}{place}"
    kept = assertion.expr
    if _is_bound(kept) and not any(symbol.is_integer for symbol in kept.free_symbols):
        left, right = kept.args
        kept = kept.func(2 * left, 2 * right)
    return type(assertion)(kept, message, assertion.stack)


def _is_bound(expression: Any) -> bool:
    """Whether an assertion is a bound of a single symbol."""
    sympy: Any = importlib.import_module("sympy")
    if not isinstance(expression, sympy.Le | sympy.Ge):
        return False
    kinds = {side.is_Symbol for side in expression.args}
    return kinds == {True, False} and any(side.is_Number for side in expression.args)


def _as_node(function: Callable[..., Any], *, has_digits: bool = False) -> Callable[..., Any]:
    """A method of torch's analysis that calls a function of Python: in a node of the graph, if the
    argument is one.

    Args:
        function: takes a number, and digits if it has some.
        has_digits: whether the second argument of the method is digits, and not a dtype.
    """

    def method(value: Any, second: Any) -> Any:
        args = (value, second) if has_digits else (value,)
        if not isinstance(value, Proxy):
            return function(*args)
        return value.tracer.create_proxy("call_function", function, args, {})

    return method


_METHODS = {
    "floor_to_int": _as_node(math.floor),
    "ceil_to_int": _as_node(math.ceil),
    "trunc_to_int": _as_node(math.trunc),
    "round_to_int": _as_node(round),
    "round_decimal": _as_node(round, has_digits=True),
}
"""Replace methods of torch's analysis that make no node of the graph."""


def _say_where(graph: Any, environment: Any) -> None:
    """Adds the line of the model to the message of each assertion of a graph. A range of a symbol
    gets the line of another assertion about the symbol. Decompositions repeat assertions of the
    graph with new symbols, which get the same line."""
    assertions = [
        assertion for found in environment.deferred_runtime_asserts.values() for assertion in found
    ]
    placed = [assertion for assertion in assertions if place_in_model(str(assertion.msg))]
    by_text = {str(assertion.expr): assertion.msg for assertion in reversed(placed)}
    by_symbol = {
        str(symbol): assertion.msg
        for assertion in reversed(placed)
        for symbol in assertion.expr.free_symbols
    }
    nodes = [node for node in graph.nodes if _is_assertion(node)]
    alike = {
        UNBACKED.sub("", asserted): f"{ASKS}{known_place}"
        for node in nodes
        if (known_place := place_in_model(str(node.args[1])))
        and (asserted := asserted_condition(str(node.args[1])))
    }
    for node in nodes:
        is_new = not place_in_model(str(node.args[1]))  # of an earlier pass
        condition = asserted_condition(str(node.args[1])) if is_new else None
        if condition is None:
            continue
        symbols = dict.fromkeys(UNBACKED.findall(condition))
        before = alike.get(UNBACKED.sub("", condition))
        places = [by_text.get(condition), *map(by_symbol.get, symbols), before]
        place = next(filter(None, places), None)
        if place is not None:
            node.args = (node.args[0], f"{node.args[1]}: {place}")


def _is_assertion(node: Any) -> bool:
    return node.target is _ASSERT and len(node.args) > 1


def require_assertions(exported: Any) -> None:
    """Rejects a program that lacks an assertion of its trace.

    Args:
        exported: a ``torch.export.ExportedProgram``.

    Raises:
        RuntimeError: the program lacks one; says which, and where in the model it comes from.
    """
    environment = _environment_of(exported.graph)
    if environment is None:
        return
    nodes = [node for node in exported.graph.nodes if _is_assertion(node)]
    texts = {said for node in nodes if (said := asserted_condition(str(node.args[1])))}
    asserted = {_expression_of(node.args[0]) for node in nodes}
    for assertions in environment.deferred_runtime_asserts.values():
        for assertion in assertions:
            is_there = str(assertion.expr) in texts or assertion.expr in asserted
            if not is_there and not _follows(assertion.expr, asserted):
                raise RuntimeError(_lacks(assertion.expr, assertion.msg))
    for guard in environment.guards:
        if not guard.expr.free_symbols <= environment.var_to_sources.keys():
            raise RuntimeError(_lacks(guard.expr, "a condition on what is no input"))


def _lacks(expression: Any, said: str) -> str:
    return f"torch.export leaves an assertion out of the program, {expression}: {said}"


def _environment_of(graph: Any) -> Any:
    """The ``ShapeEnv`` of a graph; None if it has no symbols."""
    for node in graph.nodes:
        value = node.meta.get("val")
        mode = getattr(value, "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            return mode.shape_env
    return None


def _expression_of(node: Any) -> Any:
    """What a node asserts; None if that is unknown. torch takes a bound for true once it has
    asserted it, so that a comparison is read from its operands."""
    if not isinstance(node, torch.fx.Node):
        return None
    relation = _RELATIONS.get(node.target)
    if relation is not None:
        operands = [_operand(arg) for arg in node.args]
        if None not in operands:
            return getattr(importlib.import_module("sympy"), relation)(*operands)
    value = node.meta.get("val")
    return value.node._expr if isinstance(value, torch.SymBool) else None


_RELATIONS: dict[Any, str] = {
    operator.ge: "Ge", operator.le: "Le", operator.gt: "Gt", operator.lt: "Lt",
}  # fmt: skip


def _operand(one: Any) -> Any:
    value = one.meta.get("val") if isinstance(one, torch.fx.Node) else one
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return value.node._expr
    return importlib.import_module("sympy").sympify(value) if type(value) in (int, float) else None


def _follows(bound: Any, asserted: set[Any]) -> bool:
    """Whether a bound of an int follows from a range that the program checks."""
    if not _is_bound(bound):
        return False
    symbol, low, high = _limits(bound)
    if low <= -_UNLIMITED and high >= _UNLIMITED:
        return True
    limits = [_limits(one) for one in asserted if one is not None and _is_bound(one)]
    own_limits = [one for one in limits if one[0] == symbol]
    return (
        any(one[1] >= low for one in own_limits)
        if low > -_UNLIMITED
        else any(one[2] <= high for one in own_limits)
    )


def _limits(bound: Any) -> tuple[Any, float, float]:
    """The symbol of a bound, with the smallest and the largest value that it allows."""
    left, right = bound.gts, bound.lts
    if left.is_Symbol:
        return left, float(right), math.inf
    return right, -math.inf, float(left)
