"""How a nested tensor stands on a tape: as an object with its parts, which are plain tensors.

In comes a nested tensor of torch in the jagged layout. Out go its parts by the names that tapes
have for them. The recorder describes arguments and outputs with this, and the analyzer the live
results that it compares with them. torch is not imported.
"""

from __future__ import annotations

from typing import Any, Final

from calltape_schema.attributes import dict_of, is_in_its_module
from calltape_schema.plain_classes import module_of, name_of

__all__ = [
    "JAGGED_DIM", "JAGGED_FIELDS", "NESTED_TENSOR", "is_jagged_class", "jagged_parts",
]  # fmt: skip

NESTED_TENSOR: Final = "torch.nested:NestedTensor"
"""The type name that nested tensors of the jagged layout have on a tape."""

JAGGED_DIM: Final = "jagged_dim"

JAGGED_FIELDS: Final = ("values", "offsets", "lengths", JAGGED_DIM, "requires_grad")
"""Its parts; ``lengths`` and ``requires_grad`` may be absent."""


def is_jagged_class(cls: type) -> bool:
    """Whether this is torch's class of nested tensors in the jagged layout, and no subclass."""
    is_named_so = name_of(cls) == "NestedTensor" and module_of(cls).startswith("torch.nested.")
    return is_named_so and is_in_its_module(cls)


def jagged_parts(value: Any, *, of_input: bool) -> dict[str, Any] | None:
    """The parts of a nested tensor in the jagged layout, read without an operator of torch; None
    if it has other attributes than those of the torch that we know.

    Args:
        value: an instance of a class that :func:`is_jagged_class` knows.
        of_input: whether it is an argument. Of a result nobody asks whether it requires a gradient.
    """
    state = dict_of(value) or {}
    values: Any = state.get("_values")
    offsets: Any = state.get("_offsets")
    lengths, dim = state.get("_lengths"), state.get("_ragged_idx")
    if type(dim) is not int or not all(map(_is_whole, (values, offsets))):
        return None
    found = {"values": values, "offsets": offsets}
    if lengths is not None:
        if not _is_whole(lengths):
            return None
        found["lengths"] = lengths
    found[JAGGED_DIM] = dim
    # The values of a nested tensor that is a leaf of autograd do not require a gradient themselves.
    if of_input and value.requires_grad and not values.requires_grad:
        found["requires_grad"] = True
    return found


def _is_whole(part: Any) -> bool:
    """Whether a part is a tensor, and not a nested one."""
    return hasattr(part, "untyped_storage") and not part.is_nested
