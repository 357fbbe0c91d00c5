"""The model itself: how it is called like the recorded method, and what a trace must not leave in
it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.arguments.templates import as_call, checked
from calltape_analyzer.errors import UsageError
from calltape_analyzer.model.attributes import has_state
from calltape_analyzer.model.contexts import as_called
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_schema.records import Target

if TYPE_CHECKING:
    import torch

__all__ = [
    "as_module",
    "code_of",
    "device_of",
    "eager",
    "entry_of",
    "experts_as",
    "preserved",
    "wanted_classes",
]

_MAX_DEPTH = 4
_PYTHON_MODULE = "builtins:module"


def entry_of(module: torch.nn.Module, target: Target | None) -> Callable[..., Any]:
    """What a recorded call called: the module itself for ``forward``, else its method.

    Raises:
        UsageError: the module has no such method.
    """
    method = target.method if target is not None else "forward"
    # A function of a Python module was recorded: whatever module stands for it computes the same.
    is_function = target is not None and target.type == _PYTHON_MODULE
    if method in ("forward", "__call__") or (is_function and not hasattr(module, method)):
        return module
    found = getattr(module, method, None)
    if not callable(found):
        raise UsageError(
            f"the calls are of {method}(), which {type(module).__name__} does not have",
            advice="pass the object that was recorded",
        )
    entry: Callable[..., Any] = found
    return entry


def as_module(function: Callable[..., Any]) -> torch.nn.Module:
    """A module that calls a function; exporters take modules only."""
    import torch

    class Function(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    Function.__module__ = getattr(function, "__module__", None) or Function.__module__
    return Function().eval()


def device_of(module: torch.nn.Module) -> torch.device:
    """The device of a module's first parameter or buffer; the CPU without any."""
    import torch

    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def eager(
    call: Callable[..., Any],
    plan: Plan,
    sample: Sample,
    classes: ClassIndex,
    device: str,
    context: Context | None = None,
    within: AbstractContextManager[Any] | None = None,
) -> Any:
    """What the model returns for a sample, by default in the context of the variant's calls.
    ``within`` is around the call alone."""
    arguments = plan.build(sample, classes, device)
    checked(arguments, plan.signature)
    args, kwargs = as_call(arguments, plan.signature)
    with as_called(context or plan.context, device, call), within or contextlib.nullcontext():
        return call(*args, **kwargs)


@contextlib.contextmanager
def preserved(module: torch.nn.Module) -> Iterator[None]:
    """Undoes what a traced forward leaves in a model: attributes with symbolic values, also within
    containers and objects, and parameters or buffers that were replaced.

    Other attributes stay as they are: libraries install hooks when a forward first runs and note it
    in an attribute (transformers' output capturing), and one without the other breaks the model.
    """
    before = [(part, dict(vars(part))) for part in module.modules()]
    registries = [(part, dict(part._parameters), dict(part._buffers)) for part in module.modules()]
    containers = _containers(module)
    try:
        yield
    finally:
        from calltape_analyzer.model.state import put_back_registry

        for container, elements in containers:
            _put_back(container, elements)
        for part, state in before:
            for name, value in list(vars(part).items()):
                if value is not state.get(name) and _is_symbolic(value):
                    if name in state:
                        vars(part)[name] = state[name]
                    else:
                        del vars(part)[name]
        for part, parameters, buffers in registries:
            put_back_registry(part._parameters, parameters)
            put_back_registry(part._buffers, buffers)


def _containers(module: torch.nn.Module) -> list[tuple[Any, Any]]:
    """The containers in a model's attributes, each with a copy of its elements. The dict of
    attributes of an object that is neither a module nor a tensor is a container, too."""
    import torch

    found: dict[int, tuple[Any, Any]] = {}
    waiting = [
        (value, 0)
        for part in module.modules()
        for name, value in vars(part).items()
        if name not in ("_parameters", "_buffers", "_modules")
    ]
    while waiting:
        value, depth = waiting.pop()
        if not isinstance(value, dict | list | tuple | set | deque):
            if isinstance(value, torch.Tensor) or not has_state(value):
                continue
            value = vars(value)
        if id(value) in found or depth > _MAX_DEPTH:
            continue
        inside = list(value.values() if isinstance(value, dict) else value)
        found[id(value)] = (value, dict(value) if isinstance(value, dict) else inside)
        waiting += [(child, depth + 1) for child in inside]
    return list(found.values())


def _put_back(container: Any, before: Any) -> None:
    """Puts the elements of a container back, if there are symbolic values among them now."""
    if isinstance(container, dict):
        for key in [key for key, value in container.items() if value is not before.get(key)]:
            if not _is_symbolic(container[key]):
                continue
            if key in before:
                container[key] = before[key]
            else:
                del container[key]
    elif not isinstance(container, tuple) and _is_symbolic(list(container)):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(before)


def _is_symbolic(value: Any) -> bool:
    """Whether a value, or an element of a container or cache, belongs to a trace."""
    import torch
    from torch._subclasses import FakeTensor
    from torch.utils import _pytree as pytree

    kinds = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    leaves = pytree.tree_leaves(value)
    objects = [leaf for leaf in leaves if has_state(leaf)]
    attributes = [list(vars(one).values()) for one in objects]
    parts = leaves + pytree.tree_leaves(attributes)
    return any(isinstance(part, kinds) or _is_functional(part) for part in parts)


def _is_functional(value: Any) -> bool:
    return type(value).__name__ == "FunctionalTensor"


@contextlib.contextmanager
def experts_as(module: Any, implementation: str | None) -> Iterator[None]:
    """Lets a mixture of experts of transformers run its experts in one way within the block."""
    if implementation is None:
        yield
        return
    before = module.config._experts_implementation
    module.set_experts_implementation(implementation)
    try:
        yield
    finally:
        module.set_experts_implementation(before)


def wanted_classes(target: Any, given: ClassIndex) -> ClassIndex:
    """The classes that arguments may be made of: the given ones, and those that the package of a
    model defines.

    Args:
        target: a module, a method of one, or a function.
        given: what the caller allows anyway.
    """
    return given.with_model(getattr(target, "__self__", target))


def code_of(target: Any) -> dict[str, None]:
    """The names of the modules of Python that a model is made of: its own first."""
    import torch

    target = getattr(target, "__self__", target)  # the model of a bound method
    if not isinstance(target, torch.nn.Module):
        return dict.fromkeys([str(getattr(target, "__module__", ""))])
    kinds = dict.fromkeys(type(part) for part in target.modules())
    return dict.fromkeys(base.__module__ for kind in kinds for base in kind.__mro__)
