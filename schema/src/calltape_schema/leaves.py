"""The leaves of a tree: the facts of its tensors that their bytes in the blob do not say.

In come plain data or bytes; out go bytes or :class:`Leaf` models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator
from typing_extensions import Self

from calltape_schema.bounds import MAX_ELEMENTS, MAX_LEAVES, MAX_RANK
from calltape_schema.fields import Index, Many, Name, Record, Size, TypeName, decoder
from calltape_schema.packing import pack
from calltape_schema.recent import Interner

__all__ = ["Leaf", "Quantizer", "checked_leaves", "decode_leaves", "encode_leaves"]


class Quantizer(Record):
    """The quantization of a whole tensor: ``real = scale * (stored - zero_point)``."""

    scheme: Literal["per_tensor_affine", "per_tensor_symmetric"]
    scale: float
    zero_point: int


class Leaf(Record):
    """The facts of one tensor.

    ``dtype``, ``shape`` and ``strides`` (in elements; None if contiguous) are those of the tensor,
    in torch's terms. ``key`` names its bytes in the blob. A leaf without a key was not kept, and
    ``missing`` says why. :func:`calltape_schema.blob.stored_as` says which entry of the blob
    follows from these facts.
    """

    dtype: Annotated[str, Field(max_length=64)]
    shape: Annotated[Many[Size], Field(max_length=MAX_RANK)]
    key: Annotated[str, Field(max_length=1024, min_length=1)] | None = None
    missing: Name | None = None
    strides: Many[Annotated[int, Field(ge=0, le=MAX_ELEMENTS)]] | None = None
    expanded: Annotated[
        Many[Annotated[int, Field(ge=0, lt=MAX_RANK)]], Field(max_length=MAX_RANK)
    ] = ()
    device: Annotated[str, Field(max_length=64)] = "cpu"
    layout: Annotated[str, Field(max_length=64)] = "strided"
    requires_grad: bool = False
    inference: bool = False
    conj: bool = False
    neg: bool = False
    subclass: TypeName | None = None
    storage: Index | None = None
    offset: Size = 0
    quantizer: Quantizer | None = None

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        # A size of 0 must not hide that the product of the other sizes is too large.
        if math.prod(max(size, 1) for size in self.shape) > MAX_ELEMENTS:
            raise ValueError("more elements than fit in 63 bits")
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise ValueError(f"{len(self.strides)} strides for {len(self.shape)} sizes")
        if any(axis >= len(self.shape) for axis in self.expanded):
            raise ValueError(f"expanded axes {self.expanded} of rank {len(self.shape)}")
        if any(after <= axis for axis, after in pairwise(self.expanded)):
            raise ValueError(f"expanded axes {self.expanded} do not ascend")
        if self.offset and self.storage is None:
            raise ValueError("an offset in memory that is shared with no leaf")
        if (self.key is None) == (self.missing is None):
            raise ValueError("not either a key or a reason why the value is missing")
        if self.key is None and self.quantizer is not None:
            raise ValueError("a quantizer without the elements that it follows from")
        return self


_leaves: TypeAdapter[tuple[Leaf, ...]] = TypeAdapter(
    Annotated[Many[Leaf], Field(max_length=MAX_LEAVES)]
)


def encode_leaves(document: list[dict[str, Any]]) -> bytes:
    """Validates and encodes the leaves of one tree.

    Raises:
        TapeError: ``invalid`` or ``limit``: no reader would accept them.
    """
    return checked_leaves(document)[0]


def checked_leaves(document: list[dict[str, Any]]) -> tuple[bytes, tuple[Leaf, ...]]:
    """Like :func:`encode_leaves`, and the decoded leaves too. They are not remembered: a recorder
    does not need them again, and they take many times the memory of the bytes."""
    data = pack(document)
    return data, _decode(data)


_decode = decoder(_leaves, "leaves")
decode_leaves: Callable[[bytes], tuple[Leaf, ...]] = Interner(_decode)
"""The leaves from their bytes. Equal bytes give the same tuple while it is remembered."""
