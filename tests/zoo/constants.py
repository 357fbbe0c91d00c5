"""One small model per kind of argument that is no tensor, and per optional tensor."""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, simple
from tests.zoo.containers import WIDTH, Linear, made

__all__ = ["CASES"]


class Pooling(enum.Enum):
    """How to pool."""

    MEAN = "mean"
    LAST = "last"


class Flag(Linear):
    def forward(self, x: Tensor, normalize: bool = False) -> Tensor:
        y = self.linear(x)
        return y / y.norm(dim=-1, keepdim=True) if normalize else y


class Mode(Linear):
    def forward(self, x: Tensor, mode: str) -> Tensor:
        y = self.linear(x)
        return y.mean(1) if mode == "mean" else y.amax(1)


class TakesEnum(Linear):
    def forward(self, x: Tensor, pooling: Pooling = Pooling.MEAN) -> Tensor:
        y = self.linear(x)
        return y.mean(1) if pooling is Pooling.MEAN else y[:, -1]


class TakesDtype(Linear):
    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return self.linear(x).to(dtype)


class FloatScale(Linear):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.linear(x) * scale


class Prefix(Linear):
    def forward(self, x: Tensor, n: int) -> Tensor:
        return self.linear(x[:, :n])


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, WIDTH)

    def forward(self, x: Tensor, start: int) -> Tensor:
        return x + self.embed(torch.arange(start, start + x.shape[1]))


class IntList(Linear):
    def forward(self, x: Tensor, lengths: list[int]) -> list[Tensor]:
        return [self.linear(part).mean(0) for part in x.split(lengths)]


class IntInDict(Linear):
    def forward(self, x: Tensor, options: dict[str, Any]) -> Tensor:
        return self.linear(x).sum(0)[None].expand(options["copies"], -1) * options["gain"]


class Resize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        return nn.functional.interpolate(self.conv(x), size=size, mode="bilinear")


class IntNumber(Linear):
    def forward(self, x: Tensor, step: int) -> Tensor:
        return self.linear(x) * step + 1


class OptionalTensor(Linear):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.linear(x)
        return y if mask is None else y.masked_fill(mask, 0.0)


class OptionalBoth(Linear):
    """Either of two arguments, as ids or embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)

    def forward(self, ids: Tensor | None = None, embeds: Tensor | None = None) -> Tensor:
        if (ids is None) == (embeds is None):
            raise ValueError("either ids or embeds")
        return self.linear(self.embed(ids) if embeds is None else embeds)


class Scalar(Linear):
    def forward(self, x: Tensor, temperature: Tensor) -> Tensor:
        return (self.linear(x) / temperature).softmax(-1)


class TupleOfInts(Linear):
    def forward(self, x: Tensor, window: tuple[int, int]) -> Tensor:
        begin, end = window
        return self.linear(x)[begin:end].sum(0)


def _rows(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH)


def _flag(rows: int, normalize: bool | None) -> Arguments:
    return (_rows(rows),), {} if normalize is None else {"normalize": normalize}


def _three(rows: int, steps: int, constant: Any) -> Arguments:
    return (_rows(rows, steps), constant), {}


def _two(rows: int, constant: Any) -> Arguments:
    return (_rows(rows), constant), {}


def _pooling(rows: int, steps: int, pooling: Pooling) -> Arguments:
    return (_rows(rows, steps),), {"pooling": pooling}


def _lengths(*lengths: int) -> Arguments:
    return (_rows(sum(lengths)), list(lengths)), {}


def _options(rows: int, copies: int) -> Arguments:
    return (_rows(rows),), {"options": {"copies": copies, "gain": 0.5}}


def _resize(batch: int, side: int, height: int, width: int) -> Arguments:
    return (torch.randn(batch, 3, side, side),), {"size": (height, width)}


def _optional(rows: int, masked: bool) -> Arguments:
    return (_rows(rows),), {"mask": torch.rand(rows, WIDTH) < 0.3} if masked else {}


def _either(rows: int, steps: int, embedded: bool) -> Arguments:
    if embedded:
        return (), {"ids": None, "embeds": _rows(rows, steps)}
    return (), {"ids": torch.randint(0, 50, (rows, steps)), "embeds": None}


def _scalar(rows: int, temperature: float) -> Arguments:
    return (_rows(rows), torch.tensor(temperature)), {}


_MEAN, _LAST = Pooling.MEAN, Pooling.LAST

CASES: list[Case] = [
    simple(
        "bool_flag", made(Flag), _flag,
        seen=[(3, True), (4, False), (6, True), (5, None)], unseen=[(8, True), (7, False)],
        note="False is the default, passed and not passed",
    ),
    simple(
        "str_mode", made(Mode), _three,
        seen=[(3, 4, "mean"), (4, 5, "max"), (2, 6, "mean"), (5, 3, "max")],
        unseen=[(6, 7, "mean"), (7, 2, "max")],
    ),
    simple(
        "enum_argument", made(TakesEnum), _pooling, classes=(Pooling,),
        seen=[(3, 4, _MEAN), (4, 5, _LAST), (2, 6, _MEAN), (5, 3, _LAST)],
        unseen=[(6, 7, _MEAN), (7, 2, _LAST)],
    ),
    simple(
        "dtype_argument", made(TakesDtype), _two,
        seen=[(3, torch.float64), (4, torch.bfloat16), (6, torch.float64), (5, torch.bfloat16)],
        unseen=[(8, torch.float64), (7, torch.bfloat16)],
    ),
    simple(
        "float_constant", made(FloatScale), _two,
        seen=[(3, 0.5), (4, 0.5), (6, 2.0), (5, 2.0)], unseen=[(8, 0.5), (7, 2.0)],
        note="two values, each recorded with two sizes",
    ),
    simple(
        "float_every_call", made(FloatScale), _two,
        seen=[(3, 0.5), (4, 1.25), (6, 2.0)], unseen=[(8, 1.25), (7, 2.0)],
        note="each value once: what varies with it is known from the others",
    ),
    simple(
        "int_slice", made(Prefix), _three,
        seen=[(3, 8, 4), (4, 9, 6), (2, 12, 5)], unseen=[(5, 10, 7), (6, 15, 3)],
    ),
    simple(
        "int_arange", made(Positions), _three,
        seen=[(3, 4, 0), (4, 5, 3), (2, 6, 12)], unseen=[(5, 7, 9), (6, 3, 20)],
    ),
    simple(
        "int_factor", made(IntNumber), _two,
        seen=[(3, 4), (5, 7), (4, 11)], unseen=[(6, 5), (8, 2)], note="a number, not a size",
    ),
    simple(
        "int_list", made(IntList), _lengths,
        seen=[(3, 4), (5, 2), (6, 7)], unseen=[(8, 3), (4, 9)], note="lengths of the parts",
    ),
    simple(
        "int_in_dict", made(IntInDict), _options,
        seen=[(3, 4), (5, 2), (4, 7)], unseen=[(6, 5), (8, 9)],
    ),
    simple(
        "int_pair", made(TupleOfInts), _two,
        seen=[(9, (1, 4)), (12, (2, 9)), (10, (3, 8))], unseen=[(11, (2, 7)), (16, (4, 13))],
    ),
    simple(
        "output_size", made(Resize), _resize,
        seen=[(2, 8, 12, 16), (3, 10, 20, 14), (2, 9, 11, 18)],
        unseen=[(4, 12, 15, 21), (2, 7, 24, 10)], note="interpolates to a size that is passed",
    ),
    simple(
        "optional_mask", made(OptionalTensor), _optional,
        seen=[(3, True), (4, False), (6, True), (5, False)], unseen=[(8, True), (7, False)],
    ),
    simple(
        "optional_mask_once", made(OptionalTensor), _optional,
        seen=[(3, False), (4, False), (6, True)], unseen=[(8, True), (7, False)],
        note="the mask came only once: its rows vary because x's do",
    ),
    simple(
        "either_ids_or_embeds", made(OptionalBoth), _either,
        seen=[(2, 4, True), (3, 5, False), (4, 6, True), (2, 7, False)],
        unseen=[(5, 8, True), (6, 3, False)],
    ),
    simple(
        "scalar_tensor", made(Scalar), _scalar,
        seen=[(3, 0.5), (4, 1.0), (6, 2.0)], unseen=[(8, 0.7), (5, 3.0)], note="0-d tensor",
    ),
]  # fmt: skip
