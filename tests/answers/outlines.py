"""Arguments and dynamic shapes as plain data: shapes and dtypes, and no values of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["outline", "shapes_outline"]


def shapes_outline(value: Any) -> Any:
    """Dynamic shapes as JSON has them, with the name of each ``Dim``."""
    if isinstance(value, Mapping):
        return {str(key): shapes_outline(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [shapes_outline(one) for one in value]
    if value is None or isinstance(value, str | int):
        return value
    hint = getattr(value, "type", None)  # Dim.AUTO and Dim.DYNAMIC are hints of this type
    return getattr(hint, "name", None) or str(value)


def outline(value: Any) -> Any:
    """A value as JSON: tensors as ``float32[2, 3]``, an object by its class and what it holds."""
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, Mapping):
        held = {str(key): outline(one) for key, one in value.items()}
        return held if type(value) is dict else {f"<{type(value).__name__}>": held}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: outline(getattr(value, name)) for name in value._fields}
    if isinstance(value, list | tuple):
        return [outline(one) for one in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    held = vars(value) if _holds_tensors(value) else None
    if held is not None:
        return {f"<{type(value).__name__}>": {name: outline(one) for name, one in held.items()}}
    return (
        repr(value) if isinstance(value, float | complex | bytes) else f"<{type(value).__name__}>"
    )


def _tensor(value: Any) -> str:
    if value.is_nested:
        return f"nested {[_tensor(part) for part in value.unbind()]}"
    text = f"{value.dtype}{list(value.shape)}".removeprefix("torch.")
    if not value.is_contiguous():
        text += f", strides {list(value.stride())}"
    return text if value.device.type == "cpu" else f"{text} on {value.device.type}"


def _holds_tensors(value: Any) -> bool:
    """Whether an object is a container of tensors: a cache, a layer of one, a dataclass."""
    import torch

    held = getattr(value, "__dict__", {}).values()
    return any(
        isinstance(one, torch.Tensor | list | tuple | dict) or hasattr(one, "__dict__")
        for one in held
        if not callable(one)
    )
