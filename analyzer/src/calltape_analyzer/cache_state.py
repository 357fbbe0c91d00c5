"""An object's state as tensors and plain data, and back: how caches flatten for torch.

The context is JSON: it is compared between the exported call and later ones, and saved with the
program. It names classes, and only classes that this process registered or has loaded as
transformers' cache layers are made from it.

A counter that says nothing but how long a tensor is (``cumulative_length`` of a sliding-window
layer that is not full, ``batch_size`` of a static one) is kept as a reference to that tensor's
size. As a number it would make every step of a generation another input structure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from calltape_analyzer.classes import ClassIndex, name_of
from calltape_analyzer.counters import COUNTED, DERIVED, is_same_size
from calltape_analyzer.errors import UsageError
from calltape_analyzer.tensors import dtype_of

__all__ = ["Context", "from_state", "remember", "to_state"]

_MAX_INLINE = 64

_remembered: dict[str, type] = {}


class Context(dict[str, Any]):
    """An object's context. Private flags and numbers are kept, and not compared: ``generate()``
    marks caches (``_is_user_defined``) in ways that mean nothing to a program."""

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
    """Allows a class to be made again from a context."""
    _remembered[name_of(cls)] = cls


def to_state(value: Any) -> tuple[list[Any], Any]:
    """The children (tensors, and caches inside the object) and the context.

    Raises:
        UsageError: for state that is neither.
    """
    children: list[Any] = []
    remember(type(value))
    return children, Context(_object(value, children))


def from_state(children: Any, context: Any) -> Any:
    """The object of :func:`to_state`."""
    return _made(context, list(children))


def _object(value: Any, children: list[Any]) -> dict[str, Any]:
    remember(type(value))
    state: dict[str, Any] = {}
    for name, held in vars(value).items():
        state[name] = _attribute(value, name, held, children)
    return {"object": name_of(type(value)), "state": state}


def _attribute(owner: Any, name: str, held: Any, children: list[Any]) -> Any:
    import torch

    if name in DERIVED and isinstance(held, torch.Tensor) and hasattr(owner, DERIVED[name]):
        return {"derived": DERIVED[name], "device": str(held.device)}
    if name.startswith("_") and isinstance(held, torch.Tensor):
        return _inline(name, held)
    if name in COUNTED and isinstance(held, int | torch.SymInt):
        attribute, axis = COUNTED[name]
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
            f"the private tensor {name} of {tensor.numel()} elements is part of the state",
            advice="register the class with torch.utils._pytree before",
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"values": tensor.tolist(), "dtype": dtype, "device": str(tensor.device)}


def _part(held: Any, children: list[Any]) -> Any:
    import torch

    if held is None or isinstance(held, bool | str):
        return held
    if isinstance(held, enum.Enum):
        return {"enum": name_of(type(held)), "name": held.name}
    if isinstance(held, int | float):
        return held
    if isinstance(held, torch.SymInt | torch.SymBool):
        # While tracing; as context it must be a number, which specializes the program on it.
        return int(held) if isinstance(held, torch.SymInt) else bool(held)
    if isinstance(held, torch.Tensor) or type(held).__name__.endswith("Cache"):
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
    if isinstance(held, Mapping):
        items = [[_part(key, children), _part(item, children)] for key, item in held.items()]
        return {"dict": items}
    if hasattr(held, "__dict__") and not callable(held):
        return _object(held, children)
    raise UsageError(
        f"a {type(held).__name__} inside a cache cannot be flattened",
        advice="register the class with torch.utils._pytree before",
    )


def _made(context: Any, children: Sequence[Any]) -> Any:
    import torch

    if not isinstance(context, dict):
        return context
    if "object" in context:
        return _made_object(context, children)
    if "child" in context:
        return children[context["child"]]
    if "dtype" in context and "values" in context:
        dtype = dtype_of(context["dtype"])
        return torch.tensor(context["values"], dtype=dtype, device=context["device"])
    if "dtype" in context:
        return dtype_of(context["dtype"])
    if "device" in context:
        return torch.device(context["device"])
    if "class" in context or "enum" in context:
        cls = _class_of(context.get("class") or context["enum"])
        return cls if "class" in context else cls[context["name"]]  # type: ignore[index]
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
        # Set now, so that the order of attributes stays, and filled in below.
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
