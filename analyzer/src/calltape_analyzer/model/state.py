"""What calls change in a model, and how that is undone.

Parameters may take most of the memory, so they are never copied as a whole: a dispatch mode saves a
tensor before the first operation that writes to it. Buffers are copied at once, because some
kernels write to them although their schema does not say so (batch normalization).
"""

from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from calltape_analyzer.pytree.caches import has_known_state
from calltape_analyzer.pytree.memory import storage_of

__all__ = [
    "copied_from_state",
    "number_text",
    "preserved",
    "unchanged",
    "was_written",
    "written_by",
]

_CONTAINERS = (OrderedDict, dict, list, set, deque)
_CODE = (
    type, FunctionType, MethodType, BuiltinFunctionType, ModuleType, partial, torch.nn.Module
)  # fmt: skip
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_IS_SIMPLE = frozenset(_SIMPLE)
"""Asked first: nearly all attributes are of these very types, and each run looks at all of them."""
_PLAIN = (*_SIMPLE, torch.Tensor)
_LIBRARIES = frozenset({"torch", "transformers", *sys.stdlib_module_names})
_MAX_DEPTH = 4
_MAX_ELEMENTS = 100_000
"""In all containers of a module. More are not put back: each call would copy them."""
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}


class Attributes:
    """The Python attributes of one module as they are now: numbers, tensors, text, and containers
    and objects of these. Of transformers' classes only plain values are put back. If a call
    installed code (hooks) or changed an object, marks beside it may note that, and one without the
    other breaks the model: then a module is left alone if anything but tensors and numbers changed.

    Args:
        prefix: the name of the module in the model.
        part: the module.

    Attributes:
        tensors: in attributes and their containers, each with the name of the attribute.
    """

    def __init__(self, prefix: str, part: torch.nn.Module) -> None:
        self._prefix = prefix
        self._part = part
        self._hooks = _hooks(part)
        self._is_own_attribute = _is_own_attribute(type(part))
        self._is_of_transformers = type(part).__module__.startswith("transformers.")
        self._before = self._attributes_now()
        self._restored = {n: value for n, value in self._before.items() if self._is_kept(value)}
        compound = [(n, v) for n, v in self._before.items() if type(v) not in _IS_SIMPLE]
        self._inside = {
            name: _inside(value)
            for name, value in compound
            if self._is_of_transformers and not _is_plain_value(value)
        }
        self._containers: dict[int, tuple[str, Any, list[Any]]] = {}
        self._elements = 0
        self.tensors: list[tuple[str, torch.Tensor]] = []
        for name, value in compound:
            if name in self._restored:
                self._remember(self._named(name), value, 0)

    @property
    def has_other_objects(self) -> bool:
        """Whether anything but plain values changed since: hooks, functions, objects, and, of
        transformers' classes, what is in their containers and objects."""
        if _hooks(self._part) != self._hooks:
            return True
        now = self._attributes_now()
        changed = [name for name in {*now, *self._before} if self._differs(name, now)]
        if any(not _is_plain_value(d.get(n)) for n in changed for d in (self._before, now)):
            return True
        return any(
            len(elements) != len(objects := _inside(self._before[name]))
            or not all(map(operator.is_, elements, objects))
            for name, elements in self._inside.items()
        )

    def put_back(self, *, has_other_objects: bool = False) -> dict[str, Any]:
        """Puts back attributes, and the elements of containers. Values of tensors stay as they are.

        Args:
            has_other_objects: whether that is so of any module of the model.

        Returns:
            What the attributes were that were changed, by name.
        """
        if _hooks(self._part) != self._hooks:
            return {}
        changed: dict[str, Any] = {}
        for name, container, before in self._containers.values():
            elements = _elements(container)
            if len(elements) == len(before) and all(map(operator.is_, elements, before)):
                continue
            if len(elements) != len(before) or not all(map(same, before, elements)):
                changed[name] = container
            _fill(container, before)
        now = self._attributes_now()
        if self._is_of_transformers:
            # Nothing but tensors and numbers may have changed; also marks and texts, if nothing
            # else did that they may be about. Swin keeps the size of its windows, which gets
            # smaller with a small picture.
            is_value = _is_value if has_other_objects else _is_plain_value
            names = [name for name in {*now, *self._before} if self._differs(name, now)]
            if not all(is_value(d.get(n)) for n in names for d in (self._before, now)):
                return changed
        for name, value in self._restored.items():
            if name in now and now[name] is value:
                continue
            if name not in now or not same(value, now[name]):
                changed[self._named(name)] = value
            vars(self._part)[name] = value
        removes = self._is_own_attribute or self._is_of_transformers
        for name in now.keys() - self._before.keys() if removes else ():
            if self._is_kept(now[name]):
                changed[self._named(name)] = None
                del vars(self._part)[name]
        return changed

    def _differs(self, name: str, now: dict[str, Any]) -> bool:
        return name not in now or name not in self._before or now[name] is not self._before[name]

    def _attributes_now(self) -> dict[str, Any]:
        attributes = vars(self._part)
        return {name: value for name, value in attributes.items() if name not in _OF_EVERY_MODULE}

    def _named(self, name: str) -> str:
        return f"{self._prefix}.{name}".lstrip(".")

    def _is_kept(self, value: Any) -> bool:
        if type(value) in _IS_SIMPLE:
            return True
        if self._is_of_transformers:
            return _is_plain_value(value)
        if isinstance(value, _PLAIN):
            return True
        return self._is_own_attribute and (
            isinstance(value, (*_CONTAINERS, tuple)) or _is_object(value)
        )

    def _remember(self, name: str, value: Any, depth: int) -> None:
        """Remembers the elements of a value, and the tensors in it."""
        if isinstance(value, torch.Tensor):
            self.tensors.append((name, value))
            return
        is_container = isinstance(value, (*_CONTAINERS, tuple))
        if not is_container and _is_object(value):
            value = vars(value)
            is_container = True
        if not is_container or depth > _MAX_DEPTH or id(value) in self._containers:
            return
        self._elements += len(value)
        if self._elements > _MAX_ELEMENTS:
            return
        elements = _elements(value)
        self._containers[id(value)] = (name, value, elements)
        for child in elements:
            if type(child) not in _IS_SIMPLE:
                self._remember(name, child, depth + 1)
        if not isinstance(value, tuple) and hasattr(value, "__dict__"):  # a class of the user's own
            self._remember(name, vars(value), depth + 1)


def _is_value(value: Any) -> bool:
    """Whether it is a tensor, a number (a bool is a mark), the symbol of one, or None."""
    kinds = torch.Tensor, torch.SymInt, torch.SymFloat, type(None)
    # Not isinstance, which asks objects for their class: configs of transformers are slow to tell.
    return issubclass(type(value), kinds) or type(value) in (int, float)


def _is_plain_value(value: Any) -> bool:
    kind = type(value)
    return kind in _IS_SIMPLE or issubclass(kind, _PLAIN) or _is_value(value)


def _inside(value: Any) -> list[Any]:
    """The elements of a container, and the attributes of an object; none of other values."""
    if isinstance(value, (*_CONTAINERS, tuple)):
        return _elements(value) if len(value) <= _MAX_ELEMENTS else []
    return _elements(vars(value)) if _is_object(value) else []


def _elements(container: Any) -> list[Any]:
    """The elements of a container; of a dict the keys, and then the values."""
    if isinstance(container, dict):
        return [*dict.keys(container), *dict.values(container)]
    return list(container)


def _fill(container: Any, elements: list[Any]) -> None:
    """Puts elements back with the methods of the plain class. A subclass may do more in its own."""
    if isinstance(container, tuple):
        return
    kind: Any = next(kind for kind in _CONTAINERS if isinstance(container, kind))
    kind.clear(container)
    if isinstance(container, dict):
        half = len(elements) // 2
        for key, value in zip(elements[:half], elements[half:], strict=True):
            kind.__setitem__(container, key, value)
    elif isinstance(container, set):
        set.update(container, elements)
    else:
        kind.extend(container, elements)


def has_state(value: Any) -> bool:
    """Whether a value has attributes of its own. A class, a function and a module have, and they
    are what code is made of; an object that can be called (an embedder) is an object."""
    return hasattr(value, "__dict__") and not isinstance(value, _CODE)


def _is_object(value: Any) -> bool:
    """Whether a value is a plain object with attributes, as far as its class tells."""
    if not has_state(value):
        return False
    cls = type(value)
    return cls.__module__ == "types" or not _is_of_library(cls) or has_known_state(cls)


def _is_of_library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in _LIBRARIES - {"__main__"}


def _is_own_attribute(cls: type) -> bool:
    if _is_of_library(cls):
        return False
    return not any(base.__module__.startswith("transformers.") for base in cls.__mro__)


def _hooks(part: torch.nn.Module) -> tuple[int, int]:
    return len(part._forward_hooks), len(part._forward_pre_hooks)


def same(before: Any, now: Any) -> bool:
    """Whether two values are the same. An element that is NaN in both is the same."""
    if before is now and not isinstance(before, torch.Tensor):
        return True
    if not isinstance(before, torch.Tensor) or not isinstance(now, torch.Tensor):
        try:
            return type(before) is type(now) and bool(before == now)
        except Exception:  # it cannot be compared, or there is a tensor in a container
            return False
    if before.shape != now.shape or before.dtype != now.dtype or before.device != now.device:
        return False
    try:
        return bool(((before == now) | ((before != before) & (now != now))).all())
    except Exception:  # a layout or dtype without comparison, or a tensor of a trace
        return False


_COMPILER = "torch._dynamo"
_MAX_COPIED = 256 * 2**20
"""Bytes of tensors in attributes that are copied at once; the mode saves the others."""


@contextlib.contextmanager
def unchanged(module: torch.nn.Module, *, tracing: bool = False) -> Iterator[dict[str, Any]]:
    """Undoes what calls in the block write to parameters and buffers, in place or by replacing
    them, and to plain Python attributes. A program of ``torch.export`` shares the tensors of the
    model that it was made from.

    Writes of numpy or compiled kernels to parameters are not undone, because torch does not see
    them.

    Args:
        module: the model.
        tracing: whether it is traced. Then no operation runs on a parameter, and a dispatch mode
            would disturb the trace.

    Yields:
        A dict that at the end contains the old values of what was changed, by name.
    """
    parts = list(module.named_modules())
    attributes = [Attributes(prefix, part) for prefix, part in parts]
    registries = [(part, dict(part._parameters), dict(part._buffers)) for _, part in parts]
    parameters, buffers = _named_tensors(module)
    data = {name: (tensor.data, _memory(tensor)) for name, tensor in parameters.items()}
    pairs = [pair for part in attributes for pair in part.tensors]
    kind = _Saving if _COMPILER in sys.modules else _SavingWithoutCompiler
    saving = kind([*parameters.items(), *pairs])
    saving.copy(buffers.items())
    saving.copy(pairs, _MAX_COPIED)
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
            _put_back_registry(part._parameters, own_parameters)
            _put_back_registry(part._buffers, own_buffers)
        has_other_objects = any(a.has_other_objects for a in attributes)
        for part_attributes in attributes:
            changed.update(part_attributes.put_back(has_other_objects=has_other_objects))


def _named_tensors(
    module: torch.nn.Module,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The parameters and the buffers of a model by all their names, found in one walk: this is
    done around each run."""
    parameters: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        begin = f"{prefix}." if prefix else ""
        for tensors, registry in ((parameters, part._parameters), (buffers, part._buffers)):
            for name, tensor in registry.items():
                if tensor is not None:
                    tensors[begin + name] = tensor
    return parameters, buffers


def _put_back_registry(registry: Any, before: Mapping[str, Any]) -> None:
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
            if (storage := storage_of(tensor)) is not None:
                self._watched[storage].append((name, tensor))

    def copy(self, tensors: Iterable[tuple[str, torch.Tensor]], at_most: float = math.inf) -> None:
        """Saves tensors at once, as many as fit into a number of bytes."""
        for name, tensor in tensors:
            at_most -= tensor.nbytes if tensor.layout is torch.strided else 0
            if at_most >= 0:
                with torch.no_grad():
                    self._copies.append((name, tensor, tensor.detach().clone()))

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
                    self.copy(self._watched.pop(storage_of(leaf) or 0, ()))
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
    written = [
        (i, argument.name)
        for i, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tuple(i for i, _ in written), tuple(name for _, name in written)


def number_text(value: Any) -> str:
    """A value among the state as text if it is a number; else an empty text."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type != "meta":
        value = value.item()
    return repr(value) if isinstance(value, bool | int | float) else ""


def copied_from_state(module: torch.nn.Module, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The same leaves, with copies of those that are part of the model's state, because restoring
    the state would change the result as well."""
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
    """Whether a tensor that was a copy of another one was written to, even if its values are the
    same."""
    return bool(now._version) or not same(before, now)


def _memory(tensor: torch.Tensor) -> int | None:
    """Where the memory of a tensor is. Two storages may have the same, as two tensors made of one
    NumPy array have."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # a sparse tensor has no storage
        return None


@contextlib.contextmanager
def preserved(module: torch.nn.Module) -> Iterator[None]:
    """Undoes what a traced forward leaves in a model besides what :func:`unchanged` puts back:
    attributes with symbolic values, also within containers and objects.

    Other attributes stay as they are: libraries install hooks when a forward first runs and note it
    in an attribute (transformers' output capturing), and one without the other breaks the model.
    """
    before = [(part, dict(vars(part))) for part in module.modules()]
    containers = _containers(module)
    try:
        yield
    finally:
        for container, elements in containers:
            _put_back(container, elements)
        for part, state in before:
            for name, value in list(vars(part).items()):
                if value is not state.get(name) and _is_symbolic(value):
                    if name in state:
                        vars(part)[name] = state[name]
                    else:
                        del vars(part)[name]


def _containers(module: torch.nn.Module) -> list[tuple[Any, Any]]:
    """The containers in a model's attributes, each with a copy of its elements. The dict of
    attributes of an object that is neither a module nor a tensor is a container, too."""
    containers: dict[int, tuple[Any, Any]] = {}
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
        if id(value) in containers or depth > _MAX_DEPTH:
            continue
        inside = list(value.values() if isinstance(value, dict) else value)
        containers[id(value)] = (value, dict(value) if isinstance(value, dict) else inside)
        waiting += [(child, depth + 1) for child in inside]
    return list(containers.values())


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
    from torch._subclasses import FakeTensor

    kinds = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    leaves = pytree.tree_leaves(value)
    objects = [leaf for leaf in leaves if has_state(leaf)]
    attributes = [list(vars(value).values()) for value in objects]
    parts = leaves + pytree.tree_leaves(attributes)
    return any(
        isinstance(part, kinds) or type(part).__name__ == "FunctionalTensor" for part in parts
    )
