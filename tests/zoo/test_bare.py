"""The bare exporter tells where ours is at fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from calltape_analyzer import open_tape
from calltape_recorder import record
from tests.zoo.bare import Bare
from tests.zoo.case import Arguments, simple
from tests.zoo.judging import judge

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.integration


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def _arguments(rows: int) -> Arguments:
    return (torch.randn(rows, 3),), {}


CASE = simple("doubled", Doubled, _arguments, seen=[(2,), (4,)], unseen=[(5,)])


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    module = CASE.make()
    with record(module, tmp_path / "doubled.tape"):
        CASE.drive(module)
    return tmp_path / "doubled.tape"


def test_a_bare_export_is_right_where_it_gives_what_the_model_gives(tape: Path) -> None:
    x = torch.randn(7, 3)
    with open_tape(tape) as opened:
        bare = Bare(CASE, opened)
        assert bare.is_right(((x,), {}), x * 2)
        assert not bare.is_right(((x,), {}), x * 3)


def test_a_call_that_ours_lacks_is_counted(tape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(CASE, tape, "onnx").bare_right == 0
    from calltape_analyzer import Programs

    def refusing(self: Programs, *args: object, **kwargs: object) -> object:
        raise RuntimeError("refused")

    monkeypatch.setattr(Programs, "__call__", refusing)
    assert judge(CASE, tape, "onnx").bare_right == 3
    assert judge(CASE, tape, "torch").bare_right == 0
