"""Traces a variant: what ``torch.export`` gets, with which settings, and the program that results.

The traced module takes plain containers, makes the model's own call, and returns plain containers.
The settings say which sizes are open, and what replaces parts of torch and the model meanwhile.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch

from calltape_analyzer.arguments.plan import (
    ArgumentPlan,
    FormLeaf,
    PlainForm,
    Template,
    as_call,
    form_of_result,
    template_of_result,
)
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.arguments.sizings import is_batch_symbol
from calltape_analyzer.comparison.comparing import compared
from calltape_analyzer.exporting.inspection.untraceable import unread_inputs
from calltape_analyzer.exporting.session.budget import time_limit
from calltape_analyzer.exporting.session.sandbox import RunEndedError
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.torch_fixes.cached_functions import cached_functions
from calltape_analyzer.exporting.torch_fixes.constant_tensors import known_constants
from calltape_analyzer.exporting.torch_fixes.empty_results import NotEmpty, never_empty
from calltape_analyzer.exporting.torch_fixes.empty_selections import settle_assertions
from calltape_analyzer.exporting.torch_fixes.hidden_tracing import hidden_tracing
from calltape_analyzer.exporting.torch_fixes.integral_floats import integral_floats
from calltape_analyzer.exporting.torch_fixes.kept_assertions import (
    kept_assertions,
    require_assertions,
)
from calltape_analyzer.exporting.torch_fixes.memory_formats import no_memory_formats
from calltape_analyzer.exporting.torch_fixes.module_casts import unneeded_casts
from calltape_analyzer.exporting.torch_fixes.nonzero_loops import Line, every_item
from calltape_analyzer.exporting.torch_fixes.open_operators import OpenOperators
from calltape_analyzer.exporting.torch_fixes.own_generators import own_generators
from calltape_analyzer.exporting.torch_fixes.padded_strides import padded_strides
from calltape_analyzer.exporting.torch_fixes.patching import PATCHING
from calltape_analyzer.exporting.torch_fixes.python_values import (
    real_values,
    symbolic_numbers,
    symbolic_sizes,
)
from calltape_analyzer.exporting.torch_fixes.recurrence import open_lengths
from calltape_analyzer.exporting.torch_fixes.result_counts import result_counts_from_zero
from calltape_analyzer.exporting.torch_fixes.rounded_bounds import rounded_bounds
from calltape_analyzer.foreign_errors import failure_of
from calltape_analyzer.model.calls import as_called, device_of, experts_as, under_autocast
from calltape_analyzer.model.randomness import generators_kept
from calltape_analyzer.model.state import preserved, unchanged
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.programs import notes
from calltape_analyzer.programs.caller_objects import as_traced, returned_arguments
from calltape_analyzer.programs.conditions import Conditions
from calltape_analyzer.programs.exported_model import ExportedModel, TorchModel
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.placeholder import check_rebuilt
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.tree import ScalarNode, TensorNode

__all__ = ["SETTINGS", "Convert", "Narrow", "TraceSettings", "trace"]

Convert = Callable[[Any, ArgumentPlan, Any, VariantFacts], ExportedModel]
"""Converts an ``ExportedProgram`` to a model of another runtime. Also gets its inputs, its result
and its variant."""

_CLOCK_FACTOR = 4
"""How many times its limit of processor time a trace may take by the clock, because other work may
use the processor as well."""


class TraceResult:
    """What a model returned while it was traced. A separate object, because exporters restore the
    attributes of a module.

    Attributes:
        form: the template and the plain form of the result; None before the model returned.
        classes: of the objects in the result, by name.
        returned: the items of the result that are arguments, as of :attr:`Program.returned`.
        result_arguments: as :attr:`Program.result_arguments`.
    """

    form: tuple[Template, PlainForm] | None = None
    classes: dict[str, type]
    returned: dict[str, str]
    result_arguments: dict[int, int]


class TracedModel(torch.nn.Module):
    """A model behind the inputs of a plan.

    It shares the model's parameters, buffers and submodules, so they keep their names in the
    exported program. ``forward`` has one explicit parameter per input (rule 10 of
    docs/decisions/export-strategies.md: an input in ``**kwargs`` breaks at run time).

    Args:
        module: the model.
        call: the model, or its recorded method.
        plan: the inputs.
        classes: of objects among the arguments.
        own_buffers: whether the model may register buffers during the trace, which torch numbers.
            Then a buffer of the root that is replaced is not written.

    Attributes:
        result: what the model returned during the trace.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        plan: ArgumentPlan,
        classes: ClassIndex,
        *,
        own_buffers: bool = False,
    ) -> None:
        super().__init__()
        for registry in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, registry, getattr(module, registry))
        if own_buffers:
            object.__setattr__(self, "_buffers", dict(module._buffers))
        self.training = getattr(module, "training", False)
        self.result = TraceResult()
        # In a tuple: an attribute would register the model as its own submodule.
        self._model = (call,)
        self._plan = plan
        self._classes = classes
        self._device = str(device_of(module))

        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._run(args, kwargs)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [inspect.Parameter(name, kind) for name in plan.forms]
        vars(forward)["__signature__"] = inspect.Signature(names)
        self.forward = forward

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = dict(zip(self._plan.forms, args, strict=False)) | kwargs
        # New tensors, so that no program holds a tensor of a recorded call.
        tensors: dict[int, Any] = {
            place: torch.tensor(value.tolist(), dtype=value.dtype, device=self._device)
            for place, value in self._plan.frozen.items()
        }
        ints: dict[int, Any] = {}
        for form_leaf, value in self._plan.read(inputs):
            if form_leaf.kind == "tensor":
                tensors[form_leaf.index] = value
            else:
                ints[form_leaf.index] = value.item() if form_leaf.kind == "float" else value
        arguments = self._plan.template.build(tensors, ints, self._classes, self._device)
        check_rebuilt(arguments.items(), self._plan.signature.may_lack)
        positional, named = as_call(arguments, self._plan.signature)
        with under_autocast(self._plan.context, self._device):
            returned = self._model[0](*positional, **named)
        self.result.returned = returned_arguments(returned, arguments)
        return self._flattened(returned, {id(one): number for number, one in tensors.items()})

    def _flattened(self, returned: Any, passed: Mapping[int, int]) -> Any:
        template, tensors, self.result.classes = template_of_result(returned)
        pairs = enumerate(map(id, tensors))
        self.result.result_arguments = {
            place: passed[tensor_id] for place, tensor_id in pairs if tensor_id in passed
        }
        symbolic = {
            i: value
            for i, value in enumerate(template.scalars)
            if isinstance(value, torch.SymInt | torch.SymFloat) and i not in template.counters
        }

        def leaf_of(node: Any) -> FormLeaf | None:
            if isinstance(node, TensorNode) and node.leaf not in template.derived:
                return FormLeaf("tensor", node.leaf)
            if isinstance(node, ScalarNode) and node.scalar in symbolic:
                is_int = isinstance(symbolic[node.scalar], torch.SymInt)
                return FormLeaf("int" if is_int else "float", node.scalar)
            return None

        form = form_of_result(template.layout.nodes["output"], leaf_of)
        plain = tuple(
            0 if i in symbolic or i in template.counters else value
            for i, value in enumerate(template.scalars)
        )
        self.result.form = (
            Template(template.layout, plain, template.counters, template.derived), form
        )  # fmt: skip
        return form.fill(
            lambda leaf: tensors[leaf.index] if leaf.kind == "tensor" else symbolic[leaf.index]
        )


Narrow = Literal["batch", "static"]
"""Which sizes stay fixed: all but first dimensions, or all."""


@dataclass(frozen=True)
class TraceSettings:
    """How a variant is traced. By default all dynamic sizes are open, and no value is known.

    Attributes:
        strategy: its name.
        static: whether no size is open.
        batch: whether only first dimensions are open.
        open_lengths: whether recurrent layers are traced for any length.
        symbolic_ints: whether ints that the model reads from tensors become symbols.
        symbolic_floats: whether floats that it makes of tensors and sizes become symbols.
        real_values: whether the trace knows the values of its sample, and asserts them.
        never_empty: whether results whose size depends on values are assumed not to be empty, which
            is asserted.
        every_item: the loops over selected items that run for every item.
        own_buffers: whether the model may register buffers during the trace.
        experts: how a mixture of experts runs them; None for the model's own implementation.
        deferred: whether guards become assertions in the program where possible.
        hides_tracing: whether the model is told that no trace is running.
    """

    strategy: Strategy
    static: bool = False
    batch: bool = False
    open_lengths: bool = False
    symbolic_ints: bool = False
    symbolic_floats: bool = False
    real_values: bool = False
    never_empty: bool = False
    every_item: frozenset[Line] = frozenset()
    own_buffers: bool = False
    experts: str | None = None
    deferred: bool = False
    hides_tracing: bool = False

    @property
    def narrow(self) -> Narrow | None:
        """Which sizes stay fixed; None if all dynamic sizes are open."""
        if self.batch:
            return "batch"
        return "static" if self.static else None

    @property
    def is_by_values(self) -> bool:
        """Whether the program may depend on the values of a call, not only on its sizes."""
        by_loops = bool(self.every_item)
        return self.symbolic_ints or self.real_values or self.never_empty or by_loops

    def shapes(self, plan: ArgumentPlan, variant: VariantFacts) -> dict[str, Any] | None:
        """The ``dynamic_shapes`` of ``torch.export.export``."""
        if self.static:
            return None
        auto = torch.export.Dim.AUTO
        first = {c for s in variant.symbols if is_batch_symbol(s) for c in s.columns}
        is_open: Callable[[Column], bool] = first.__contains__ if self.batch else (lambda _: True)
        return plan.shapes(lambda column: auto if is_open(column) else None, variant) or None

    @contextmanager
    def applied(self, module: Any, plan: ArgumentPlan) -> Iterator[NotEmpty]:
        """Applies the settings to torch and to a model within the block. Yields what the trace
        assumes not to be empty.

        Args:
            module: the model.
            plan: the inputs of the trace.
        """
        floats = self.symbolic_floats or any(leaf.kind == "float" for leaf in plan.leaves)
        with PATCHING, ExitStack() as stack:
            for context in (
                experts_as(module, self.experts),
                open_lengths(self.open_lengths),
                OpenOperators(),
                known_constants(bool(plan.frozen)),
                cached_functions(module),
                symbolic_sizes(module, hides_tracing=self.hides_tracing),
                hidden_tracing(self.hides_tracing),
                padded_strides(),
                no_memory_formats(),
                rounded_bounds(),
                result_counts_from_zero(),
                integral_floats(),
                unneeded_casts(),
                kept_assertions(),
                symbolic_numbers(module, ints=self.symbolic_ints, floats=floats),
                real_values(self.real_values),
                every_item(self.every_item),
            ):
                stack.enter_context(context)
            yield stack.enter_context(never_empty(self.never_empty))


SETTINGS: Mapping[Strategy, TraceSettings] = {
    settings.strategy: settings
    for settings in (
        TraceSettings(Strategy.PLAIN),
        TraceSettings(Strategy.OPEN_LENGTHS, open_lengths=True),
        TraceSettings(Strategy.GROWING_BUFFERS, own_buffers=True),
        TraceSettings(Strategy.OPEN_SIZE_INTS, symbolic_ints=True),
        TraceSettings(Strategy.DEFERRED, deferred=True),
        TraceSettings(Strategy.OPEN_INTS, symbolic_ints=True),
        TraceSettings(Strategy.NOT_EMPTY, symbolic_ints=True, never_empty=True),
        TraceSettings(
            Strategy.OPEN_NUMBERS, real_values=True, symbolic_ints=True, symbolic_floats=True
        ),
        TraceSettings(Strategy.BY_VALUES, real_values=True),
        TraceSettings(
            Strategy.BY_VALUES_OPEN_INTS, real_values=True, symbolic_ints=True, open_lengths=True
        ),
        TraceSettings(Strategy.BY_VALUES_DEFERRED, real_values=True, deferred=True),
        TraceSettings(Strategy.UNNOTICED, hides_tracing=True, real_values=True),
        TraceSettings(Strategy.BATCHED_EXPERTS, experts="batched_mm"),
        TraceSettings(Strategy.FIRST_DIMENSIONS, batch=True),
        TraceSettings(Strategy.ONE_SIZE, static=True),
    )
}
"""The settings that are the same for every model."""


def trace(
    session: Session,
    variant: VariantFacts,
    sample: Sample,
    settings: TraceSettings,
    *,
    seconds: float,
    options: Mapping[str, Any],
    convert: Convert | None,
    note_seconds: Callable[[float], None],
) -> Program:
    """Traces a variant, and makes a program of it. The model stays as it is.

    Args:
        session: has the model.
        variant: the calls that the program is for.
        sample: the values to trace with.
        settings: how to trace.
        seconds: of processor time that the trace may take.
        options: for ``torch.export.export``.
        convert: to another runtime; None for a program of torch.
        note_seconds: is called with the seconds of processor time that the trace took.

    Raises:
        Exception: whatever torch, the model or the conversion raises.
    """
    plan = ArgumentPlan.of(variant, sample, session.sorter.signature)
    traced = TracedModel(
        session.module, session.entry, plan, session.classes, own_buffers=settings.own_buffers
    )
    begin = time.thread_time()
    exported, assumed = _export_traced(
        session, traced, variant, plan, sample, settings, options, seconds
    )
    note_seconds(time.thread_time() - begin)
    form = traced.result.form
    if form is None:
        raise RuntimeError("the exporter did not call the model")
    conditions = Conditions.of(exported, plan.names)
    # The model returned objects of these classes, and whoever passed the model trusts them.
    classes = ClassIndex(traced.result.classes | dict(session.classes.by_name))

    def make_program() -> Program:
        model = TorchModel(exported, plan.names)
        return Program(variant, plan, form, model, conditions, classes, session.device)

    is_empty_alike = bool(assumed.places) and _settle_empty_results(
        session, exported, assumed, make_program(), sample, may_try=convert is None
    )
    program = make_program()  # a new one, because the graph may have changed
    if convert is not None:
        program.traced = program.model
        try:
            program.model = convert(exported, plan, form, variant)
        except Exception as error:
            if not (shared := variant.group.key.shared):
                raise
            # torch's own error is one of its assertions.
            raise RuntimeError(
                f"{shared[0].text(variant.group.layout.tensors)}, which ONNX cannot express "
                f"where a model writes to it ({failure_of(error)})"
            ) from error
    program.made_by = settings.strategy
    program.all_notes += [notes.EmptyAgrees()] if is_empty_alike else []
    program.returned = traced.result.returned
    program.result_arguments = traced.result.result_arguments
    program.changed_state |= set(exported.graph_signature.buffers_to_mutate.values())
    _note_trace(program, exported, settings)
    return program


def _note_trace(program: Program, exported: Any, settings: TraceSettings) -> None:
    """Notes on a program what follows from its trace.

    Args:
        program: gets the notes.
        exported: the ``ExportedProgram``.
        settings: how it was traced.
    """
    program.note_state(dict.fromkeys(program.changed_state, ""))
    if settings.static and program.variant.symbols:
        program.note(notes.OneSize())
    if settings.real_values:
        program.note(notes.ByValues())
    if unread := unread_inputs(exported, program.plan.names):
        program.note(notes.UnreadInputs(tuple(unread)))
    if settings.every_item:
        program.note(notes.EveryItem())


def _export_traced(
    session: Session,
    traced: TracedModel,
    variant: VariantFacts,
    plan: ArgumentPlan,
    sample: Sample,
    settings: TraceSettings,
    options: Mapping[str, Any],
    seconds: float,
) -> tuple[Any, NotEmpty]:
    """The ``ExportedProgram`` of a model, and what it assumes not to be empty."""
    import torch._dynamo  # now, because an import that the limit interrupts stays half done

    module = session.module
    args, kwargs = plan.arguments(plan.values(as_traced(variant, sample.cloned())))
    defer = {"prefer_deferred_runtime_asserts_over_guards": True} if settings.deferred else {}
    with (
        preserved(module),
        unchanged(module, tracing=True),
        settings.applied(module, plan) as assumed,
        _without_printed_graphs(),
        time_limit(session.budget.within(_CLOCK_FACTOR * seconds), seconds),
        generators_kept(module),
        as_called(plan.context, session.device, module),
        own_generators(module) if session.makes_generators(variant) else nullcontext(),
    ):
        traced.training = getattr(module, "training", False)
        exported = torch.export.export(
            traced,
            args,
            kwargs,
            dynamic_shapes=settings.shapes(plan, variant),
            **{"strict": False, **defer, **options},
        )
        require_assertions(exported)
    return exported, assumed


@contextmanager
def _without_printed_graphs() -> Iterator[None]:
    """Keeps torch from printing the whole graph of a trace that failed."""
    import torch.export._trace as tracing

    names: Any = vars(tracing)
    names["print"] = lambda *_, **__: None
    try:
        yield
    finally:
        names.pop("print", None)


def _settle_empty_results(
    session: Session,
    exported: Any,
    assumed: NotEmpty,
    program: Program,
    sample: Sample,
    *,
    may_try: bool,
) -> bool:
    """Removes the assertions of a program that results are not empty, if it does not need them.
    Returns whether they are removed.

    Args:
        session: has the model.
        exported: the program of torch, which is changed.
        assumed: what its trace assumed.
        program: runs it.
        sample: of the trace.
        may_try: whether to find out. Another runtime may treat empty tensors differently.
    """

    def checked(check: Callable[[], bool]) -> bool:
        with suppress(RunEndedError):  # no recorded call has an empty result
            limit = session.budget.within(session.probing.seconds)
            return bool(session.in_sandbox(check, limit))
        return False

    return settle_assertions(
        exported,
        assumed,
        checked if may_try else None,
        lambda: session.eager(program.plan, sample),
        lambda: session.outputs(program, sample),
        lambda expected, got: compared(expected, got, session.tolerances).agrees,
    )
