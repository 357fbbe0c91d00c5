"""The assertions of a trace, every one of them in its program.

A trace that knows the values of its sample notes what they decided: ``if x.mean().item() > 0.5`` on
the false side is the assertion ``zuf0 <= 0.5``. When torch (2.15) writes its notes into the graph,
it leaves out a bound of a single float, which it takes for a range that is checked elsewhere, and
what it has no operator for: a float beside a size, a float that was made an int. Once an ``if`` has
found ``u0 == 2 * s0``, it takes the node of ``u0`` for ``2 * s0`` as well, so that the assertion
compares the node with itself. A program without them serves the other side of the ``if`` with no
word. Here they are written in a form that torch keeps, and a program that lacks one after all is
none (docs/decisions/onnx.md).
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
from calltape_analyzer.foreign_errors import ASKS, UNBACKED, asserted_condition, place_of

__all__ = ["kept_assertions", "require_assertions"]

_ASSERT = torch.ops.aten._assert_scalar.default
_UNLIMITED = 2**62
"""A bound beyond it is none: sizes end at 2**63 - 1, and torch rounds that."""


@contextlib.contextmanager
def kept_assertions(*, of_model: bool = True) -> Iterator[None]:
    """Lets a trace, or a conversion, write all assertions into the graph. Does nothing if this
    torch writes them in another way; then :func:`require_assertions` finds out.

    Args:
        of_model: whether the model itself runs, so that its lines are known.
    """
    # Not imported above, because torch imports a computer algebra system for them.
    passes: list[Any] = [importlib.import_module(name) for name in _INSERTING]
    shapes: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    analysis: Any = importlib.import_module("torch.utils._sympy.reference").PythonReferenceAnalysis
    inserting: Any = importlib.import_module("torch.fx.passes.runtime_assert")
    own = getattr(passes[0], INSERT, None)
    lacks_operator = getattr(shapes, _LACKS_OPERATOR, None)
    if own is None or lacks_operator is None or not hasattr(inserting, _OF_NODE):
        yield
        return
    relational = importlib.import_module("sympy").core.relational.Relational

    def insert(module: Any, environment: Any, *args: Any, **kwargs: Any) -> Any:
        for found in environment.deferred_runtime_asserts.values():
            found[:] = [_in_kept_form(_placed(one) if of_model else one) for one in found]
        of_node = functools.partial(_unsolved, environment)
        with _patched([(shapes, _LACKS_OPERATOR, lacks), (inserting, _OF_NODE, of_node)]):
            returned = own(module, environment, *args, **kwargs)
        _say_where(module.graph, environment)
        return returned

    def lacks(expression: Any) -> bool:
        # Sizes of results are left as they are: only assertions have operators of ours.
        return not expression.has(relational) and lacks_operator(expression)

    lowered = [(analysis, name, staticmethod(one)) for name, one in _LOWERED.items()]
    with _patched([*((one, INSERT, insert) for one in passes), *lowered]):
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
    """What a node computes, in terms of what values tell, and not of what an ``if`` found that to
    be; None if it is no number."""
    value = node.meta.get("example_value", node.meta.get("val"))
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return None
    expression: Any = value.node._expr
    symbols, renamed = expression.free_symbols, environment.unbacked_renamings
    return expression.xreplace({
        one: renamed.get(one, one) if UNBACKED.fullmatch(str(one)) else environment.replace(one)
        for one in symbols
    })  # fmt: skip


def _placed(assertion: Any) -> Any:
    """An assertion that says where the model asks. Afterwards torch forgets the stack."""
    place = place_in_the_model(assertion.stack.summary())
    said = assertion.msg if place is None else f"{ASKS}{place}"
    return type(assertion)(assertion.expr, said, assertion.stack)


def _in_kept_form(assertion: Any) -> Any:
    """An assertion that torch does not take for a range: ``2*zuf0 <= 1.0`` for ``zuf0 <= 0.5``,
    which is the same for every float."""
    if not _is_bound(assertion.expr) or any(one.is_integer for one in assertion.expr.free_symbols):
        return assertion
    left, right = assertion.expr.args
    kept = assertion.expr.func(2 * left, 2 * right)
    return type(assertion)(kept, assertion.msg, assertion.stack)


def _is_bound(expression: Any) -> bool:
    """Whether an assertion is a bound of a single symbol."""
    sympy: Any = importlib.import_module("sympy")
    if not isinstance(expression, sympy.Le | sympy.Ge):
        return False
    kinds = {one.is_Symbol for one in expression.args}
    return kinds == {True, False} and any(one.is_Number for one in expression.args)


def _node(function: Callable[..., Any], value: Any, *more: Any) -> Any:
    """A function of Python, as a node of the graph if its argument is one."""
    if not isinstance(value, Proxy):
        return function(value, *more)
    return value.tracer.create_proxy("call_function", function, (value, *more), {})


def _floor(value: Any, dtype: Any) -> Any:
    return _node(math.floor, value)


def _ceil(value: Any, dtype: Any) -> Any:
    return _node(math.ceil, value)


def _trunc(value: Any, dtype: Any) -> Any:
    return _node(math.trunc, value)


def _round(value: Any, dtype: Any) -> Any:
    return _node(round, value)


def _round_decimal(value: Any, digits: Any) -> Any:
    return _node(round, value, digits)


_LOWERED = {
    "floor_to_int": _floor, "ceil_to_int": _ceil, "trunc_to_int": _trunc, "round_to_int": _round,
    "round_decimal": _round_decimal,
}  # fmt: skip
"""What torch gives no node for, as nodes."""


def _say_where(graph: Any, environment: Any) -> None:
    """Lets each assertion of a graph say where the model asks. A range of a symbol is asked for
    where the symbol is. Decompositions assert once more what the graph asserts, of new symbols."""
    made = [one for found in environment.deferred_runtime_asserts.values() for one in found]
    placed = [one for one in made if place_of(str(one.msg))]
    by_text = {str(one.expr): one.msg for one in reversed(placed)}
    by_symbol = {
        str(symbol): one.msg for one in reversed(placed) for symbol in one.expr.free_symbols
    }
    every = [node for node in graph.nodes if _is_assertion(node)]
    alike = {
        UNBACKED.sub("", asserted): f"{ASKS}{known}"
        for node in every
        if (known := place_of(str(node.args[1])))
        and (asserted := asserted_condition(str(node.args[1])))
    }
    for node in every:
        is_new = not place_of(str(node.args[1]))  # of an earlier pass
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
    """Wants every assertion that a trace made to be in its program.

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
    for found in environment.deferred_runtime_asserts.values():
        for one in found:
            is_there = str(one.expr) in texts or one.expr in asserted
            if not is_there and not _follows(one.expr, asserted):
                raise RuntimeError(_lacks(one.expr, one.msg))
    for guard in environment.guards:
        if not guard.expr.free_symbols <= environment.var_to_sources.keys():
            raise RuntimeError(_lacks(guard.expr, "a condition on what is no input"))


def _lacks(expression: Any, said: str) -> str:
    return f"torch.export leaves an assertion out of the program, {expression}: {said}"


def _environment_of(graph: Any) -> Any:
    """What knows the symbols of a graph; None if it has none."""
    for node in graph.nodes:
        value = node.meta.get("val")
        mode = getattr(value, "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            return mode.shape_env
    return None


def _expression_of(node: Any) -> Any:
    """What a node asserts; None if that is not known. torch takes a bound that it has asserted for
    true from then on, so that a comparison is read from its operands."""
    if not isinstance(node, torch.fx.Node):
        return None
    relation = _RELATIONS.get(node.target)
    if relation is not None:
        operands = [_operand(one) for one in node.args]
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
    known = [_limits(one) for one in asserted if one is not None and _is_bound(one)]
    own = [one for one in known if one[0] == symbol]
    return (
        any(one[1] >= low for one in own)
        if low > -_UNLIMITED
        else any(one[2] <= high for one in own)
    )


def _limits(bound: Any) -> tuple[Any, float, float]:
    """The symbol of a bound, with the smallest and the largest value that it allows."""
    left, right = bound.gts, bound.lts
    if left.is_Symbol:
        return left, float(right), math.inf
    return right, -math.inf, float(left)
