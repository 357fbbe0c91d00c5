"""What of a cache's state follows from the rest of it (transformers.cache_utils)."""

from __future__ import annotations

from typing import Any

__all__ = ["COUNTED", "DERIVED", "is_same_size"]

COUNTED = {
    "cumulative_length": ("keys", -2),
    "batch_size": ("keys", 0),
    "max_batch_size": ("keys", 0),
}
"""Ints that are the size of a tensor of the same object: the tensor's attribute and its axis. A
layer whose window is full has counted more tokens than it keeps; then it is an int of its own."""

DERIVED = {"_sliding_window_tensor": "sliding_window"}
"""Private tensors that follow from a plain attribute of the same object."""


def is_same_size(one: Any, other: Any) -> bool:
    """Whether two sizes are equal; while tracing, whether they are by themselves, without adding a
    condition to the program."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(one == other))
