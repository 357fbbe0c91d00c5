"""Nested tensors: from the parts on a tape to a tensor of torch, and from a tensor to its parts.

torch does not check that the offsets of a nested tensor are within its values, and reads memory
that it does not own if they are not. So parts that come from a tape are checked before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_schema.objects import (
    JAGGED_DIM,
    JAGGED_FIELDS,
    NESTED_TENSOR,
    is_jagged_class,
    jagged_parts,
)
from calltape_schema.tree import FieldsNode, Node, ScalarNode

if TYPE_CHECKING:
    import torch

__all__ = [
    "check_offsets", "is_nested_node", "is_ragged_dimension", "is_row_of_indices", "is_shapeless",
    "nested_parts", "nested_places", "nested_tensor",
]  # fmt: skip


def is_nested_node(node: Any) -> TypeGuard[FieldsNode]:
    """Whether a node of a spec stands for a nested tensor."""
    return isinstance(node, FieldsNode) and node.type == NESTED_TENSOR and node.kind == "object"


def is_ragged_dimension(node: Node, name: Any) -> bool:
    """Whether the child of this name is the int that says which dimension of a nested tensor is
    ragged."""
    if name != JAGGED_DIM or not is_nested_node(node):
        return False
    child = node.children[node.fields.index(name)]
    return isinstance(child, ScalarNode) and child.kind == "int"


def nested_places(root: Node, path: str = "") -> Iterator[tuple[FieldsNode, str]]:
    """The nested tensors in a tree, each with its path.

    Args:
        root: of a side of a call, or any node.
        path: of the root.
    """
    for at, node in nodes_with_paths(root, path):
        if is_nested_node(node):
            yield node, at


def nested_parts(value: Any, *, of_input: bool = True) -> dict[str, Any] | None:
    """The parts of a live nested tensor as the recorder names them; None for any other value, and
    for a nested tensor that torch has in another way.

    Args:
        value: anything.
        of_input: whether it is an argument, and no result.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or not value.is_nested:
        return None
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            known = is_jagged_class(type(value))
            return jagged_parts(value, of_input=of_input) if known else None
    except Exception:  # a fake one has no memory
        return None


def is_shapeless(value: Any) -> bool:
    """Whether a live tensor is a nested one in the strided layout: it has no shape, and of one that
    was recorded the tape has nothing else."""
    torch: Any = sys.modules["torch"]
    return bool(value.is_nested) and value.layout is torch.strided


def nested_tensor(parts: Mapping[str, Any]) -> torch.Tensor:
    """The nested tensor of these parts, in their memory. If the values of some are not on the tape,
    it is a meta tensor.

    Raises:
        ValueError: no nested tensor has these parts.
    """
    needed = ("values", "offsets", JAGGED_DIM)
    if not all(map(parts.__contains__, needed)) or not set(parts) <= set(JAGGED_FIELDS):
        raise ValueError("these are not the parts of a nested tensor")
    return _jagged(parts)


def _tensor(name: str, part: Any) -> torch.Tensor:
    import torch

    if isinstance(part, Placeholder):
        raise ValueError(f"its {name} were not kept ({part.reason})")
    if not isinstance(part, torch.Tensor) or part.layout is not torch.strided or part.is_nested:
        raise ValueError(f"its {name} are not a plain tensor")
    return part


def _jagged(parts: Mapping[str, Any]) -> torch.Tensor:

    values, offsets = _tensor("values", parts["values"]), _tensor("offsets", parts["offsets"])
    lengths = _tensor("lengths", parts["lengths"]) if "lengths" in parts else None
    dim = parts[JAGGED_DIM]
    if type(dim) is not int or not 1 <= dim <= values.dim():
        raise ValueError(f"its ragged dimension is {dim!r:.40}, its values have {values.dim()}")
    _check_indices(offsets, lengths)
    _check_stored("offsets", offsets)
    known = [values, offsets] if lengths is None else [values, offsets, lengths]
    if any(part.is_meta for part in known):
        values, offsets = values.to("meta"), offsets.to("meta")
        lengths = None if lengths is None else lengths.to("meta")
    else:
        check_offsets(offsets, lengths, values.shape[dim - 1])
    if values.is_quantized or values.device != offsets.device:
        raise ValueError("its values are quantized, or on another device than its offsets")
    # What torch.nested.nested_tensor_from_jagged calls, which also logs a warning.
    from torch.nested._internal.nested_tensor import nested_view_from_values_offsets_lengths

    build: Any = nested_view_from_values_offsets_lengths  # torch does not say what it takes
    made: torch.Tensor = build(values, offsets, lengths, ragged_idx=dim)
    if parts.get("requires_grad") is True and made.dtype.is_floating_point:
        made.requires_grad_(True)
    return made


def _check_stored(name: str, part: torch.Tensor) -> None:
    """Raises ValueError if elements are in the same place of memory. Who makes a nested tensor has
    a number per component; one number that claims to be a billion would cost gigabytes here."""
    if not part.is_meta and part.numel() * part.element_size() > part.untyped_storage().nbytes():
        raise ValueError(f"its {name} are expanded")


def is_row_of_indices(part: torch.Tensor) -> bool:
    """Whether a tensor has rank 1 and a dtype that torch takes for offsets and lengths."""
    import torch

    return part.dtype in (torch.int64, torch.int32) and part.dim() == 1


def _check_indices(offsets: torch.Tensor, lengths: torch.Tensor | None) -> None:
    if not is_row_of_indices(offsets) or not len(offsets):
        raise ValueError("its offsets are not a row of integers")
    if lengths is None:
        return
    if not is_row_of_indices(lengths) or len(lengths) != len(offsets) - 1:
        raise ValueError("its lengths are not one integer per component")


def check_offsets(offsets: torch.Tensor, lengths: torch.Tensor | None, size: int) -> None:
    """Raises ValueError if a component would be outside of the values.

    Args:
        offsets: a row of indices, at least one.
        lengths: a row of indices, one per component; None if each ends where the next one begins.
        size: of the values, on the axis on which the components lie.
    """
    wide = offsets.detach().long()
    # Not a difference, which may overflow.
    if not bool((wide[1:] >= wide[:-1]).all()):
        raise ValueError("its offsets are not sorted")
    if int(wide[0]) < 0 or int(wide[-1]) > size:
        raise ValueError(f"its offsets are beyond its values, which have size {size}")
    if lengths is None:
        return
    counts = lengths.detach().long()
    if counts.shape != wide[:-1].shape:
        raise ValueError("its lengths are not one integer per component")
    if bool(((counts < 0) | (counts > size)).any()) or bool((wide[:-1] + counts > size).any()):
        raise ValueError(f"its lengths are beyond its values, which have size {size}")
