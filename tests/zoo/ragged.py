"""Sequences of different lengths in one nested tensor, and the same as values and offsets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, simple
from tests.zoo.containers import made

__all__ = ["CASES", "NestedEncoder", "RaggedEncoder", "RaggedInside"]

_WIDTH = 8
_HEADS = 2


class _Layer(nn.Module):
    """One layer of an encoder: attention, and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.norm = nn.LayerNorm(_WIDTH)
        self.widen = nn.Linear(_WIDTH, 2 * _WIDTH)
        self.narrow = nn.Linear(2 * _WIDTH, _WIDTH)

    def attended(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Of rows of one sequence, or of several sequences with a mask."""
        parts = self.mix(x).view(-1, 3, _HEADS, _WIDTH // _HEADS).permute(1, 2, 0, 3)
        mixed = nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)
        return x + mixed.transpose(0, 1).flatten(1)

    def fed(self, x: Any) -> Any:
        return self.narrow(self.widen(self.norm(x)).relu())


class NestedEncoder(nn.Module):
    """An encoder of nested tensors: each component attends to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = _Layer()

    def forward(self, sequences: Tensor) -> Tensor:
        # The scaled_dot_product_attention of nested tensors needs a GPU (torch 2.15).
        attended = [self.layer.attended(one) for one in sequences.unbind()]
        return self.layer.fed(torch.nested.as_nested_tensor(attended, layout=torch.jagged))


class NestedPool(nn.Module):
    """Nested tensors in, a table out: the mean of each component, and how much differs from it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = _Layer()

    def forward(self, sequences: Tensor, others: Tensor | None = None) -> dict[str, Tensor]:
        found = self.layer.fed(sequences)
        if others is not None:
            found = found + self.layer.fed(others)
        return {"mean": found.mean(dim=1), "all": found}


class RaggedEncoder(NestedEncoder):
    """The same encoder with values and offsets, as the export advises."""

    def forward(self, values: Tensor, offsets: Tensor) -> Tensor:
        owner = torch.bucketize(torch.arange(values.shape[0]), offsets[1:], right=True)
        mask = owner[:, None] == owner[None]
        return self.layer.fed(self.layer.attended(values, mask))


class RaggedInside(NestedEncoder):
    """A nested tensor that the model makes for itself, which is what one would try first."""

    def forward(self, values: Tensor, offsets: Tensor) -> Tensor:
        nested = torch.nested.nested_tensor_from_jagged(values, offsets)
        found: Tensor = self.layer.fed(nested).values()
        return found


def _sequences(*lengths: int) -> Tensor:
    return torch.nested.nested_tensor(
        [torch.randn(length, _WIDTH) for length in lengths], layout=torch.jagged
    )


def _nested(*lengths: int) -> Arguments:
    return (_sequences(*lengths),), {}


def _pair(twice: bool, *lengths: int) -> Arguments:
    one = _sequences(*lengths)
    return (one,), ({"others": one * 2} if twice else {})


def _ragged(*lengths: int) -> Arguments:
    one = _sequences(*lengths)
    return (one.values(), one.offsets()), {}


_LENGTHS: dict[str, Any] = {
    "seen": [(3, 5), (4, 2, 6), (7, 2, 3, 4)], "unseen": [(2, 6, 3, 5, 4), (9, 3)]
}  # fmt: skip

CASES: list[Case] = [
    simple("nested_encoder", made(NestedEncoder), _nested, **_LENGTHS),
    simple(
        "nested_pool", made(NestedPool), _pair,
        seen=[(False, 3, 5), (True, 4, 2, 6), (False, 7, 2, 3), (True, 2, 4)],
        unseen=[(False, 2, 6, 3, 5), (True, 9, 3, 2, 2)], note="two of the same lengths",
    ),
    simple("ragged_encoder", made(RaggedEncoder), _ragged, **_LENGTHS,
           note="as the refusal of `nested_encoder` advises"),
]  # fmt: skip
