"""Calls with secrets, drawn by hypothesis, and a model that takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from calltape_recorder import record

__all__ = ["CALLS", "Model", "arguments_of", "written"]

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]
"""``args`` and ``kwargs`` of each."""

SECRETS = st.text(st.characters(codec="utf-8"), min_size=5, max_size=30).map("§".__add__)
IDS = st.lists(st.integers(1000, 50_000), min_size=3, max_size=12, unique=True)
MORE: st.SearchStrategy[Any] = st.one_of(
    SECRETS, st.integers(), st.floats(), st.booleans(), st.none(), IDS,
    st.binary(max_size=20).map(b"\xf3\x9asecret".__add__),
    st.dictionaries(SECRETS, st.integers(1, 9), max_size=2),
)  # fmt: skip
CALLS = st.lists(
    st.tuples(IDS, SECRETS, st.sampled_from(["mean", "sum"]), MORE), min_size=1, max_size=6
)


class Model(torch.nn.Module):
    def forward(
        self, ids: Any, mask: Any = None, prompt: str = "", mode: str = "mean", *rest: Any,
        **more: Any,
    ) -> Any:  # fmt: skip
        if prompt.startswith("raise"):
            raise ValueError(f"cannot read {prompt!r}")
        return {"logits": ids.float() * 2, "echo": prompt, "ids": ids + 1}


def arguments_of(drawn: Any) -> Calls:
    """The arguments of calls that were drawn. Every fifth one raises."""
    calls: Calls = []
    for number, (ids, prompt, mode, more) in enumerate(drawn):
        tensor = torch.tensor([ids])
        prompt = f"raise {prompt}" if number % 5 == 4 else prompt
        calls.append(((tensor, torch.ones_like(tensor), prompt), {"mode": mode, "more": more}))
    return calls


def written(path: Path, calls: Calls, **options: Any) -> Path:
    """A tape of these calls."""
    model = Model()
    with record(model, path, overwrite=True, **options):
        for args, kwargs in calls:
            try:
                model(*args, **kwargs)
            except ValueError:
                continue
    return path
