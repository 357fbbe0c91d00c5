"""Offsets of nested tensors that were made up, or belong to other sizes.

In come the tensors of a sample. The offsets of a nested tensor that do not fit its values are
replaced by some that do: components of nearly equal length, which end where the values end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.pytree.tensors import check_offsets, is_row_of_indices
from calltape_schema.objects import JAGGED_DIM
from calltape_schema.tree import FieldsNode, ScalarNode, TensorNode

if TYPE_CHECKING:
    import torch

__all__ = ["fit_offsets", "share_offsets"]


def fit_offsets(
    nodes: Iterable[FieldsNode], tensors: list[Any] | dict[int, Any], scalars: Sequence[Any]
) -> None:
    """Replaces the offsets and lengths that do not fit the values beside them.

    Args:
        nodes: the nested tensors.
        tensors: what the nodes refer to, by number; changed in place.
        scalars: likewise.
    """
    for node in nodes:
        parts = _leaves(node)
        dim = _ragged_dimension(node, scalars)
        if "values" not in parts or "offsets" not in parts or dim is None:
            continue
        values, offsets = tensors[parts["values"]], tensors[parts["offsets"]]
        lengths = tensors[parts["lengths"]] if "lengths" in parts else None
        rows = [offsets] if lengths is None else [offsets, lengths]
        if not all(hasattr(part, "dim") for part in (values, *rows)):
            continue  # a value that was not kept
        if (
            not 1 <= dim <= values.dim()
            or not all(map(is_row_of_indices, rows))
            or not len(offsets)
        ):
            continue  # no offsets fit
        if not _fit(offsets, lengths, values.shape[dim - 1]):
            made = _even(len(offsets), values.shape[dim - 1]).to(offsets)
            tensors[parts["offsets"]] = made
            if lengths is not None:
                tensors[parts["lengths"]] = made.diff().to(lengths)


def _fit(offsets: torch.Tensor, lengths: torch.Tensor | None, size: int) -> bool:
    """Whether these belong to values of this size. Without lengths, components have no gaps."""
    try:
        check_offsets(offsets, lengths, size)
    except ValueError:
        return False
    return lengths is not None or (int(offsets[0]) == 0 and int(offsets[-1]) == size)


def share_offsets(layout: ArgumentLayout, tensors: dict[int, Any]) -> None:
    """Makes offsets that were one tensor in the call one tensor again: two nested tensors have the
    same ragged dimension only then.

    Args:
        layout: of a recorded call, or of a variant.
        tensors: by their number in the layout; changed in place.
    """
    first: dict[int, int] = {}
    for node in layout.nested:
        for name, number in _leaves(node).items():
            if name in ("offsets", "lengths") and number in tensors:
                recorded = layout.tensors[number].number
                tensors[number] = tensors[first.setdefault(recorded, number)]


def _leaves(node: FieldsNode) -> Mapping[str, int]:
    pairs = zip(node.fields, node.children, strict=True)
    return {name: child.leaf for name, child in pairs if isinstance(child, TensorNode)}


def _ragged_dimension(node: FieldsNode, scalars: Sequence[Any]) -> int | None:
    for name, child in zip(node.fields, node.children, strict=True):
        if name == JAGGED_DIM and isinstance(child, ScalarNode) and child.kind == "int":
            return int(scalars[child.scalar])
    return None


def _even(count: int, size: int) -> torch.Tensor:
    import torch

    return torch.arange(count) * size // max(count - 1, 1)
