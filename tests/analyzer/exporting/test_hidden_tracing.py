"""Models that do something else while they are traced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensor

from calltape_analyzer.errors import NoVariant
from calltape_analyzer.exporting.torch_fixes.hidden_tracing import hidden_tracing
from tests.analyzer.exported import assert_as_module, call, made
from tests.analyzer.exporting.models import Model, t


class Masking(Model):
    """Attends to everything if nothing is masked, and only to what was before in a trace."""

    def forward(self, x, mask):
        if not self.is_traced(x) and mask.all():
            return x * x.shape[0]
        return x.cumsum(0) * mask

    def is_traced(self, x):
        return torch.compiler.is_exporting()


class LookingAtTensors(Masking):
    def is_traced(self, x):
        return isinstance(x, FakeTensor)


@pytest.mark.integration
@pytest.mark.parametrize("model", [Masking(), LookingAtTensors()], ids=lambda m: type(m).__name__)
def test_a_model_that_is_not_told_of_the_trace(tmp_path: Path, model: Model) -> None:
    calls = [call(t(n), torch.ones(n, dtype=torch.bool)) for n in (4, 6, 9)]
    programs = made(tmp_path, model, calls)
    assert len(programs) == 1
    assert_as_module(programs, model, [call(t(7), torch.ones(7, dtype=torch.bool))])
    with pytest.raises(NoVariant, match="is for calls in which"):  # and no wrong value
        programs(t(5), torch.tensor([True, True, False, True, True]))


def test_torch_itself_knows_of_the_trace() -> None:
    asked = torch.compiler.is_exporting
    with hidden_tracing(True):
        assert not torch.compiler.is_exporting()
    with hidden_tracing(False):
        assert torch.compiler.is_exporting is asked
    assert torch.compiler.is_exporting is asked
