"""Tapes with the table of their end."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from tests.analyzer.tapes import Recorded


class Model(torch.nn.Module):
    def forward(
        self, x: Any, mask: Any = None, cache: Any = (), *, n: int = 1, mode: str = "mean"
    ) -> Any:
        return x


@st.composite
def calls(draw: st.DrawFn) -> list[Recorded]:
    sizes = st.integers(1, 4)
    made = []
    for number in draw(st.lists(st.integers(0, 200), min_size=1, max_size=14, unique=True)):
        batch, length = draw(sizes), draw(sizes)
        kind = draw(st.sampled_from([torch.float32, torch.int64]))
        x = torch.full((batch, length), draw(st.integers(0, 9)), dtype=kind)
        kwargs: dict[str, Any] = {}
        if draw(st.booleans()):
            kwargs["mask"] = torch.ones(batch, length + draw(st.integers(0, 1)))
        if draw(st.booleans()):
            kwargs["cache"] = [torch.zeros(batch, 2, draw(sizes))]
        if draw(st.booleans()):
            kwargs["n"] = draw(st.integers(0, 3))
        if draw(st.booleans()):
            kwargs["mode"] = draw(st.sampled_from(["mean", "sum", "a prompt of a user"]))
        error = ("builtins:ValueError", "no") if draw(st.integers(0, 5)) == 0 else None
        made.append(Recorded((x,), kwargs, error=error, number=number))
    return made


def some(count: int = 3) -> list[Recorded]:
    return [Recorded((torch.zeros(2, 1 + i % 3),), {"n": i % 2}) for i in range(count)]
