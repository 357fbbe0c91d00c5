"""Registers the classes of a tape's calls with torch's pytree, for a while.

``torch.export`` takes an object apart only if its class is registered. While a ``with`` block runs,
torch flattens such classes as :mod:`calltape_analyzer.pytree.flattening` says. A class that is
registered already keeps its registration: transformers has two for its caches
(``transformers.integrations.executorch``, ``transformers.exporters``), which flatten them in
different ways, and inferred shapes follow the active one.

A sliding-window cache counts the tokens that it has seen (``cumulative_length``). Until the
window is full, the counter is the length of the keys, and may vary. After that it is another
number, and a program that is exported then has it as a constant: it takes the cache only at the
same count. (The positions of new tokens follow from the counter if a call does not pass
``position_ids``.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from calltape_analyzer.errors import UsageError
from calltape_analyzer.pytree.caches import is_cache_name, is_same_size, loaded_cache_classes
from calltape_analyzer.pytree.classes import ClassIndex, class_name, loaded_batch_classes
from calltape_analyzer.pytree.rebuilding import content_of, filled_list, filled_mapping
from calltape_analyzer.pytree.tensors import dtype_of
from calltape_schema.cache_classes import COUNTERS, DERIVED
from calltape_schema.objects import WRAPPERS

__all__ = ["register_flattening_functions"]

_MAX_INLINE = 64

_remembered: dict[str, type] = {}


class NodeContext(dict[str, Any]):
    """The context of an object. Private flags and numbers are kept, but not compared:
    ``generate()`` sets some on caches (``_is_user_defined``) that mean nothing to a program."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and _compared(self) == _compared(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


def _compared(part: Any) -> Any:
    if isinstance(part, dict) and "object" in part:
        state = {
            name: _compared(value)
            for name, value in part["state"].items()
            if not (name.startswith("_") and isinstance(value, bool | int | float | str | None))
        }
        return {"object": part["object"], "state": state}
    if isinstance(part, dict):
        return {key: _compared(value) for key, value in part.items()}
    return [_compared(value) for value in part] if isinstance(part, list) else part


def remember(cls: type) -> None:
    """Allows objects of a class to be made from a context."""
    _remembered[class_name(cls)] = cls


def to_state(value: Any) -> tuple[list[Any], Any]:
    """The children of an object (its tensors, and the caches in it) and its context.

    Raises:
        UsageError: the state has a part that can be neither.
    """
    children: list[Any] = []
    return children, NodeContext(_object(value, children))


def from_state(children: Any, context: Any) -> Any:
    """The object that :func:`to_state` took apart."""
    return _part_rebuilt(context, list(children))


def _object(value: Any, children: list[Any]) -> dict[str, Any]:
    remember(type(value))
    content = content_of(value)
    if content is not None:
        return {"container": class_name(type(value)), "content": _part(content, children)}
    state = {name: _attribute(value, name, part, children) for name, part in vars(value).items()}
    return {"object": class_name(type(value)), "state": state}


def _attribute(owner: Any, name: str, value: Any, children: list[Any]) -> Any:
    import torch

    source = DERIVED.get(name)
    if source is not None and isinstance(value, torch.Tensor) and hasattr(owner, source):
        return {"derived": source, "device": str(value.device)}
    if name.startswith("_") and isinstance(value, torch.Tensor):
        if value.numel() > _MAX_INLINE:
            raise UsageError(
                f"the private tensor {name} of {value.numel()} elements is too large for a context "
                f"(at most {_MAX_INLINE})",
                advice="register the class yourself, with torch.utils._pytree.register_pytree_node",
            )
        dtype = str(value.dtype).removeprefix("torch.")
        return {"values": value.tolist(), "dtype": dtype, "device": str(value.device)}
    if name in COUNTERS and isinstance(value, int | torch.SymInt):
        attribute, axis = COUNTERS[name]
        tensor = getattr(owner, attribute, None)
        shape: Any = tensor.shape if isinstance(tensor, torch.Tensor) else ()
        if len(shape) > 1 and is_same_size(value, shape[axis]):
            return {"size": [attribute, axis]}
    return _part(value, children)


def _part(value: Any, children: list[Any]) -> Any:
    import torch

    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, enum.Enum):
        # A combination of flags is no member: it has a value, and a name since Python 3.11.
        is_member = value.name in type(value).__members__
        which = {"name": value.name} if is_member else {"value": value.value}
        return {"enum": class_name(type(value)), **which}
    if isinstance(value, int | float):
        return value
    if isinstance(value, torch.SymInt | torch.SymBool):
        # While tracing. A context can hold a number only, so the program is for this number.
        return int(value) if isinstance(value, torch.SymInt) else bool(value)
    if isinstance(value, torch.Tensor) or is_cache_name(class_name(type(value))):
        children.append(value)
        return {"child": len(children) - 1}
    if isinstance(value, torch.dtype | torch.device):
        kind = "dtype" if isinstance(value, torch.dtype) else "device"
        return {kind: str(value).removeprefix("torch.")}
    if isinstance(value, type):
        remember(value)
        return {"class": class_name(value)}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_part(item, children) for item in value]}
    if type(value) is dict:
        items = [[_part(key, children), _part(item, children)] for key, item in value.items()]
        return {"dict": items}
    if content_of(value) is not None or (hasattr(value, "__dict__") and not callable(value)):
        return _object(value, children)
    raise UsageError(
        f"a {type(value).__name__} inside a cache cannot be flattened",
        advice="register the cache's class yourself, with torch.utils._pytree.register_pytree_node",
    )


def _part_rebuilt(context: Any, children: Sequence[Any]) -> Any:
    import torch

    if not isinstance(context, dict):
        return context
    if "object" in context:
        return _made_object(context, children)
    if "container" in context:
        cls, content = _class_of(context["container"]), _part_rebuilt(context["content"], children)
        is_list = isinstance(content, list)
        return filled_list(cls, content) if is_list else filled_mapping(cls, content.items())
    if "child" in context:
        return children[context["child"]]
    if "dtype" in context and "values" in context:
        dtype = dtype_of(context["dtype"])
        return torch.tensor(context["values"], dtype=dtype, device=context["device"])
    if "dtype" in context:
        return dtype_of(context["dtype"])
    if "device" in context:
        return torch.device(context["device"])
    if "class" in context:
        return _class_of(context["class"])
    if "enum" in context:
        kind: Any = _class_of(context["enum"])
        return kind[context["name"]] if "name" in context else kind(context["value"])
    if "dict" in context:
        return {_part_rebuilt(k, children): _part_rebuilt(v, children) for k, v in context["dict"]}
    if "tuple" in context:
        return tuple(_part_rebuilt(item, children) for item in context["tuple"])
    return [_part_rebuilt(item, children) for item in context["list"]]


def _made_object(context: dict[str, Any], children: Sequence[Any]) -> Any:
    import torch

    cls = _class_of(context["object"])
    instance: Any = object.__new__(cls)
    later: dict[str, dict[str, Any]] = {}
    for name, part in context["state"].items():
        # Set to None first, so that the attributes keep their order, and filled in below.
        later |= (
            {name: part} if isinstance(part, dict) and ("size" in part or "derived" in part) else {}
        )
        vars(instance)[name] = None if name in later else _part_rebuilt(part, children)
    for name, part in later.items():
        if "size" in part:
            attribute, axis = part["size"]
            vars(instance)[name] = getattr(instance, attribute).shape[axis]
        else:
            value = getattr(instance, part["derived"])
            vars(instance)[name] = torch.tensor(value, dtype=torch.long, device=part["device"])
    return instance


def _class_of(name: str) -> type:
    cls = _remembered.get(name) or ClassIndex().get(name)
    if cls is None:
        raise UsageError(
            f"the class {name} is not known here",
            advice="import its module, and pass it to register_flattening_functions",
        )
    return cls


# The classes that are registered here, and how many blocks use each. The lock is held only while
# this changes.
_users: dict[type, int] = {}
_lock = threading.RLock()


class HasClasses(Protocol):
    """What a registration needs of a tape."""

    @property
    def classes(self) -> tuple[type, ...]: ...


@contextlib.contextmanager
def register_flattening_functions(
    classes: Iterable[type] = (),
    *,
    tape: HasClasses | None = None,
    patch_transformers: bool | None = None,
) -> Iterator[None]:
    """Registers classes with torch while the ``with`` block runs.

    A dataclass flattens to its fields, as with ``torch.export.register_dataclass``. A cache, or
    another object, flattens to the tensors in its public attributes (``k0, v0, k1, v1``); the rest
    of its state is context, which is compared and is saved with the program. A container of a class
    of its own (a subclass of dict or list, ``UserDict``, ``UserList``, a view of a dict) flattens
    to the tensors in it. Blocks may be nested, and several threads may run one.

    Args:
        classes: classes to register, besides the ones below. A named tuple can be exported without
            a registration; it gets one so that the program can be saved.
        tape: adds the classes that the tape was opened with.
        patch_transformers: whether caches (those of transformers, and taught ones) are registered.
            None: if their module is imported already; True: transformers is imported for it;
            False: never. (yobx has a function with a parameter of this name.)

    Raises:
        UsageError: one of ``classes`` is not a class.
    """
    requested = [*classes, *(tape.classes if tape is not None else ())]
    for cls in requested:
        if not isinstance(cls, type):
            raise UsageError(f"{cls!r} is not a class", advice="pass the classes themselves")
    if patch_transformers:
        import transformers.cache_utils  # noqa: F401
    if patch_transformers is not False:
        requested += loaded_cache_classes()
    requested += [*WRAPPERS, *loaded_batch_classes()]
    registered = [cls for cls in dict.fromkeys(requested) if _hold(cls)]
    try:
        yield
    finally:
        with _lock:
            for cls in reversed(registered):
                _users[cls] -= 1
                if _users[cls] == 0:
                    del _users[cls]
                    _unregister(cls)


def _hold(cls: type) -> bool:
    """Registers a class, or counts one more user of our registration. False if the class has
    another registration."""
    from torch.utils import _pytree as pytree

    with _lock:
        if cls in _users:
            _users[cls] += 1
            return True
        if cls in pytree.SUPPORTED_NODES:
            return False
        try:
            _register(cls)
        except ValueError:
            return False  # another thread registered it in between
        _users[cls] = 1
        return True


def _register(cls: type) -> None:
    from torch.fx import _pytree as fx_pytree
    from torch.utils import _pytree as pytree

    serialized = f"{cls.__module__}.{cls.__qualname__}"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        pytree._register_namedtuple(cls, serialized_type_name=serialized)
        return
    if dataclasses.is_dataclass(cls):
        import torch

        torch.export.register_dataclass(cls, serialized_type_name=serialized)
        return

    def with_keys(value: Any) -> tuple[list[Any], Any]:
        children, context = to_state(value)
        return [(pytree.SequenceKey(i), child) for i, child in enumerate(children)], context

    remember(cls)
    pytree.register_pytree_node(
        cls,
        to_state,
        from_state,
        serialized_type_name=serialized,
        to_dumpable_context=dict,
        from_dumpable_context=NodeContext,
        flatten_with_keys_fn=with_keys,
    )
    # An exported program flattens its inputs with the spec of its trace, through torch.fx.
    fx_pytree.register_pytree_flatten_spec(cls, _flatten_by_spec)


def _flatten_by_spec(value: Any, spec: Any) -> list[Any]:
    children, context = to_state(value)
    if context != spec.context:
        raise ValueError(
            f"this {type(value).__name__} is in another state than the one that was exported"
        )
    return children


def _unregister(cls: type) -> None:
    """Removes our registration. If another one has replaced it, that one stays."""
    from torch.fx import _pytree as fx_pytree
    from torch.utils import _pytree as pytree

    node = pytree.SUPPORTED_NODES.get(cls)
    is_object = not dataclasses.is_dataclass(cls) and not issubclass(cls, tuple)
    if node is None or (is_object and node.flatten_fn is not to_state):
        return
    deregister: Callable[[type], None] | None = getattr(pytree, "_deregister_pytree_node", None)
    if deregister is not None:
        deregister(cls)
    else:
        # Older versions of torch have no such function. Without optree, these are all their tables.
        pytree.SUPPORTED_NODES.pop(cls, None)
        serialized = pytree.SUPPORTED_SERIALIZED_TYPES.pop(cls, None)
        if serialized is not None:
            pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(serialized.serialized_type_name, None)
    if fx_pytree.SUPPORTED_NODES.get(cls) is _flatten_by_spec:
        fx_pytree.SUPPORTED_NODES.pop(cls, None)
        fx_pytree.SUPPORTED_NODES_EXACT_MATCH.pop(cls, None)
