"""Arguments that models of several files are called with."""

from __future__ import annotations

import torch

from tests.zoo.case import Arguments
from tests.zoo.language import VOCAB

__all__ = [
    "any_edges",
    "drawn",
    "images",
    "masked_sounds",
    "mono",
    "pictures",
    "random_ids",
    "sounds",
    "tiny_images",
]


def images(rows: int, height: int, width: int) -> Arguments:
    """A batch of images of noise, as the only argument."""
    return (torch.randn(rows, 3, height, width),), {}


def sounds(rows: int, samples: int) -> Arguments:
    """A batch of sounds of noise, as the only argument."""
    return (torch.randn(rows, samples),), {}


def masked_sounds(rows: int, samples: int) -> Arguments:
    """Sounds of which the first one ends early, and the mask that says so."""
    mask = torch.ones(rows, samples, dtype=torch.long)
    mask[0, -16:] = 0
    return (), {"input_values": torch.randn(rows, samples), "attention_mask": mask}


def mono(rows: int, samples: int) -> Arguments:
    """Sounds with a channel axis of size 1."""
    return (torch.randn(rows, 1, samples),), {}


def pictures(*sizes: tuple[int, int]) -> Arguments:
    """A list of images, each of its own size."""
    return ([torch.rand(3, height, width) for height, width in sizes],), {}


def drawn(seed: int, *shape: int) -> torch.Tensor:
    """Numbers of a normal distribution, always the same for a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def any_edges(nodes: int, edges: int) -> torch.Tensor:
    """Edges between nodes of a graph."""
    return torch.randint(0, nodes, (2, edges))


def random_ids(rows: int, length: int) -> torch.Tensor:
    """Token ids without the special ones."""
    return torch.randint(3, VOCAB, (rows, length))


def tiny_images(batch: int, _: int) -> dict[str, torch.Tensor]:
    """Small pictures by the name that transformers has for them."""
    generator = torch.Generator().manual_seed(batch)
    return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}
