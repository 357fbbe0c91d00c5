"""What holds for one recorded value, or for all of few calls, is no evidence about others: each of
these models gave other results without a word, or was exported for its recorded sizes only."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import NoVariant, export
from calltape_analyzer.programs.notes import OpenFloats
from tests.analyzer.exported import Call, call, made, taped


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class Scale(torch.nn.Module):
    """A float with one value in each part of the calls: a batch of one is apart."""

    def forward(self, x: torch.Tensor, t: float, words: torch.Tensor) -> torch.Tensor:
        return x * t + words.mean(1)[:, None, None]


class Sine(Scale):
    """As :class:`Scale`, with what Python makes of the float: a constant of each program."""

    def forward(self, x: torch.Tensor, t: float, words: torch.Tensor) -> torch.Tensor:
        return super().forward(x, math.sin(t), words)


class Label(torch.nn.Module):
    """As :class:`Scale`, with a float that changes nothing."""

    def forward(self, x: torch.Tensor, t: float, words: torch.Tensor) -> torch.Tensor:
        return x + words.mean(1)[:, None, None]


def scaled(batch: int, t: float, length: int) -> Call:
    return call(randn(batch, 2, length), t, randn(batch, length))


def test_one_value_of_a_float_in_each_part_is_tried_in_the_others(tmp_path: Path) -> None:
    unseen = [scaled(batch, 700.75, 6) for batch in (1, 2, 5)]
    programs = made(tmp_path, Scale(), [scaled(2, 951.5, 5), scaled(1, 11.25, 7)], unseen)
    told = [note for program in programs.values() for note in program.remarks]
    assert told.count(OpenFloats(("t",), 2, 2)) == len(programs) == 2


def test_one_value_of_a_float_is_no_evidence(tmp_path: Path) -> None:
    model = Sine()
    programs = export(taped(tmp_path, model, [scaled(2, 951.5, 5), scaled(1, 11.25, 7)]), model)
    for batch in (1, 2, 5):
        with pytest.raises(NoVariant, match=r"t is 700\.75; this program has"):
            programs(*scaled(batch, 700.75, 6)[0])
    args, _ = scaled(3, 951.5, 6)
    torch.testing.assert_close(programs(*args), model(*args))


def test_a_float_that_changes_nothing_is_free(tmp_path: Path) -> None:
    model = Label()
    programs = export(taped(tmp_path, model, [scaled(2, 951.5, 5), scaled(1, 11.25, 7)]), model)
    args, _ = scaled(2, 700.75, 6)
    torch.testing.assert_close(programs(*args), model(*args))
    told = [note for program in programs.values() for note in program.remarks]
    assert OpenFloats(("t",), 2, 2) in told


class Keep(torch.nn.Module):
    """-1 for all, n for the last n."""

    def forward(self, x: torch.Tensor, keep: int) -> torch.Tensor:
        return x[:, 0 if keep < 0 else max(x.shape[1] - keep, 0) :] * 2


class Chunk(torch.nn.Module):
    """A stream that begins with ``zeros(0, 0, 0)``."""

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        y = x.view(1, x.shape[1], 2, 4).transpose(1, 2)
        return torch.cat([cache[:1], y], 2) if cache.size(0) else y


class Experts(torch.nn.Module):
    """Each recorded call hits every expert."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate = torch.nn.Linear(8, 3, bias=False)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        for expert in torch.nn.functional.one_hot(chosen, 3).sum(0).nonzero():
            at = torch.where(chosen == int(expert))[0]
            out.index_add_(0, at, self.experts[int(expert)](x[at]))
        return out


class Loss(torch.nn.Module):
    """``labels=ids``: one object, which the model does not ask about."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (ids[:, :-1].float() - labels[:, 1:]).abs().mean()


class Padded(torch.nn.Module):
    """A mask as wide as ``int(lengths.max())``."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        longest = int(torch.max(lengths).item())
        padding = torch.arange(longest).expand(len(lengths), longest) >= lengths.unsqueeze(1)
        return x.masked_fill(padding[..., None], 0.0).sum(1)


def padded(batch: int, frames: int) -> Call:
    lengths = torch.arange(frames, frames - batch, -1)
    return call(randn(batch, frames, 4), lengths)


def chunk(n: int, past: int) -> Call:
    return call(randn(1, n, 8), randn(3, 2, past, 4) if past else torch.zeros(0, 0, 0, 0))


def ids(n: int) -> torch.Tensor:
    return torch.randint(0, 50, (2, n), generator=torch.Generator().manual_seed(n))


def labelled(n: int) -> Call:
    own = ids(n)
    return call(own, own)


@pytest.mark.integration
@pytest.mark.parametrize("to", ["torch", "onnx"])
@pytest.mark.parametrize(
    ("model", "make", "recorded", "unseen", "programs"),
    [
        (Keep, lambda n, keep: call(randn(2, n), keep),
         [(8, -1), (11, -1), (15, -1), (10, 4), (14, 4), (20, 4)],
         [(40, -1), (9, -1), (30, 4), (12, 4)], 2),
        (Chunk, chunk, [(16, 0), (16, 16), (16, 32), (9, 48), (7, 57)],
         [(8, 8), (12, 30), (5, 64), (11, 0)], 2),
        (Experts, lambda n: call(randn(n, 8)), [(30,), (47,), (63,)], [(32,), (90,), (1,)], 1),
        (Loss, labelled, [(7,), (9,), (12,)], [(8,), (15,)], 1),
        (Padded, padded, [(2, 12), (1, 20), (3, 9)], [(4, 15), (2, 31), (1, 6)], 1),
    ],
    ids=["negative int", "nothing yet", "every expert", "labels", "padding mask"],
)  # fmt: skip
def test_unseen_calls_are_served(
    tmp_path: Path, to: Any, model: Callable[[], torch.nn.Module], make: Callable[..., Call],
    recorded: list[Any], unseen: list[Any], programs: int,
) -> None:  # fmt: skip
    module = model().eval()
    calls, others = ([make(*one) for one in some] for some in (recorded, unseen))
    options = {} if to == "torch" else {"to": to}
    found = made(tmp_path, module, calls, others, **options)
    assert len(found) == programs
    if model is Loss:
        torch.testing.assert_close(found(ids(6), ids(6) + 1), module(ids(6), ids(6) + 1))
