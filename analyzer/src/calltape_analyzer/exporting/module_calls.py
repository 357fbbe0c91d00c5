"""The model itself, called like the recorded method, and left as it was found."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from calltape_analyzer.binding import Signature
from calltape_analyzer.classes import ClassIndex, name_of
from calltape_analyzer.errors import UsageError
from calltape_analyzer.exporting.plan import Plan
from calltape_analyzer.exporting.templates import as_call, checked
from calltape_analyzer.samples import Sample
from calltape_schema.records import Target

if TYPE_CHECKING:
    import torch

__all__ = [
    "apart_from", "eager", "entry_of", "experts_as", "preserved", "unchanged", "wanted_classes",
    "was_written",
]  # fmt: skip

_MAX_DEPTH = 4


def entry_of(module: torch.nn.Module, target: Target | None) -> Callable[..., Any]:
    """What a recorded call called: the module itself for ``forward``, else its method.

    Raises:
        UsageError: it has no such method.
    """
    method = target.method if target is not None else "forward"
    if method in ("forward", "__call__"):
        return module
    found = getattr(module, method, None)
    if not callable(found):
        raise UsageError(
            f"the calls are of {method}(), which {type(module).__name__} does not have",
            advice="pass the object that was recorded",
        )
    entry: Callable[..., Any] = found
    return entry


def eager(
    call: Callable[..., Any], plan: Plan, sample: Sample, classes: ClassIndex, device: str
) -> Any:
    """What the model returns for a sample, without gradients."""
    import torch

    arguments = plan.build(sample, classes, device)
    checked(arguments)
    args, kwargs = as_call(arguments, plan.signature)
    with torch.no_grad():
        return call(*args, **kwargs)


@contextlib.contextmanager
def preserved(module: torch.nn.Module) -> Iterator[None]:
    """Takes back what a traced forward leaves in a model: attributes that hold symbolic values,
    also within containers and objects, and parameters or buffers that were replaced.

    Other attributes stay as they are: libraries install hooks when a forward first runs and note
    that they have (transformers' output capturing), and one without the other breaks the model.
    """
    before = [(part, dict(vars(part))) for part in module.modules()]
    registries = [(part, dict(part._parameters), dict(part._buffers)) for part in module.modules()]
    containers = _containers(module)
    try:
        yield
    finally:
        for container, held in containers:
            _put_back(container, held)
        for part, state in before:
            for name, value in list(vars(part).items()):
                if value is not state.get(name) and _is_symbolic(value):
                    if name in state:
                        vars(part)[name] = state[name]
                    else:
                        del vars(part)[name]
        for part, parameters, buffers in registries:
            part._parameters.clear()
            part._parameters.update(parameters)
            part._buffers.clear()
            part._buffers.update(buffers)


def _containers(module: torch.nn.Module) -> list[tuple[Any, Any]]:
    """The containers in a model's attributes, each with a copy of what it holds; an object that is
    neither a module nor a tensor is the dict of its attributes."""
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
            if isinstance(value, torch.Tensor) or callable(value) or not hasattr(value, "__dict__"):
                continue
            value = vars(value)
        if id(value) in found or depth > _MAX_DEPTH:
            continue
        inside = list(value.values() if isinstance(value, dict) else value)
        found[id(value)] = (value, dict(value) if isinstance(value, dict) else inside)
        waiting += [(child, depth + 1) for child in inside]
    return list(found.values())


def _put_back(container: Any, held: Any) -> None:
    """What a container held before, where it now holds something of a trace."""
    if isinstance(container, dict):
        for key in [key for key, value in container.items() if value is not held.get(key)]:
            if not _is_symbolic(container[key]):
                continue
            if key in held:
                container[key] = held[key]
            else:
                del container[key]
    elif not isinstance(container, tuple) and _is_symbolic(list(container)):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(held)


@contextlib.contextmanager
def unchanged(module: torch.nn.Module) -> Iterator[list[str]]:
    """Takes back what a call writes to buffers, in place or by replacing them, and to attributes
    that are numbers, tensors or None. A program of ``torch.export`` has the same buffers as the
    model that it was made of.

    Yields:
        A list that gets, at the end, the names of what the call had changed.
    """
    import torch

    parts = list(module.named_modules())
    registries = [(part, dict(part._buffers)) for _, part in parts]
    held = {
        name: (buffer, buffer.clone())
        for name, buffer in module.named_buffers(remove_duplicate=False)
    }
    attributes = [(prefix, part, _plain_attributes(part), _hooks(part)) for prefix, part in parts]
    changed: list[str] = []
    try:
        yield changed
    finally:
        now = dict(module.named_buffers(remove_duplicate=False))
        for name, (_, copy) in held.items():
            if not _is_same(copy, now.get(name)):
                changed.append(name)
        changed += now.keys() - held.keys()
        with torch.no_grad():
            for part, buffers in registries:
                part._buffers.clear()
                part._buffers.update(buffers)
            for name, (buffer, copy) in held.items():
                if name in changed:
                    buffer.copy_(copy)
        for prefix, part, before, hooks in attributes:
            if _hooks(part) == hooks:
                changed += _put_attributes_back(prefix, part, before)


def apart_from(module: torch.nn.Module, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The same leaves, of which none is a part of the model's state: what is taken back there would
    change a result as well."""
    import torch

    tensors = list(module.buffers())
    tensors += [
        value
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, torch.Tensor)
    ]
    held = {id(tensor): tensor for tensor in tensors}
    memory = {_memory(tensor) for tensor in held.values()} - {None}
    return {
        path: leaf.clone() if isinstance(leaf, torch.Tensor) and _memory(leaf) in memory else leaf
        for path, leaf in leaves.items()
    }


def _memory(tensor: torch.Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # sparse: it has none of its own
        return None


def _plain_attributes(part: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    """Attributes that can be taken back, each with a copy. Not those of transformers' classes: they
    note what they installed when a forward first ran, and one without the other breaks them."""
    import torch

    if type(part).__module__.startswith("transformers."):
        return {}
    return {
        name: (value, value.clone() if isinstance(value, torch.Tensor) else value)
        for name, value in vars(part).items()
        if value is None or isinstance(value, bool | int | float | torch.Tensor)
    }


def _put_attributes_back(
    prefix: str, part: torch.nn.Module, before: Mapping[str, tuple[Any, Any]]
) -> list[str]:
    import torch

    changed = []
    for name, (value, copy) in before.items():
        now = vars(part).get(name)
        if now is value and not isinstance(value, torch.Tensor):
            continue
        if not _is_same(copy, now):
            changed.append(f"{prefix}.{name}".lstrip("."))
            if isinstance(value, torch.Tensor):
                with torch.no_grad():
                    value.copy_(copy)
        vars(part)[name] = value
    return changed


def _hooks(part: torch.nn.Module) -> tuple[int, int]:
    return len(part._forward_hooks), len(part._forward_pre_hooks)


def _is_same(before: Any, now: Any) -> bool:
    """Whether two values are the same; an element that is NaN in both is."""
    import torch

    if not isinstance(before, torch.Tensor) or not isinstance(now, torch.Tensor):
        return type(before) is type(now) and bool(before == now)
    if before.shape != now.shape or before.dtype != now.dtype or before.device != now.device:
        return False
    try:
        return bool(((before == now) | ((before != before) & (now != now))).all())
    except Exception:  # a layout or dtype without comparison, or a tensor of a trace
        return False


def was_written(before: torch.Tensor, now: torch.Tensor) -> bool:
    """Whether somebody wrote to a tensor that was a copy of another, be it the same values."""
    return bool(now._version) or not _is_same(before, now)


def _is_symbolic(value: Any) -> bool:
    """Whether a value, or what a container or cache holds, is of a trace."""
    import torch
    from torch._subclasses import FakeTensor
    from torch.utils import _pytree as pytree

    kinds = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    leaves = pytree.tree_leaves(value)
    held = [leaf for leaf in leaves if hasattr(leaf, "__dict__") and not callable(leaf)]
    parts = leaves + [part for one in held for part in pytree.tree_leaves(list(vars(one).values()))]
    return any(isinstance(part, kinds) or _is_functional(part) for part in parts)


def _is_functional(value: Any) -> bool:
    return type(value).__name__ == "FunctionalTensor"


@contextlib.contextmanager
def experts_as(module: Any, implementation: str | None) -> Iterator[None]:
    """Lets a mixture of experts of transformers run its experts in one way, for a while."""
    if implementation is None:
        yield
        return
    before = module.config._experts_implementation
    module.set_experts_implementation(implementation)
    try:
        yield
    finally:
        module.set_experts_implementation(before)


def wanted_classes(module: torch.nn.Module, signature: Signature, given: ClassIndex) -> ClassIndex:
    """The classes that arguments may be made of: those given, and the dataclasses, named tuples and
    enums that the module's own code has. Whoever passes the module trusts them; still only their
    fields are set, no code of theirs runs."""
    found: dict[str, type] = {}
    for part in type(module).__mro__:
        for value in _namespace(part).values():
            if isinstance(value, type) and _is_plain(value):
                found[name_of(value)] = value
                # A script's own classes, when its module is imported under its name, or run.
                found[f"__main__:{value.__qualname__}"] = value
    return ClassIndex(found | dict(given.by_name))


def _namespace(cls: type) -> Mapping[str, Any]:
    module = sys.modules.get(cls.__module__)
    if module is None or cls.__module__.partition(".")[0] in ("torch", "builtins"):
        return {}
    return vars(module)


def _is_plain(cls: type) -> bool:
    if issubclass(cls, enum.Enum):
        return True
    return dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
