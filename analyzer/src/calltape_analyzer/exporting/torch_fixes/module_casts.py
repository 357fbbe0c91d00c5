"""``self.gate = self.gate.to(dtype)`` in a forward, where the dtype is what it was.

``Module.to`` replaces every parameter, also by itself, and torch refuses that while a trace runs
("Couldn't swap Linear.weight"). Here it does nothing if there is nothing to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch

__all__ = ["unneeded_casts"]


@contextlib.contextmanager
def unneeded_casts() -> Iterator[None]:
    """Lets a model cast its own parts to what they are while it is traced."""
    own = torch.nn.Module.to

    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return module if _is_there(module, args, kwargs) else own(module, *args, **kwargs)

    torch.nn.Module.to = to  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.nn.Module.to = own  # type: ignore[method-assign]


def _is_there(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether all parameters and buffers are of the dtype and on the device that are asked for."""
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
    if memory_format is not None:
        return False
    return all(
        (device is None or tensor.device == device)
        # Integers keep their dtype.
        and (
            dtype is None
            or tensor.dtype == dtype
            or not (tensor.is_floating_point() or tensor.is_complex())
        )
        for tensor in chain(module.parameters(), module.buffers())
    )
