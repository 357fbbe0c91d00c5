"""The ways to trace a variant: which sizes are open, and what stands in for parts of torch and of
the model meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from calltape_analyzer.arguments.plan import Plan
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
from calltape_analyzer.model.calls import experts_as
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["Narrow", "Way"]

Narrow = Literal["batch", "static"]
"""Ways that are tried if no other one serves what is wanted."""


@dataclass(frozen=True)
class Way:
    """How a variant is traced. By default all dynamic sizes are open, and no value is known.

    Attributes:
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
        import torch

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
                symbolic_numbers(module, ints=self.symbolic_ints, floats=self.symbolic_floats),
                real_values(self.real_values),
                every_item(self.every_item),
            ):
                stack.enter_context(context)
            yield stack.enter_context(never_empty(self.never_empty))
