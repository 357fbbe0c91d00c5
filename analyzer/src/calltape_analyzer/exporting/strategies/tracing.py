"""The module that an exporter traces: plain containers in, the model's own call, plain containers
out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from calltape_analyzer.arguments.forms import FormLeaf, PlainForm, form_of_result
from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.templates import Template, as_call, checked, template_of_result
from calltape_analyzer.model.calls import device_of, under_autocast
from calltape_analyzer.programs.returned_arguments import (
    changed_arguments,
    returned_arguments,
    tensor_ids,
)
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_schema.tree import ScalarNode, TensorNode

__all__ = ["Traced"]


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
            (tensors if leaf.kind == "tensor" else ints)[leaf.index] = value
        arguments = self._plan.template.build(tensors, ints, self._classes, self._device)
        checked(arguments, self._plan.signature)
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
