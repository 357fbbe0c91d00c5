"""How an object flattens for torch: its state as tensors and a context, and back.

In comes a cache, or another object of a registered class. Out go the tensors of its attributes, and
as context the rest of its state as plain JSON: the context of the exported call is compared with
those of later calls, and saved with the program. The context names classes. Objects are made only
of classes that this process registered, or of loaded caches and their layers.

A counter that only says how long a tensor is (``cumulative_length`` of a sliding-window layer that
is not full, ``batch_size`` of a static layer) becomes a reference to that size of the tensor. As a
number, it would give each step of a generation another input structure.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.pytree.caches import is_cache_name, is_same_size
from calltape_analyzer.pytree.classes import ClassIndex, name_of
from calltape_analyzer.pytree.tensors import dtype_of
from calltape_analyzer.pytree.wrappers import content_of, filled_list, filled_mapping
from calltape_schema.cache_classes import COUNTERS, DERIVED

__all__ = ["Context", "from_state", "remember", "to_state"]

_MAX_INLINE = 64

_remembered: dict[str, type] = {}


class Context(dict[str, Any]):
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
            name: _compared(held)
            for name, held in part["state"].items()
            if not (name.startswith("_") and isinstance(held, bool | int | float | str | None))
        }
        return {"object": part["object"], "state": state}
    if isinstance(part, dict):
        return {key: _compared(held) for key, held in part.items()}
    return [_compared(held) for held in part] if isinstance(part, list) else part


def remember(cls: type) -> None:
    """Allows objects of a class to be made from a context."""
    _remembered[name_of(cls)] = cls


def to_state(value: Any) -> tuple[list[Any], Any]:
    """The children of an object (its tensors, and the caches in it) and its context.

    Raises:
        UsageError: the state has a part that can be neither.
    """
    children: list[Any] = []
    remember(type(value))
    return children, Context(_object(value, children))


def from_state(children: Any, context: Any) -> Any:
    """The object that :func:`to_state` took apart."""
    return _made(context, list(children))


def _object(value: Any, children: list[Any]) -> dict[str, Any]:
    remember(type(value))
    content = content_of(value)
    if content is not None:
        return {"container": name_of(type(value)), "content": _part(content, children)}
    state: dict[str, Any] = {}
    for name, held in vars(value).items():
        state[name] = _attribute(value, name, held, children)
    return {"object": name_of(type(value)), "state": state}


def _attribute(owner: Any, name: str, held: Any, children: list[Any]) -> Any:
    import torch

    source = DERIVED.get(name)
    if source is not None and isinstance(held, torch.Tensor) and hasattr(owner, source):
        return {"derived": source, "device": str(held.device)}
    if name.startswith("_") and isinstance(held, torch.Tensor):
        return _inline(name, held)
    if name in COUNTERS and isinstance(held, int | torch.SymInt):
        attribute, axis = COUNTERS[name]
        tensor = getattr(owner, attribute, None)
        if _has_size(tensor, axis, held):
            return {"size": [attribute, axis]}
    return _part(held, children)


def _has_size(tensor: Any, axis: int, size: Any) -> bool:
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2:
        return False
    return is_same_size(size, tensor.shape[axis])


def _inline(name: str, tensor: Any) -> dict[str, Any]:
    if tensor.numel() > _MAX_INLINE:
        raise UsageError(
            f"the private tensor {name} of {tensor.numel()} elements is too large for a context "
            f"(at most {_MAX_INLINE})",
            advice="register the class yourself, with torch.utils._pytree.register_pytree_node",
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"values": tensor.tolist(), "dtype": dtype, "device": str(tensor.device)}


def _part(held: Any, children: list[Any]) -> Any:
    import torch

    if held is None or isinstance(held, bool | str):
        return held
    if isinstance(held, enum.Enum):
        # A combination of flags is no member: it has a value, and a name since Python 3.11.
        is_member = held.name in type(held).__members__
        told = {"name": held.name} if is_member else {"value": held.value}
        return {"enum": name_of(type(held)), **told}
    if isinstance(held, int | float):
        return held
    if isinstance(held, torch.SymInt | torch.SymBool):
        # While tracing. A context can hold a number only, so the program is for this number.
        return int(held) if isinstance(held, torch.SymInt) else bool(held)
    if isinstance(held, torch.Tensor) or is_cache_name(name_of(type(held))):
        children.append(held)
        return {"child": len(children) - 1}
    if isinstance(held, torch.dtype | torch.device):
        kind = "dtype" if isinstance(held, torch.dtype) else "device"
        return {kind: str(held).removeprefix("torch.")}
    if isinstance(held, type):
        remember(held)
        return {"class": name_of(held)}
    return _container(held, children)


def _container(held: Any, children: list[Any]) -> Any:
    if type(held) in (list, tuple):
        return {type(held).__name__: [_part(item, children) for item in held]}
    if type(held) is dict:
        items = [[_part(key, children), _part(item, children)] for key, item in held.items()]
        return {"dict": items}
    if content_of(held) is not None or (hasattr(held, "__dict__") and not callable(held)):
        return _object(held, children)
    raise UsageError(
        f"a {type(held).__name__} inside a cache cannot be flattened",
        advice="register the cache's class yourself, with torch.utils._pytree.register_pytree_node",
    )


def _made(context: Any, children: Sequence[Any]) -> Any:
    import torch

    if not isinstance(context, dict):
        return context
    if "object" in context:
        return _made_object(context, children)
    if "container" in context:
        cls, content = _class_of(context["container"]), _made(context["content"], children)
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
        return {_made(k, children): _made(v, children) for k, v in context["dict"]}
    if "tuple" in context:
        return tuple(_made(item, children) for item in context["tuple"])
    return [_made(item, children) for item in context["list"]]


def _made_object(context: dict[str, Any], children: Sequence[Any]) -> Any:
    import torch

    cls = _class_of(context["object"])
    made: Any = object.__new__(cls)
    later: dict[str, dict[str, Any]] = {}
    for name, part in context["state"].items():
        # Set to None first, so that the attributes keep their order, and filled in below.
        later |= (
            {name: part} if isinstance(part, dict) and ("size" in part or "derived" in part) else {}
        )
        vars(made)[name] = None if name in later else _made(part, children)
    for name, part in later.items():
        if "size" in part:
            attribute, axis = part["size"]
            vars(made)[name] = getattr(made, attribute).shape[axis]
        else:
            value = getattr(made, part["derived"])
            vars(made)[name] = torch.tensor(value, dtype=torch.long, device=part["device"])
    return made


def _class_of(name: str) -> type:
    found = _remembered.get(name) or ClassIndex().get(name)
    if found is None:
        raise UsageError(
            f"the class {name} is not known here",
            advice="import its module, and pass it to register_flattening_functions",
        )
    return found
