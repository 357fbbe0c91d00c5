"""A model that checks that features and their places are as many."""

from __future__ import annotations

import torch
from torch import nn

from calltape_analyzer.exporting.torch_fixes.rounded_bounds import rounded_bounds


class Filled(nn.Module):
    """Puts 8 features of a picture in the places of tokens 5."""

    def forward(self, ids, picture):
        words = nn.functional.one_hot(ids, 32).float()
        places = (ids == 5)[..., None].expand_as(words)
        torch._check(words[places].numel() == picture.numel())
        return words.masked_scatter(places, picture)


def arguments(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(rows, length, dtype=torch.long)
    ids[:, 1:9] = 5
    return ids, torch.rand(rows, 8, 32)


def test_a_bound_that_torch_rounds_up_leaves_the_batch_open() -> None:
    auto = torch.export.Dim.AUTO
    with rounded_bounds():
        program = torch.export.export(
            Filled(), arguments(2, 10), dynamic_shapes=({0: auto, 1: auto}, {0: auto}), strict=False
        )
    others = arguments(5, 12)
    torch.testing.assert_close(program.module()(*others), Filled()(*others))
