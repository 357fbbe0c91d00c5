"""Models for exports, and what they are called with."""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensor

from calltape_analyzer import NoVariant, Programs
from tests.analyzer.exported import (
    Call,
    assert_same,
    call,
)


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 5, shape).to(dtype)
    return torch.randn(shape, dtype=dtype)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)


@dataclass
class Batch:
    x: torch.Tensor
    weight: torch.Tensor | None = None
    scale: float = 1.0
    steps: int = 1


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Kind(enum.Enum):
    SUM = "sum"
    MAX = "max"


class ToyCache:
    """One tensor per layer, as transformers' caches have."""

    def __init__(self, keys: list[torch.Tensor]) -> None:
        self.keys = keys
        self.note = "toy"


class List(Model):
    def forward(self, xs):
        return self.linear(xs[0]) + xs[1].sum(0)


class Dict(Model):
    def forward(self, batch):
        return self.linear(batch["x"]) * batch["mask"]


class Nested(Model):
    def forward(self, data):
        return self.linear(data["a"][0]) + data["a"][1]["b"][0]


class OfBatch(Model):
    def forward(self, batch):
        y = self.linear(batch.x) * batch.scale + batch.steps
        return y if batch.weight is None else y * batch.weight


class OfPoint(Model):
    def forward(self, point):
        return self.linear(point.x) - point.y


class OfCache(Model):
    def forward(self, x, cache):
        return self.linear(x) + sum(key.sum(0) for key in cache.keys)


class Args(Model):
    def forward(self, x, *more):
        return self.linear(x) + sum(more)


class OfArg(Model):
    def forward(self, *arg):
        return self.linear(arg[0]) + arg[1]


class Kwargs(Model):
    def forward(self, x, **more):
        return self.linear(x) + more["bias"] * more["weight"]


class PositionalOnly(Model):
    def forward(self, x, scale=2.0, /, *, mask=None):
        y = self.linear(x) * scale
        return y if mask is None else y * mask


class KeywordOnly(Model):
    def forward(self, *, x, mask):
        return self.linear(x) * mask


class NoneBetween(Model):
    def forward(self, x, mask=None, y=None):
        return self.linear(x) + (0 if mask is None else mask) + y


class Constants(Model):
    def forward(self, x, flag=False, mode="sum", scale=1.0):
        y = self.linear(x) * scale
        return (y.sum(0) if mode == "sum" else y.amax(0)) * (-1 if flag else 1)


class Int(Model):
    def forward(self, x, n):
        return self.linear(x) * n


class Ints(Model):
    def forward(self, x, sizes, named):
        return self.linear(x) * sizes[0] + sizes[1] * named["k"]


class OfKind(Model):
    def forward(self, x, kind):
        y = self.linear(x)
        return y.sum(0) if kind is Kind.SUM else y.amax(0)


class OfDtype(Model):
    def forward(self, x, dtype):
        return self.linear(x).to(dtype)


class Scalar(Model):
    def forward(self, x, scale):
        return self.linear(x) * scale


class Sum(Model):
    def forward(self, x):
        return x + x.sum(0)


class Gather(Model):
    def forward(self, x, index):
        return self.linear(x)[index]


ARGUMENTS: dict[str, tuple[type[Model], list[Call], list[Call]]] = {
    "a list": (
        List,
        [call([t(n, 3), t(m, 3)]) for n, m in ((4, 2), (5, 7))],
        [call([t(6, 3), t(9, 3)])],
    ),
    "a dict in any order of keys": (
        Dict,
        [call({"x": t(4, 3), "mask": t(4, 3)}), call({"mask": t(5, 3), "x": t(5, 3)})],
        [call(batch={"mask": t(7, 3), "x": t(7, 3)})],
    ),
    "nested": (
        Nested,
        [call({"a": (t(n, 3), {"b": [t(n, 3)]})}) for n in (4, 6)],
        [call({"a": (t(9, 3), {"b": [t(9, 3)]})})],
    ),
    "a dataclass": (
        OfBatch,
        [call(Batch(t(n, 3), t(n, 3), 0.5, n + 1)) for n in (4, 6)],
        [call(Batch(t(9, 3), t(9, 3), 0.5, 3))],
    ),
    "a dataclass with None": (
        OfBatch,
        [call(Batch(t(n, 3))) for n in (4, 6)],
        [call(Batch(t(5, 3)))],
    ),
    "a named tuple": (
        OfPoint,
        [call(Point(t(n, 3), t(n, 3))) for n in (4, 6)],
        [call(Point(t(5, 3), t(5, 3)))],
    ),
    "a cache": (
        OfCache,
        [call(t(n, 3), ToyCache([t(n + 2, 3), t(n + 2, 3)])) for n in (4, 6)],
        [call(t(5, 3), ToyCache([t(8, 3), t(8, 3)]))],
    ),
    "members of *args": (
        Args,
        [call(t(n, 3), t(n, 3), t(n, 3)) for n in (4, 6)],
        [call(t(5, 3), t(5, 3), t(5, 3))],
    ),
    "members of *arg, whose names are those of unknown positions": (
        OfArg,
        [call(t(n, 3), t(n, 3)) for n in (4, 6)],
        [call(t(5, 3), t(5, 3))],
    ),
    "members of **kwargs": (
        Kwargs,
        [call(t(n, 3), bias=t(3), weight=t(n, 3)) for n in (4, 6)],
        [call(t(5, 3), weight=t(5, 3), bias=t(3))],
    ),
    "positional-only": (
        PositionalOnly,
        [call(t(4, 3), 3.0), call(t(6, 3), 3.0)],
        [call(t(5, 3), 3.0)],
    ),
    "positional-only with its default and a keyword": (
        PositionalOnly,
        [call(t(n, 3), mask=t(n, 3)) for n in (4, 6)],
        [call(t(5, 3), 2.0, mask=t(5, 3))],
    ),
    "keyword-only": (
        KeywordOnly,
        [call(x=t(n, 3), mask=t(n, 3)) for n in (4, 6)],
        [call(mask=t(5, 3), x=t(5, 3))],
    ),
    "None in the middle": (
        NoneBetween,
        [
            call(t(4, 3), None, t(4, 3)),
            call(t(6, 3), y=t(6, 3)),
            call(t(5, 3), t(5, 3), t(5, 3)),
            call(t(3, 3), t(3, 3), t(3, 3)),
        ],
        [call(t(7, 3), None, t(7, 3)), call(t(8, 3), y=t(8, 3), mask=t(8, 3))],
    ),
    "bool, str and float": (
        Constants,
        [
            call(t(n, 3), flag, mode, scale)
            for n in (4, 6)
            for flag, mode, scale in ((True, "sum", 1.0), (False, "max", 0.5))
        ],
        [call(t(5, 3), mode="sum", flag=True), call(t(7, 3), False, "max", 0.5)],
    ),
    "an int": (Int, [call(t(4, 3), 2), call(t(6, 3), 5)], [call(t(5, 3), 7), call(t(5, 3), n=9)]),
    "ints in a list and a dict": (
        Ints,
        [call(t(4, 3), [2, 3], {"k": 4}), call(t(6, 3), [5, 7], {"k": 9})],
        [call(t(5, 3), [3, 11], {"k": 2})],
    ),
    "an enum": (
        OfKind,
        [call(t(n, 3), kind) for n in (4, 6) for kind in Kind],
        [call(t(5, 3), Kind.MAX)],
    ),
    "a dtype": (
        OfDtype,
        [call(t(n, 3), d) for n in (4, 6) for d in (torch.float16, torch.float64)],
        [call(t(5, 3), torch.float64)],
    ),
    "a tensor without dimensions": (
        Scalar,
        [call(t(n, 3), t()) for n in (4, 6)],
        [call(t(5, 3), t())],
    ),
    "complex": (
        Sum,
        [call(t(n, 3, dtype=torch.complex64)) for n in (4, 6)],
        [call(t(5, 3, dtype=torch.complex64))],
    ),
    "bfloat16": (
        Sum,
        [call(t(n, 3, dtype=torch.bfloat16)) for n in (4, 6)],
        [call(t(5, 3, dtype=torch.bfloat16))],
    ),
    "int64 indices": (
        Gather,
        [call(t(n, 3), torch.tensor([0, n - 1])) for n in (4, 6)],
        [call(t(9, 3), torch.tensor([8, 2]))],
    ),
    "an ordered dict": (
        Dict,
        [call(OrderedDict(x=t(n, 3), mask=t(n, 3))) for n in (4, 6)],
        [call(OrderedDict(x=t(5, 3), mask=t(5, 3)))],
    ),
}


CLASSES = [Batch, Point, Kind, ToyCache]


class Returns(Model):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x, cache=None):
        y = self.linear(x)
        results: dict[str, Any] = {
            "dict": {"y": y, "more": {"x": x + 1}},
            "keys": {0: y, "b": [x * 2]},
            "dataclass": Batch(y, y * 2, 0.25, 3),
            "dataclass of None": Batch(y),
            "tuple": (y, None, 3, True, "text", 0.5, [x * 2]),
            "sizes": (y, x.shape[0], x.shape[0] * 2 + 1),
            "size": y.shape,
            "named tuple": Point(y, x + 1),
            "list": [y, [y + 1], ()],
            "input": x,
            "input and more": {"x": x, "y": y, "again": y},
            "none": None,
            "constant": (torch.ones(2), y),
            "enum": (Kind.SUM, y, torch.float16),
            "view": (x.t(), y[:, 1:]),
            "int": x.shape[0] + 1,
        }
        if self.kind == "cache":
            cache.keys[0] = torch.cat([cache.keys[0], y])
            return y, cache
        return results[self.kind]


# What a model notes of itself is put back after each call.
SEEN: dict[int, list[tuple[int, tuple[int, ...]]]] = {}


class Spy(torch.nn.Module):
    """Notes the elements and ints of all calls that compute, not of those that are traced."""

    @property
    def seen(self) -> list[tuple[int, tuple[int, ...]]]:
        return SEEN.setdefault(id(self), [])

    def note(self, *tensors: torch.Tensor, ints: tuple[int, ...] = ()) -> None:
        if not any(isinstance(t, FakeTensor) or torch.compiler.is_exporting() for t in tensors):
            self.seen.append((sum(t.numel() for t in tensors), ints))

    @property
    def largest(self) -> int:
        return max(elements for elements, _ in self.seen)


class Cached(Spy):
    def forward(self, x: Any, mask: Any, past: Any = None) -> Any:
        keys = x[..., None].expand(-1, -1, 16)
        self.note(x, mask, *(() if past is None else (past,)))
        keys = keys if past is None else torch.cat([past, keys], 1)
        return keys * mask[..., None], keys


def of(size: int, *more: int) -> torch.Tensor:
    return torch.rand(size, *more)


CACHED = [
    call(of(2, 6), torch.ones(2, 6)), call(of(3, 4), torch.ones(3, 4)),
    call(of(2, 1), torch.ones(2, 7), of(2, 6, 16)), call(of(3, 1), torch.ones(3, 5), of(3, 4, 16)),
]  # fmt: skip


def never_wrong(programs: Programs, module: torch.nn.Module, calls: list[Call]) -> int:
    """How many calls are served; each of them as the module would."""
    served = 0
    for args, kwargs in calls:
        try:
            got = programs(*args, **kwargs)
        except NoVariant:
            continue
        assert_same(module(*args, **kwargs), got)
        served += 1
    return served


class Branching(Model):
    def forward(self, x):
        return self.linear(x) if x.shape[0] <= 4 else self.linear(x).cumsum(0)


class Untraced(Model):
    """The size is read behind the tracer's back."""

    def forward(self, x):
        hint = x.shape[0]
        hint = hint.node.hint if isinstance(hint, torch.SymInt) else hint
        return self.linear(x) * hint


class Grid(Model):
    def forward(self, x, grid):
        y = self.linear(x)
        for times in grid.tolist():
            for _ in range(times):
                y = torch.tanh(y) + times
        return y
