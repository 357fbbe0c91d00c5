"""The values of tensors as the bytes that a blob has.

In come the facts of a leaf, and its value: a tensor, an array or bytes. Out go contiguous bytes.
"""

from __future__ import annotations

from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_schema.blob import Stored, stored_as
from calltape_schema.tree import Leaf

__all__ = ["stored_bytes", "stored_form"]


def stored_form(leaf: Leaf) -> Stored:
    """The entry of the blob for a leaf.

    Raises:
        UsageError: the format has no encoding for its dtype.
    """
    stored = stored_as(leaf)
    if stored is None:
        advice = "write the leaf without a key, and say why in `missing`"
        raise UsageError(f"{leaf.dtype} has no encoding", advice=advice)
    return stored


def stored_bytes(leaf: Leaf, value: Any) -> Any:
    """The bytes of a value in the order of FORMAT.md, as an object with the buffer protocol.

    Args:
        leaf: its facts.
        value: bytes that are in this order already; or a ``torch.Tensor``, on any device, or a
            NumPy array, both with the leaf's dtype and shape (an expanded axis may have size 1).

    Raises:
        UsageError: it does not fit the leaf.
    """
    expected = stored_form(leaf)
    if isinstance(value, bytes | bytearray | memoryview):
        found = memoryview(value).cast("B") if isinstance(value, memoryview) else value
    else:
        found = _of_tensor(leaf, value)
    if len(found) != expected.nbytes:
        raise UsageError(
            f"{leaf.key}: {len(found)} bytes, but {leaf.dtype}{list(leaf.shape)} has "
            f"{expected.nbytes}"
        )
    return found


def _of_tensor(leaf: Leaf, value: Any) -> memoryview:
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    dtype = str(tensor.dtype).removeprefix("torch.")
    once = tuple(1 if axis in leaf.expanded else n for axis, n in enumerate(leaf.shape))
    if dtype != leaf.dtype or tuple(tensor.shape) not in (leaf.shape, once):
        raise UsageError(
            f"{leaf.key}: a tensor {dtype}{list(tensor.shape)} for a leaf "
            f"{leaf.dtype}{list(leaf.shape)}"
        )
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    for axis in leaf.expanded:
        plain = plain.narrow(axis, 0, min(1, plain.shape[axis]))
    if plain.is_quantized:
        plain = plain.int_repr()
    # Some dtypes torch cannot copy; integers of their width it can.
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = plain.view(widths.get(plain.element_size(), plain.dtype))
    flat = plain.contiguous().reshape(-1).view(torch.uint8)
    array: Any = flat.numpy()
    return memoryview(array).cast("B") if flat.numel() else memoryview(b"")
