"""One small model per way in which tensors are packed into arguments and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, simple

__all__ = ["CASES", "made"]

WIDTH = 8


def made(module_class: Callable[..., nn.Module], *args: Any) -> Callable[[], nn.Module]:
    """Builds a hand-written module with the same weights each time."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return module_class(*args).eval()

    return make


class Linear(nn.Module):
    """What the small models have in common: some weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)


@dataclass
class Batch:
    """Tensors of one batch; the weights are optional."""

    x: Tensor
    lengths: Tensor
    weight: Tensor | None = None


class Points(NamedTuple):
    """A point cloud."""

    xyz: Tensor
    features: Tensor


@dataclass
class Scores:
    """What a classifier returns."""

    logits: Tensor
    best: Tensor


class KeyOrder(Linear):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.linear(batch["x"]) * batch["mask"] - batch["bias"]


class Nested(Linear):
    def forward(self, data: dict[str, Any]) -> Tensor:
        (first, second), rest = data["pairs"]
        return self.linear(first + second) * rest["gain"] + data["inner"]["deep"][0].mean()


class TensorList(Linear):
    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        total = sum(x.mean() for x in xs)
        return [self.linear(x) + total for x in xs]


class TakesBatch(Linear):
    def forward(self, batch: Batch) -> Tensor:
        steps = torch.arange(batch.x.shape[1])
        mask = (steps[None] < batch.lengths[:, None]).unsqueeze(-1)
        y = (self.linear(batch.x) * mask).sum(1)
        return y if batch.weight is None else y * batch.weight


class TakesPoints(Linear):
    def forward(self, points: Points) -> Tensor:
        near = torch.cdist(points.xyz, points.xyz).softmax(-1)
        return near @ self.linear(points.features)


class TakesModelOutput(Linear):
    def forward(self, encoded: Any, gain: Tensor) -> Tensor:
        hidden = encoded.last_hidden_state
        if encoded.pooler_output is not None:
            hidden = hidden + encoded.pooler_output[:, None]
        return self.linear(hidden) * gain


class Varargs(Linear):
    def forward(self, *xs: Tensor) -> Tensor:
        return torch.cat([self.linear(x) for x in xs], dim=0)


class Extras(Linear):
    def forward(self, x: Tensor, **features: Tensor) -> Tensor:
        y = self.linear(x)
        for name in sorted(features):
            y = y + features[name] * (2 if name.startswith("scale") else 1)
        return y


class KeywordOnly(Linear):
    def forward(self, x: Tensor, *, gain: Tensor, shift: Tensor | None = None) -> Tensor:
        y = self.linear(x) * gain
        return y if shift is None else y + shift


class PositionalOnly(Linear):
    def forward(self, x: Tensor, gain: Tensor, /, shift: Tensor | None = None) -> Tensor:
        y = self.linear(x) * gain
        return y if shift is None else y + shift


class MixedStyles(Linear):
    def forward(self, x: Tensor, gain: Tensor, shift: Tensor | None = None) -> Tensor:
        y = self.linear(x) * gain
        return y if shift is None else y + shift


class Everything(Linear):
    def forward(self, x: Tensor, *more: Tensor, gain: Tensor, **named: Tensor) -> Tensor:
        y = self.linear(x) * gain
        for other in (*more, *named.values()):
            y = y + other
        return y


class ReturnsDict(Linear):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.linear(x)
        return {"logits": y, "best": y.argmax(-1)}


class ReturnsDataclass(Linear):
    def forward(self, x: Tensor) -> Scores:
        y = self.linear(x)
        return Scores(y, y.argmax(-1))


class ReturnsNamedTuple(Linear):
    def forward(self, x: Tensor) -> Points:
        return Points(self.linear(x)[..., :3], x * 2)


class ReturnsNested(Linear):
    def forward(self, x: Tensor) -> Any:
        y = self.linear(x)
        return {"levels": [(y, y[:, :2]), (y * 2, None)], "size": y.shape[0], "name": "levels"}


class ReturnsTopK(Linear):
    def forward(self, x: Tensor) -> Any:
        return self.linear(x).topk(3, dim=-1)


def _rows(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH)


def _key_order(rows: int, turned: bool) -> Arguments:
    batch = {"x": _rows(rows), "mask": torch.rand(rows, 1), "bias": _rows(rows)}
    return ({key: batch[key] for key in (reversed(batch) if turned else batch)},), {}


def _nested(rows: int, deep: int) -> Arguments:
    pairs = [(_rows(rows), _rows(rows)), {"gain": torch.rand(rows, 1)}]
    return (), {"data": {"pairs": pairs, "inner": {"deep": (torch.randn(deep),)}}}


def _tensor_list(*sizes: int) -> Arguments:
    return ([_rows(size) for size in sizes],), {}


def _batch(rows: int, steps: int, weighted: bool) -> Arguments:
    lengths = torch.randint(1, steps + 1, (rows,))
    weight = torch.rand(rows, 1) if weighted else None
    return (Batch(_rows(rows, steps), lengths, weight),), {}


def _points(clouds: int, points: int) -> Arguments:
    return (Points(torch.randn(clouds, points, 3), _rows(clouds, points)),), {}


def _model_output(rows: int, steps: int, pooled: bool) -> Arguments:
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    encoded = BaseModelOutputWithPooling(
        last_hidden_state=_rows(rows, steps), pooler_output=_rows(rows) if pooled else None
    )
    return (encoded,), {"gain": torch.rand(steps, 1)}


def _varargs(*sizes: int) -> Arguments:
    return tuple(_rows(size) for size in sizes), {}


def _extras(rows: int, *names: str) -> Arguments:
    return (_rows(rows),), {name: _rows(rows) for name in names}


def _gained(rows: int, shifted: bool, named: str = "") -> Arguments:
    """``x`` and ``gain``, the latter by name where ``named`` says so."""
    x, gain = _rows(rows), torch.rand(rows, 1)
    kwargs = {"shift": _rows(rows)} if shifted else {}
    if named == "both":
        return (), {"x": x, "gain": gain, **kwargs}
    return ((x,), {"gain": gain, **kwargs}) if named else ((x, gain), kwargs)


def _everything(rows: int) -> Arguments:
    return (_rows(rows), _rows(rows)), {"gain": torch.rand(rows, 1), "extra": _rows(rows)}


def _one(rows: int) -> Arguments:
    return (_rows(rows),), {}


_ROWS: dict[str, Any] = {"seen": [(3,), (5,), (4,)], "unseen": [(7,), (12,)]}
_BATCHES: dict[str, Any] = {
    "seen": [(2, 5, True), (3, 6, True), (4, 3, False), (2, 8, False)],
    "unseen": [(5, 9, True), (6, 4, False)],
}

CASES: list[Case] = [
    simple(
        "dict_key_order", made(KeyOrder), _key_order,
        seen=[(3, False), (4, True), (6, False)], unseen=[(5, True), (9, False)],
    ),
    simple(
        "nested_containers", made(Nested), _nested,
        seen=[(3, 4), (5, 6), (2, 9)], unseen=[(4, 7), (8, 3)],
    ),
    simple(
        "tensor_list", made(TensorList), _tensor_list,
        seen=[(3, 4, 5), (6, 2, 3), (2, 7, 4)], unseen=[(5, 3, 8), (9, 9, 2)],
    ),
    simple(
        "tensor_list_of_any_length", made(TensorList), _tensor_list,
        seen=[(3, 4), (6, 2, 3), (5, 7), (4, 8, 2)], unseen=[(5, 3, 8), (9, 6)],
    ),
    simple("dataclass_argument", made(TakesBatch), _batch, **_BATCHES, classes=(Batch,)),
    simple(
        "namedtuple_argument", made(TakesPoints), _points, classes=(Points,),
        seen=[(2, 5), (3, 7), (4, 6)], unseen=[(5, 9), (2, 11)],
    ),
    simple("model_output_argument", made(TakesModelOutput), _model_output, **_BATCHES),
    simple(
        "varargs", made(Varargs), _varargs,
        seen=[(3, 4), (5, 2, 6), (6, 3), (2, 3, 4)], unseen=[(7, 5), (4, 8, 9)],
    ),
    simple(
        "extra_kwargs", made(Extras), _extras,
        seen=[(3, "scale", "shift"), (5, "shift", "scale"), (4, "scale", "shift")],
        unseen=[(7, "scale", "shift"), (9, "shift", "scale")],
    ),
    simple(
        "extra_kwargs_sometimes", made(Extras), _extras,
        seen=[(3, "scale", "shift"), (5, "shift"), (4, "scale", "shift"), (2, "shift"), (6,), (3,)],
        unseen=[(7, "scale", "shift"), (9, "shift"), (8,)],
    ),
    simple(
        "keyword_only", made(KeywordOnly), _gained,
        seen=[(3, False, "gain"), (4, True, "gain"), (6, False, "gain"), (5, True, "gain")],
        unseen=[(8, False, "gain"), (7, True, "gain")],
    ),
    simple(
        "positional_only", made(PositionalOnly), _gained,
        seen=[(3, False), (4, True), (6, False), (5, True)], unseen=[(8, False), (7, True)],
    ),
    simple(
        "positional_or_named", made(MixedStyles), _gained,
        seen=[(3, False), (4, False, "gain"), (6, False, "both"), (5, True, "both")],
        unseen=[(8, False), (7, False, "both")], note="one parameter, passed in three styles",
    ),
    simple("all_kinds_of_parameters", made(Everything), _everything, **_ROWS),
    simple("returns_dict", made(ReturnsDict), _one, **_ROWS),
    simple("returns_dataclass", made(ReturnsDataclass), _one, **_ROWS, classes=(Scores,)),
    simple("returns_namedtuple", made(ReturnsNamedTuple), _one, **_ROWS, classes=(Points,)),
    simple("returns_nested", made(ReturnsNested), _one, **_ROWS, note="None, an int and a str too"),
    simple("returns_topk", made(ReturnsTopK), _one, **_ROWS, note="torch.return_types.topk"),
]  # fmt: skip
