"""What calls change in a model, and how it is put back.

Parameters may take most of the memory, so they are never copied as a whole: a dispatch mode saves a
tensor before the first operation that writes to it. Buffers are copied at once, because some
kernels write to them although their schema does not say so (batch normalization).
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from calltape_analyzer.model.attributes import Attributes, same

__all__ = [
    "apart_from",
    "in_words",
    "put_back_registry",
    "unchanged",
    "was_written",
    "written_by",
]

_COMPILER = "torch._dynamo"
_MAX_COPIED = 256 * 2**20
"""Bytes of tensors in attributes that are copied at once; the mode saves the others."""


@contextlib.contextmanager
def unchanged(module: torch.nn.Module, *, tracing: bool = False) -> Iterator[dict[str, Any]]:
    """Undoes what calls in the block write to parameters and buffers, in place or by replacing
    them, and to plain Python attributes. A program of ``torch.export`` has the same tensors as the
    model that it was made of.

    What numpy or a compiled kernel writes to a parameter is not undone: torch does not see it.

    Args:
        module: the model.
        tracing: whether it is traced. Then no operation on a parameter is run, and a mode of ours
            would disturb the trace.

    Yields:
        A dict that gets, at the end, what was changed, by name, with what it was before.
    """
    parts = list(module.named_modules())
    attributes = [Attributes(prefix, part) for prefix, part in parts]
    registries = [(part, dict(part._parameters), dict(part._buffers)) for _, part in parts]
    parameters, buffers = _named_tensors(module)
    data = {name: (tensor.data, _memory(tensor)) for name, tensor in parameters.items()}
    others = [pair for one in attributes for pair in one.tensors]
    kind = _Saving if _COMPILER in sys.modules else _SavingWithoutCompiler
    saving = kind([*parameters.items(), *others])
    saving.copy(buffers.items())
    saving.copy(others, _MAX_COPIED)
    changed: dict[str, Any] = {}
    try:
        with contextlib.nullcontext() if tracing else saving:
            yield changed
    finally:
        _, now = _named_tensors(module)
        changed.update(dict.fromkeys(now.keys() - buffers.keys()))
        for name, (values, memory) in data.items():
            if _memory(parameters[name]) != memory:
                changed[name] = values
                parameters[name].data = values
        changed.update(saving.put_back())
        for name, buffer in buffers.items():
            if now.get(name) is buffer or same(buffer, now.get(name)):
                continue
            changed[name] = buffer
        for part, own_parameters, own_buffers in registries:
            put_back_registry(part._parameters, own_parameters)
            put_back_registry(part._buffers, own_buffers)
        has_other_objects = any(one.has_other_objects for one in attributes)
        for one in attributes:
            changed.update(one.put_back(has_other_objects=has_other_objects))


def _named_tensors(
    module: torch.nn.Module,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The parameters and the buffers of a model by all their names, found in one walk: this is
    done around each run."""
    parameters: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        begin = f"{prefix}." if prefix else ""
        for found, registry in ((parameters, part._parameters), (buffers, part._buffers)):
            for name, tensor in registry.items():
                if tensor is not None:
                    found[begin + name] = tensor
    return parameters, buffers


def put_back_registry(registry: Any, before: Mapping[str, Any]) -> None:
    """Puts back the tensors in a module's dict of parameters, or of buffers."""
    if isinstance(registry, dict):
        registry.clear()
        registry.update(before)
        return
    # A module of TorchScript gains none and loses none.
    for name, tensor in before.items():
        if registry[name] is not tensor:
            registry[name] = tensor


class _Saving(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Saves a tensor of a model before the first operation that writes to its memory."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Lets torch compile under this mode. Otherwise it would run eagerly, or refuse."""
        return True

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watched: dict[int, list[tuple[str, torch.Tensor]]] = defaultdict(list)
        self._copies: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        for name, tensor in tensors:
            if (storage := _storage(tensor)) is not None:
                self._watched[storage].append((name, tensor))

    def copy(self, tensors: Iterable[tuple[str, torch.Tensor]], at_most: float = math.inf) -> None:
        """Saves tensors at once, as many as fit into a number of bytes."""
        for name, tensor in tensors:
            at_most -= tensor.nbytes if tensor.layout is torch.strided else 0
            if at_most >= 0:
                self._copies.append((name, tensor, _copy_of(tensor)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        places, names = written_by(func)
        if places or names:
            written = [args[i] for i in places if i < len(args)]
            written += [kwargs[name] for name in names if name in kwargs]
            for leaf in pytree.tree_leaves(written):
                if isinstance(leaf, torch.Tensor):
                    self.copy(self._watched.pop(_storage(leaf) or 0, ()))
        return func(*args, **kwargs)

    def put_back(self) -> dict[str, torch.Tensor]:
        """Puts back the values of what was saved.

        Returns:
            What was changed, with what it was before.
        """
        changed = {}
        for name, tensor, copy in self._copies:
            if same(copy, tensor):
                continue
            changed[name] = copy
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if tensor.shape == copy.shape:
                    tensor.copy_(copy)
                else:
                    tensor.data = copy
        return changed


class _SavingWithoutCompiler(_Saving):  # type: ignore[no-untyped-call]
    """The same where torch's compiler was not imported. Under another mode, torch imports it for
    the first operation, to keep it out of the mode: that takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # The model may have imported it meanwhile, or be importing it now.
        if hasattr(sys.modules.get(_COMPILER), "disable"):
            return super().__torch_dispatch__(func, types, args, kwargs)
        return self._run(func, args, kwargs or {})


@cache
def written_by(func: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The arguments that an operation writes to, by place and by name."""
    schema = getattr(func, "_schema", None)  # operations of higher order have none
    if schema is None:
        return (), ()
    found = [
        (i, argument.name)
        for i, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tuple(i for i, _ in found), tuple(name for _, name in found)


def in_words(value: Any) -> str:
    """A value of a state, if it is a number; else an empty text."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type != "meta":
        value = value.item()
    return repr(value) if isinstance(value, bool | int | float) else ""


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return tensor.detach().clone()


def apart_from(module: torch.nn.Module, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The same leaves, with copies of the ones that are part of the model's state: to put the state
    back would change the result as well."""
    tensors: list[torch.Tensor | None] = []
    for prefix, part in module.named_modules():
        tensors += [*part._parameters.values(), *part._buffers.values()]
        tensors += [tensor for _, tensor in Attributes(prefix, part).tensors]
    memory = {_memory(tensor) for tensor in tensors if tensor is not None} - {None}
    return {
        path: leaf.clone() if isinstance(leaf, torch.Tensor) and _memory(leaf) in memory else leaf
        for path, leaf in leaves.items()
    }


def was_written(before: torch.Tensor, now: torch.Tensor) -> bool:
    """Whether somebody wrote to a tensor that was a copy of another, even the same values."""
    return bool(now._version) or not same(before, now)


def _memory(tensor: torch.Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # a sparse tensor has no storage
        return None


def _storage(tensor: torch.Tensor) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return None
