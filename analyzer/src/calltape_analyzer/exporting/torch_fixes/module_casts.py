"""``self.gate = self.gate.to(dtype)`` in ``forward``, where the dtype does not change.

``Module.to`` replaces every parameter, even by itself, which torch rejects during a trace
("Couldn't swap Linear.weight"). Here it does nothing if nothing would change.
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
    """Allows a model to cast its parts to their own dtype and device while it is traced."""
    own = torch.nn.Module.to

    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return module if _is_there(module, args, kwargs) else own(module, *args, **kwargs)

    torch.nn.Module.to = to  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.nn.Module.to = own  # type: ignore[method-assign]


def _is_there(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether all parameters and buffers have the requested dtype and device already."""
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
