"""What a program cannot reproduce: some kinds of tensors, Python's random numbers, and some
queries.

``torch.export`` (2.15) fails on a nested tensor, as an argument and where the model creates one.
With ``strict=True`` it returns a program that can be neither run nor saved. A tape has no values of
sparse tensors. Such variants are left out without a trace.

A model may draw random numbers with Python or numpy: ``if random.random() < 0.1``. A trace sees the
consequence of a number but not the number, so a program cannot draw it. Two runs do not show that,
because neither takes a rare branch. So a recorded call runs with the smallest and the largest
numbers that the generators return. If all results agree, they do not depend on the numbers: a model
may draw in training mode only, or seed its own generator.

Code may query flags such as ``is_conj()``, whether a tensor is a ``Parameter``, or its address. The
code is read and not run, so it is unknown whether results depend on the answer. Strides and shared
memory are not among these facts: a tape has them, and programs have guards on them.

A trace makes a constant of what Python computes from values (``len(str(ids.tolist()))``), so that
the program does not read the values. It does not read them either if the model does not need the
argument. A program does not show which is the case, so it gets a note.
"""

from __future__ import annotations

import dis
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.nn import Module, Parameter

from calltape_analyzer.arguments.plan import ArgumentPlan
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.comparison.comparing import compared
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.model.code import functions_held_by, may_draw, modules_of_code, names_in
from calltape_analyzer.model.randomness import OF_NUMPY
from calltape_analyzer.programs.notes import NotDrawn
from calltape_analyzer.programs.reasons import DrawnByPython, Untraceable, UntraceableKind
from calltape_analyzer.pytree.nodes import nested_places
from calltape_analyzer.pytree.placeholder import has_data_keys
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.facts import VariantFacts

if TYPE_CHECKING:
    from calltape_analyzer.model.randomness import Numbers

__all__ = ["drawn_by_python", "queried_facts", "unread_inputs", "why_untraceable"]

_STORED = ("strided", "jagged")
"""The layouts for which a tape has values."""


def why_untraceable(variant: VariantFacts, call: Call) -> Untraceable | None:
    """Why ``torch.export`` cannot make a program for a variant; None if it may.

    Args:
        variant: what is to be exported.
        call: the first call of the variant.
    """
    by_data = [
        str(name) for name, root in variant.group.layout.nodes.items() if has_data_keys(root)
    ]
    if by_data:
        return Untraceable(UntraceableKind.DATA_KEYS, tuple(by_data))
    group = variant.group
    layouts = {
        str(place): facts.layout
        for place, facts in zip(group.layout.tensors, group.facts, strict=True)
    }
    passed = [path for _, path in group.layout.nested_places]
    passed += [path for path, layout in layouts.items() if layout == "nested"]
    if passed:
        return Untraceable(UntraceableKind.NESTED, tuple(passed))
    sparse = {path: layout for path, layout in layouts.items() if layout not in _STORED}
    if sparse:
        layouts_of = tuple(sorted(set(sparse.values())))
        return Untraceable(UntraceableKind.SPARSE, tuple(sparse), layouts_of)
    outputs = call.record.outputs
    places = () if outputs is None else nested_places(outputs.spec().root, "outputs")
    returned_nested = [path for _, path in places]
    if returned_nested:
        return Untraceable(UntraceableKind.RETURNS_NESTED, tuple(returned_nested))
    return None


_MAX_ROWS = 24
_NUMBERS: tuple[Numbers, ...] = ("smallest", "largest", "others")


def drawn_by_python(session: Session, variant: VariantFacts) -> DrawnByPython | NotDrawn | None:
    """Whether the model draws random numbers with Python or numpy in recorded calls.

    Args:
        session: has the model.
        variant: of the calls. One of each size is run if the code of the model names a function
            that draws, else one.

    Returns:
        Why there is no program, if results depend on these numbers; else a note, if it draws any.
    """
    note: NotDrawn | None = None
    rows = _MAX_ROWS if may_draw(session.module) else 1
    for _, seen in islice(variant.rows.items(), rows):
        observed = session.observation(seen.first)
        is_complete = observed is not None and observed.queries is not None
        generators = observed.generators if observed is not None and is_complete else None
        if generators is not None and set(generators) <= {"torch"}:
            continue
        plan, sample = session.planned(variant, seen.first)
        moved: Sequence[str] = ()
        with suppress(Exception):  # the model raises: that is no evidence
            run = session.run(plan, sample)
            moved = [name for name in run.generators if name != "torch"]
        if not moved:
            continue
        if _matter(session, plan, sample, moved):
            return DrawnByPython(tuple(moved))
        note = NotDrawn(tuple(moved))
    return note


def _matter(session: Session, plan: ArgumentPlan, sample: Sample, moved: Sequence[str]) -> bool:
    """Whether a result depends on random numbers of Python or numpy; ``moved`` names the generators
    that a run drew from."""
    if OF_NUMPY in moved:  # it cannot be made to return the smallest numbers
        return True

    def differs() -> bool:
        now = session.eager(plan, sample)
        others = (session.eager(plan, sample, python=numbers) for numbers in _NUMBERS)
        return not all(compared(now, other, session.tolerances).agrees for other in others)

    try:  # in the sandbox, because the model may not finish with numbers that are never drawn
        return bool(session.in_sandbox(differs, session.budget.within(session.probing.seconds)))
    except Exception:  # models raise errors of any type
        return True


_METHODS = frozenset({
    "_is_alias_of", "_is_view", "_typed_storage", "data_ptr", "is_conj", "is_inference", "is_neg",
    "storage_offset", "untyped_storage",
})  # fmt: skip
_FACTS = _METHODS | {"Parameter", "_base", "_version", "grad_fn", "is_leaf"}
"""Names in code that query a fact."""
_LOADS = frozenset({"LOAD_ATTR", "LOAD_GLOBAL", "LOAD_METHOD"})
_OWNERS = ("nn", "parameter")
"""The names of what has torch's Parameter."""
_CALLED = ("forward", "__call__")
"""Methods that are called although no code names them."""


class QueriedFact(NamedTuple):
    """A query of a fact in code.

    Attributes:
        name: of the method, the property or the class.
        file: that contains the code, without its folders.
        line: of the file.
    """

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        called = "()" if self.name in _METHODS else ""
        return f"{self.name}{called} ({self.file}:{self.line})"


def queried_facts(target: Any, method: str = "forward") -> list[QueriedFact]:
    """The facts that the code of a model queries, each at the first place where it does.

    Args:
        target: the model.
        method: its method that is called.
    """
    facts: dict[str, QueriedFact] = {}
    for function in _reached(target, method):
        for fact in _queries_in(function.__code__, function.__globals__):
            first = facts.setdefault(fact.name, fact)
            facts[fact.name] = min(first, fact)
    return sorted(facts.values(), key=lambda fact: (fact.file, fact.line))


def _reached(target: Any, method: str) -> Iterator[FunctionType]:
    """The functions that a call may reach: those in attributes of the model's parts, the called
    methods, and all that the code of these names, recursively. A model has many other functions,
    such as those that load weights."""
    parts = list(getattr(target, "modules", tuple)())
    by_name = _values_by_name(target, parts)
    waiting: list[Any] = [target, *(value for part in parts for value in vars(part).values())]
    waiting += [member for name in (method, *_CALLED) for member in by_name.pop(name, ())]
    seen: set[int] = set()
    while waiting:
        function = _function_of(waiting.pop())
        if function is not None and id(function) not in seen:
            seen.add(id(function))
            yield function
            waiting += functions_held_by(function)
            names = names_in(function.__code__)
            waiting += [member for name in names for member in by_name.pop(name, ())]


def _values_by_name(target: Any, parts: Sequence[Any]) -> dict[str, list[Any]]:
    """The attributes of the classes of a model, of the Python modules that define these, and of the
    classes in there that are not models."""
    # By their ids: a class may have a metaclass without a hash.
    owners: dict[int, Any] = {id(kind): kind for part in parts for kind in type(part).__mro__}
    for module in [sys.modules[name] for name in modules_of_code(target) if name in sys.modules]:
        owners[id(module)] = module
        kinds = (member for member in list(vars(module).values()) if isinstance(member, type))
        owners.update({id(kind): kind for kind in kinds if not issubclass(kind, Module)})
    values: dict[str, list[Any]] = defaultdict(list)
    for owner in owners.values():
        for name, value in list(vars(owner).items()) if _is_own(owner) else ():
            if name in _CALLED or not name.startswith("__"):  # super().__init__() names all of them
                values[name].append(value)
    return values


def _function_of(value: Any) -> FunctionType | None:
    """The function that runs if a value is called or read, if it is the model's own code."""
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, (classmethod, staticmethod, MethodType)):
        value = value.__func__
    return value if isinstance(value, FunctionType) and _is_own(value) else None


def _is_own(value: Any) -> bool:
    """Whether a function, a class or a Python module does not belong to torch."""
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    return str(name).partition(".")[0] not in ("torch", "builtins")


def _queries_in(code: CodeType, beside: Mapping[str, Any]) -> Iterator[QueriedFact]:
    """The queries in code.

    Args:
        code: of a function, or of one within it.
        beside: the globals of the function.
    """
    owner: Any = None
    for instruction in dis.get_instructions(code):
        name, at = instruction.argval, instruction.offset
        if instruction.opname in _LOADS and name in _FACTS:
            is_global = instruction.opname == "LOAD_GLOBAL"
            # ``inspect`` has a Parameter, too.
            value = beside.get(name) if is_global else owner
            is_own = value is Parameter or (isinstance(value, str) and value in _OWNERS)
            if name != "Parameter" or is_own:
                line = next(line for begin, end, line in code.co_lines() if begin <= at < end)
                file = Path(code.co_filename).name
                yield QueriedFact(name, file, line or code.co_firstlineno)
        if instruction.opname != "EXTENDED_ARG":
            owner = name
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _queries_in(constant, beside)


_OF_SIZES = ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset")
"""Operators that do not read the values of their tensor."""
_CHECKS = ("_assert", "sym_constrain_range")


def unread_inputs(exported: Any, names: Sequence[str]) -> list[str]:
    """The names of the input tensors whose values do not matter: no output, no written tensor and
    no condition depends on them.

    Args:
        exported: a ``torch.export.ExportedProgram``.
        names: of its inputs, for people.
    """
    nodes = {node.name: node for node in exported.graph.nodes}

    def has_effect(node: Any) -> bool:
        if node.op != "call_function":
            return bool(node.op == "output")
        schema = getattr(node.target, "_schema", None)
        is_check = any(word in str(node.target) for word in _CHECKS)
        return is_check or getattr(schema, "is_mutable", False)

    read = _read_by([node for node in nodes.values() if has_effect(node)])
    inputs = [s for s in exported.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    return [
        name
        for name, spec in zip(names, inputs, strict=True)
        if (node := nodes.get(getattr(spec.arg, "name", ""))) is not None
        and hasattr(node.meta.get("val"), "shape")
        and node not in read
    ]


def _read_by(nodes: Sequence[Any]) -> set[Any]:
    """The nodes, and all nodes whose values they depend on."""
    read, waiting = set(nodes), list(nodes)
    while waiting:
        node = waiting.pop()
        is_of_sizes = node.op == "call_function" and any(w in str(node.target) for w in _OF_SIZES)
        for before in () if is_of_sizes else node.all_input_nodes:
            if before not in read:
                read.add(before)
                waiting.append(before)
    return read
