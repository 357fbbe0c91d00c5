"""The context of a call stays with it on every tape that is made of its tape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, filter_tape, merge_tapes, open_tape, redact
from calltape_analyzer.minimising.changed_calls import ChangedCall
from calltape_recorder import record
from calltape_schema.tree import Autocast, CallContext

WANTED = [None, CallContext(autocast=(Autocast(device="cpu", dtype="bfloat16"),), grad=False)]


class Model(torch.nn.Module):
    def forward(self, x, mode="plain"):
        return x + 1


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    model = Model().eval()
    with record(model, tmp_path / "calls.tape"):
        model(torch.ones(2, 3))
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            model(torch.ones(4, 3), mode="a text of somebody")
    return open_tape(tmp_path / "calls.tape")


def contexts(tape: Tape) -> list[Any]:
    return [call.record.inputs.spec().context for call in tape.calls]


@pytest.mark.parametrize(
    "write",
    [
        filter_tape,
        lambda tape, path: filter_tape(tape, path, drop="mode"),
        merge_tapes,
        redact,
    ],
    ids=["filter", "filter --drop", "merge", "redact"],
)
def test_a_new_tape_has_it(tape: Tape, tmp_path: Path, write: Callable[..., Any]) -> None:
    assert contexts(tape) == WANTED
    write(tape, tmp_path / "new.tape")
    with open_tape(tmp_path / "new.tape") as made:
        assert contexts(made) == WANTED
        names = [variant.name for variant in made.variants()]
        assert names == ["no autocast", "autocast cpu bfloat16"]


def test_a_call_that_was_made_small_has_it(tape: Tape) -> None:
    changed = ChangedCall(tape.calls[1])
    changed.set_tensor(0, torch.zeros(1, 3))
    assert changed.built().record.inputs.spec().context == WANTED[1]


def test_traffic_counters_lose_no_call(tmp_path: Path) -> None:
    # They cannot tell these calls apart, because they do not say where arguments are.
    model = Model().eval()
    with record(model, tmp_path / "calls.tape"):
        for size in (2, 3):
            model(torch.ones(size, 3))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                model(torch.ones(size, 3))
    tape = open_tape(tmp_path / "calls.tape")
    assert [(len(v), v.findings.all_calls) for v in tape.variants()] == [(2, None), (2, None)]
    assert sum(group.calls for group in tape.counters.groups.values()) == 4
