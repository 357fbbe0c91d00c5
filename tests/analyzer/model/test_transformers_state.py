"""State that models of transformers keep in attributes, and marks that they set beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportError, export
from calltape_analyzer.model.state import unchanged
from tests.analyzer.exported import taped
from tests.analyzer.exporting.models import t
from tests.analyzer.model.counting import CALLS


def _unseen(*_: Any) -> None:
    """A hook."""


class Remembering(torch.nn.Module):
    """Keeps its state in attributes that are None at first, as some models of transformers do."""

    def __init__(self, installs: bool) -> None:
        super().__init__()
        self.before: Any = None
        self.installed = False
        self.installs = installs
        self.part = torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        if self.installs and not self.installed:
            self.installed = True
            self.part.register_forward_hook(_unseen)
        last = torch.zeros_like(x[:1]) if self.before is None else self.before
        self.before = last + x.sum(0, keepdim=True)
        return x + last


@pytest.mark.parametrize("installs", [False, True])
def test_state_of_a_model_of_transformers_is_put_back(
    installs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Remembering, "__module__", "transformers.models.remembering")
    model = Remembering(installs)
    with unchanged(model) as changed:
        model(t(2, 3))
    if installs:  # one may be of no use without the other
        assert model.installed
        assert model.before is not None
        assert not changed
    else:
        assert model.before is None
        assert set(changed) == {"before"}


def test_a_mark_beside_a_tensor_of_transformers_is_put_back_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Remembering, "__module__", "transformers.models.remembering")
    model = Remembering(False)

    def forward(x: Any) -> Any:
        model.installed, model.before = True, x
        return x

    model.forward = forward  # type: ignore[method-assign]
    with unchanged(model) as changed:
        model(t(2, 3))
    assert (model.installed, model.before) == (False, None)
    assert set(changed) == {"installed", "before"}


class Lazy(torch.nn.Module):
    """Fills a table when it is first called, and notes that."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        self.table: list[float] = []

    def forward(self, x: Any) -> Any:
        if not self.ready:
            self.ready = True
            self.table.append(1.0)
        return x + sum(self.table)


def test_a_mark_beside_a_container_of_transformers_stays_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lazy, "__module__", "transformers.models.lazy")
    model = Lazy()
    for _ in range(3):
        with unchanged(model):
            model(t(2, 3))
    assert (model.ready, model.table) in ((True, [1.0]), (False, []))


def test_a_tensor_that_a_model_of_transformers_makes_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Remembering, "__module__", "transformers.models.remembering")
    model = Remembering(False)
    del model.before, model.installed

    def forward(x: Any) -> Any:
        model.made = x + getattr(model, "made", 0)
        return model.made

    model.forward = forward  # type: ignore[method-assign]
    with unchanged(model) as changed:
        model(t(2, 3))
    assert "made" not in vars(model)
    assert set(changed) == {"made"}


def test_a_model_of_transformers_whose_state_no_program_keeps_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Remembering, "__module__", "transformers.models.remembering")
    model = Remembering(False)
    tape = taped(tmp_path, model, CALLS)
    model.before = None
    with pytest.raises(ExportError, match=r"left in it \(before\)"):
        export(tape, model)


class Shrinking(torch.nn.Module):
    """Makes its windows smaller for a small picture, and leaves them so, as Swin does."""

    window = 4

    def forward(self, x: Any) -> Any:
        self.window = min(self.window, x.shape[0])
        return x.unflatten(0, (-1, self.window)).sum(1)


def test_a_number_of_a_model_of_transformers_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shrinking, "__module__", "transformers.models.shrinking")
    model = Shrinking()
    model.window = 4
    with unchanged(model) as changed:
        model(t(2, 3))
    assert model.window == 4
    assert changed == {"window": 4}
