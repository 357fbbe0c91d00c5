"""The ways to trace a variant: which sizes are open, and what stands in for torch and the model.

The module that is traced takes plain containers, makes the model's own call, and returns plain
containers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from calltape_analyzer.arguments.plan import (
    FormLeaf,
    PlainForm,
    Plan,
    Template,
    as_call,
    form_of_result,
    template_of_result,
)
from calltape_analyzer.arguments.sizings import is_batch
from calltape_analyzer.exporting.torch_fixes.cached_functions import cached_functions
from calltape_analyzer.exporting.torch_fixes.constant_tensors import known_constants
from calltape_analyzer.exporting.torch_fixes.empty_results import NotEmpty, never_empty
from calltape_analyzer.exporting.torch_fixes.hidden_tracing import unnoticed
from calltape_analyzer.exporting.torch_fixes.integral_floats import whole_floats
from calltape_analyzer.exporting.torch_fixes.kept_assertions import kept_assertions
from calltape_analyzer.exporting.torch_fixes.memory_formats import unasked_formats
from calltape_analyzer.exporting.torch_fixes.module_casts import unneeded_casts
from calltape_analyzer.exporting.torch_fixes.nonzero_loops import Line, every_item
from calltape_analyzer.exporting.torch_fixes.open_operators import OpenOperators
from calltape_analyzer.exporting.torch_fixes.padded_strides import whole_strides
from calltape_analyzer.exporting.torch_fixes.patching import PATCHING
from calltape_analyzer.exporting.torch_fixes.python_values import (
    real_values,
    symbolic_numbers,
    symbolic_sizes,
)
from calltape_analyzer.exporting.torch_fixes.recurrence import open_lengths
from calltape_analyzer.exporting.torch_fixes.result_counts import least_counts
from calltape_analyzer.exporting.torch_fixes.rounded_bounds import rounded_bounds
from calltape_analyzer.model.calls import device_of, experts_as, under_autocast
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.programs.caller_objects import (
    changed_arguments,
    returned_arguments,
    tensor_ids,
)
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.placeholder import check_rebuilt
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.tree import ScalarNode, TensorNode

__all__ = ["WAYS", "Narrow", "Traced", "Way"]


class Result:
    """What a model returned while it was traced. An object of its own, because exporters put the
    attributes of a module back as they were."""

    found: tuple[Template, PlainForm] | None = None
    classes: dict[str, type]
    returned: dict[str, str]
    changed: list[str]


class Traced(torch.nn.Module):
    """A model behind the inputs of a plan.

    It shares the model's parameters, buffers and submodules, so that they keep their names in the
    exported program. ``forward`` has one explicit parameter per input (rule 10 of
    docs/decisions/export-strategies.md: what ``**kwargs`` takes breaks at run time otherwise).

    Args:
        module: the model.
        call: it, or its method that was recorded.
        plan: the inputs.
        classes: of objects among the arguments.
        own_buffers: whether the model may register buffers while it is traced. torch numbers the
            buffers of a module. With this, a buffer of the root that is replaced is not written.

    Attributes:
        traced: gets the template and form of what the model returned, when it is traced.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        plan: Plan,
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
        self.traced = Result()
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
        given = dict(zip(self._plan.forms, args, strict=False)) | kwargs
        # Made here, so that no program has a tensor of a recorded call.
        tensors: dict[int, Any] = {
            place: torch.tensor(value.tolist(), dtype=value.dtype, device=self._device)
            for place, value in self._plan.frozen.items()
        }
        ints: dict[int, Any] = {}
        for leaf, value in self._plan.read(given):
            if leaf.kind == "tensor":
                tensors[leaf.index] = value
            else:
                ints[leaf.index] = value.item() if leaf.kind == "float" else value
        arguments = self._plan.template.build(tensors, ints, self._classes, self._device)
        check_rebuilt(arguments.items(), self._plan.signature.may_lack)
        positional, named = as_call(arguments, self._plan.signature)
        before = tensor_ids(arguments)
        with under_autocast(self._plan.context, self._device):
            returned = self._model[0](*positional, **named)
        self.traced.returned = returned_arguments(returned, arguments)
        self.traced.changed = changed_arguments(before, arguments, self.traced.returned)
        return self._taken_apart(returned)

    def _taken_apart(self, returned: Any) -> Any:
        template, tensors, self.traced.classes = template_of_result(returned)
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
        self.traced.found = (
            Template(template.layout, plain, template.counters, template.derived), form
        )  # fmt: skip
        return form.fill(
            lambda leaf: tensors[leaf.index] if leaf.kind == "tensor" else symbolic[leaf.index]
        )


Narrow = Literal["batch", "static"]
"""Ways that are tried if no other one serves what is wanted."""


@dataclass(frozen=True)
class Way:
    """How a variant is traced. By default all dynamic sizes are open, and no value is known.

    Attributes:
        strategy: its name.
        static: whether no size is open.
        batch: whether only first dimensions are.
        open_lengths: whether recurrent layers are traced for any length.
        symbolic_ints: whether ints that the model reads from tensors are open.
        symbolic_floats: whether floats that it makes of tensors and sizes are.
        real_values: whether the trace knows the values of its sample, and asserts them.
        never_empty: whether results whose size only values tell are taken not to be empty, which is
            asserted.
        every_item: the loops over what is hit that run for every item.
        own_buffers: whether the model may register buffers while it is traced.
        experts: how a mixture of experts runs them; None for the model's own way.
        deferred: whether conditions become assertions in the program, where they can.
        unnoticed: whether the model is told that there is no trace.
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
    unnoticed: bool = False

    @property
    def narrow(self) -> Narrow | None:
        """Which sizes the program is narrow by; None if all dynamic sizes are open."""
        if self.batch:
            return "batch"
        return "static" if self.static else None

    @property
    def is_by_values(self) -> bool:
        """Whether the program may depend on the values of a call, not only on its sizes."""
        by_loops = bool(self.every_item)
        return self.symbolic_ints or self.real_values or self.never_empty or by_loops

    @property
    def options(self) -> Mapping[str, Any]:
        """What of it ``torch.export.export`` takes."""
        return {"prefer_deferred_runtime_asserts_over_guards": True} if self.deferred else {}

    def shapes(self, plan: Plan, variant: VariantFacts) -> dict[str, Any] | None:
        """What ``torch.export.export`` takes as ``dynamic_shapes``."""
        if self.static:
            return None
        auto = torch.export.Dim.AUTO
        first = {c for s in variant.symbols if is_batch(s) for c in s.columns}
        is_open: Callable[[Column], bool] = first.__contains__ if self.batch else (lambda _: True)
        return plan.shapes(lambda column: auto if is_open(column) else None, variant) or None

    @contextmanager
    def entered(self, module: Any, plan: Plan) -> Iterator[NotEmpty]:
        """Lets a model be traced in this way within the block, and gives what the trace takes not
        to be empty.

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
                symbolic_sizes(module, unnoticed=self.unnoticed),
                unnoticed(self.unnoticed),
                whole_strides(),
                unasked_formats(),
                rounded_bounds(),
                least_counts(),
                whole_floats(),
                unneeded_casts(),
                kept_assertions(),
                symbolic_numbers(module, ints=self.symbolic_ints, floats=floats),
                real_values(self.real_values),
                every_item(self.every_item),
            ):
                stack.enter_context(context)
            yield stack.enter_context(never_empty(self.never_empty))


WAYS: Mapping[Strategy, Way] = {
    way.strategy: way
    for way in (
        Way(Strategy.PLAIN),
        Way(Strategy.OPEN_LENGTHS, open_lengths=True),
        Way(Strategy.GROWING_BUFFERS, own_buffers=True),
        Way(Strategy.OPEN_SIZE_INTS, symbolic_ints=True),
        Way(Strategy.DEFERRED, deferred=True),
        Way(Strategy.OPEN_INTS, symbolic_ints=True),
        Way(Strategy.NOT_EMPTY, symbolic_ints=True, never_empty=True),
        Way(Strategy.OPEN_NUMBERS, real_values=True, symbolic_ints=True, symbolic_floats=True),
        Way(Strategy.BY_VALUES, real_values=True),
        Way(Strategy.BY_VALUES_OPEN_INTS, real_values=True, symbolic_ints=True, open_lengths=True),
        Way(Strategy.BY_VALUES_DEFERRED, real_values=True, deferred=True),
        Way(Strategy.UNNOTICED, unnoticed=True, real_values=True),
        Way(Strategy.BATCHED_EXPERTS, experts="batched_mm"),
        Way(Strategy.FIRST_DIMENSIONS, batch=True),
        Way(Strategy.ONE_SIZE, static=True),
    )
}
"""The ways that are the same for every model."""
