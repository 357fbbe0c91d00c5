"""What a model asks of its arguments is seen in a run, however it asks; who asks for nothing is not
asked any further."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportOptions, export, open_tape
from calltape_analyzer.exporting.session import session as sessions
from calltape_analyzer.exporting.session.observed_calls import (
    LAYOUT,
    MODES,
    QueryWatcher,
    hides_queries,
)
from calltape_recorder import record
from tests.analyzer.exported import assert_as_module, call, taped

X = torch.ones(2, 3)
ASKING: dict[str, tuple[Callable[[Any], Any], frozenset[str]]] = {
    "stride": (lambda x: x.stride(), LAYOUT),
    "is_contiguous": (lambda x: x.is_contiguous(), LAYOUT),
    "as_strided": (lambda x: torch.as_strided(x, (2,), (1,)), LAYOUT),
    "data_ptr": (lambda x: x.data_ptr(), LAYOUT),
    "numpy": (lambda x: x.numpy(), LAYOUT),
    "in place": (lambda x: x.reshape(-1).add_(1), LAYOUT),
    "in place within torch": (lambda x: torch.relu_(x.reshape(-1)), LAYOUT),
    "in place by a module": (lambda x: torch.nn.SiLU(inplace=True)(x.reshape(-1)), LAYOUT),
    "an item": (lambda x: x.reshape(3, 2).__setitem__(0, 1), LAYOUT),
    "requires_grad": (lambda x: x.requires_grad, MODES),
    "is_grad_enabled": (lambda _: torch.is_grad_enabled(), MODES),
}


@pytest.mark.parametrize("name", ASKING)
def test_each_question_is_seen(name: str) -> None:
    ask, names = ASKING[name]
    layer = torch.nn.Linear(3, 3)
    watcher = QueryWatcher(layer)
    with watcher:
        ask(X.clone())
    assert watcher.queries & names


def test_a_layer_asks_nothing_and_its_own_tensors_do_not_count() -> None:
    layer = torch.nn.Linear(3, 3)
    watcher = QueryWatcher(layer)
    with watcher:
        layer(X)
        layer.weight.stride()
    assert watcher.queries == frozenset()
    assert not hides_queries(layer)
    assert hides_queries(torch.jit.script(layer))


def test_what_is_put_back() -> None:
    before = torch.is_grad_enabled, torch.is_inference_mode_enabled
    with pytest.raises(ValueError, match="of the model"), QueryWatcher(torch.nn.Linear(3, 3)):
        raise ValueError("of the model")
    assert (torch.is_grad_enabled, torch.is_inference_mode_enabled) == before


def test_a_model_that_asks_for_nothing_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    called = sessions.called
    monkeypatch.setattr(sessions, "called", lambda *a, **k: ran.append(1) or called(*a, **k))
    model = torch.nn.Linear(3, 3)
    export(
        taped(tmp_path, model, [call(torch.rand(n, 3)) for n in (2, 4)]),
        model,
        options=ExportOptions(probe="none"),
    )
    assert len(ran) <= 8


class WritesWithinTorch(torch.nn.Module):
    """Whether ``x`` is written to depends on how it lies in memory."""

    def forward(self, x: Any) -> Any:
        torch.nn.functional.silu(x.reshape(-1), inplace=True)
        return x * 2


@pytest.mark.integration
def test_a_layout_that_decides_what_is_written_is_told_apart(tmp_path: Path) -> None:
    model, rows = WritesWithinTorch(), (3, 5)
    with record(model, tmp_path / "a.tape"), torch.no_grad():
        for n in rows:
            model(torch.rand(n, 4))
            model(torch.rand(4, n).t())
    with open_tape(tmp_path / "a.tape") as tape:
        programs = export(tape, model)
    assert len(programs.verdicts) == 2
    assert_as_module(programs, model, [call(torch.rand(7, 4)), call(torch.rand(4, 7).t())])
