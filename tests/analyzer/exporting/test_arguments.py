"""Every kind of argument goes into a program, and every kind of result comes out of it."""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from calltape_analyzer import NoVariant, export
from calltape_analyzer.errors import ExportError
from calltape_analyzer.programs.rejections import OtherCall
from calltape_analyzer.pytree.placeholder import Placeholder
from tests.analyzer.exported import Call, call, made, taped


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


@pytest.mark.parametrize("name", ARGUMENTS)
def test_argument_goes_into_a_program(name: str, tmp_path: Path) -> None:
    cls, calls, unseen = ARGUMENTS[name]
    made(tmp_path, cls(), calls, unseen, classes=CLASSES)


def test_same_tensor_twice_is_a_call_like_any_other(tmp_path: Path) -> None:
    class Twice(Model):
        def forward(self, x, y):
            return self.linear(x) + 2 * y

    one, other = t(4, 3), t(6, 3)
    both = t(5, 3)
    calls = [call(one, one), call(other, other)]
    made(tmp_path, Twice(), calls, [call(both, both), call(t(5, 3), t(5, 3))])


def test_same_tensor_twice_is_a_call_of_its_own_if_the_model_asks(tmp_path: Path) -> None:
    class Asks(Model):
        def forward(self, x, y):
            return self.linear(x) + (2 if x is y else 1) * y

    one, other = t(4, 3), t(6, 3)
    both = t(5, 3)
    calls = [call(one, one), call(other, other)]
    programs = made(tmp_path, Asks(), calls, [call(both, both)])
    with pytest.raises(NoVariant, match="y is not x"):
        programs(t(5, 3), t(5, 3))


def test_more_arguments_than_any_recorded_call_has_are_refused(tmp_path: Path) -> None:
    model = Args()
    programs = export(taped(tmp_path, model, [call(t(2, 3), t(3)), call(t(5, 3), t(3))]), model)
    with pytest.raises(NoVariant) as refused:
        programs(t(2, 3), t(3), t(3))
    assert refused.value.reasons == {"main": OtherCall("*more has 2 arguments, not 1")}
    assert "record calls like this one" in str(refused.value.advice)


def test_list_longer_than_any_recorded_is_refused(tmp_path: Path) -> None:
    programs = made(tmp_path, List(), [call([t(4, 3), t(2, 3)]), call([t(5, 3), t(7, 3)])])
    with pytest.raises(NoVariant):
        programs([t(4, 3), t(2, 3), t(2, 3)])


@pytest.mark.integration
@pytest.mark.parametrize(
    "given", [call(t(5, 3), True), call(t(5, 3), mode="max"), call(t(5, 3), scale=2.0)]
)
def test_constant_of_another_value_is_refused(given: Call, tmp_path: Path) -> None:
    programs = made(tmp_path, Constants(), [call(t(4, 3)), call(t(6, 3))])
    with pytest.raises(NoVariant):
        programs(*given[0], **given[1])


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


RESULTS = ("dict", "keys", "dataclass", "dataclass of None", "tuple", "sizes", "size", "named tuple",  # noqa: E501
           "list", "input", "input and more", "constant", "enum", "view", "int")  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("kind", RESULTS)
def test_result_comes_out_of_a_program(kind: str, tmp_path: Path) -> None:
    calls = [call(t(n, 3)) for n in (4, 6)]
    made(tmp_path, Returns(kind), calls, [call(t(5, 3)), call(t(9, 3))], classes=CLASSES)


def test_no_program_is_chosen_on_nothing(tmp_path: Path) -> None:
    tape = taped(tmp_path, Returns("none"), [call(t(n, 3)) for n in (4, 6)])
    with pytest.raises(ExportError, match="nothing was compared: the outputs hold no tensor"):
        export(tape, Returns("none"))


def test_cache_that_is_written_to_comes_out(tmp_path: Path) -> None:
    calls = [call(t(n, 3), ToyCache([t(n + 2, 3)])) for n in (4, 6)]
    unseen = [call(t(5, 3), ToyCache([t(9, 3)]))]
    made(tmp_path, Returns("cache"), calls, unseen, classes=CLASSES)


def test_result_of_an_unknown_class_is_a_placeholder_with_its_values(tmp_path: Path) -> None:
    programs = made(tmp_path, Returns("named tuple"), [call(t(n, 3)) for n in (4, 6)])
    directory = tmp_path / "saved"
    programs.save(directory)
    from calltape_analyzer import load_programs

    got = load_programs(directory, trusted=True)(t(5, 3))
    assert isinstance(got, Placeholder)
    assert load_programs(directory, classes=CLASSES, trusted=True)(t(5, 3)).y.shape == (5, 3)


def test_parameters_and_buffers_keep_the_names_of_the_state_dict(tmp_path: Path) -> None:
    class Deep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
            self.scale = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("shift", torch.ones(3))

        def forward(self, x):
            return self.body(x) * self.scale + self.shift

    module = Deep().eval()
    programs = made(tmp_path, module, [call(t(n, 3)) for n in (4, 6)], [call(t(5, 3))])
    (program,) = programs.values()
    assert program.exported.state_dict.keys() == module.state_dict().keys()
    signature = program.exported.graph_signature
    assert set(signature.parameters) == {name for name, _ in module.named_parameters()}
    assert set(signature.buffers) <= {name for name, _ in module.named_buffers()}
