"""Functions: recorded by their name or as they are, exported like modules."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from calltape_analyzer import export, open_tape, replay
from calltape_analyzer.errors import UsageError
from calltape_recorder import record

NAME = "kernels_of_the_function_tests"


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, scale: float = 1.0) -> Any:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1) * scale


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(NAME)
    vars(module)["rotary"] = rotary
    monkeypatch.setattr(rotary, "__module__", NAME)
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


def given(size: int) -> tuple[torch.Tensor, ...]:
    return torch.rand(size, 8), torch.rand(size, 4), torch.rand(size, 4)


@pytest.mark.integration
@pytest.mark.parametrize("as_name", [True, False])
def test_a_function_is_recorded_exported_and_replayed(
    tmp_path: Path, kernels: Any, as_name: bool
) -> None:
    with record(f"{NAME}:rotary" if as_name else rotary, tmp_path / "a.tape") as recorder:
        for size in (3, 5, 8):
            kernels.rotary(*given(size))
    assert recorder.stats().kept == 3
    assert kernels.rotary is rotary
    with open_tape(tmp_path / "a.tape") as tape:
        programs = export(tape, rotary)
        assert len(programs) == 1
        assert programs.verify().ok
        assert replay(tape, rotary).ok
        x = given(11)
        assert torch.equal(programs(*x), rotary(*x))


def test_a_bound_method_is_exported(tmp_path: Path) -> None:
    class Kernel:
        def double(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    kernel = Kernel()
    with record(kernel.double, tmp_path / "a.tape"):
        for size in (3, 5):
            kernel.double(torch.rand(size))
    with open_tape(tmp_path / "a.tape") as tape:
        assert export(tape, kernel.double).verify().ok


def test_what_is_no_function_cannot_be_exported(tmp_path: Path, kernels: Any) -> None:
    with record(rotary, tmp_path / "a.tape"):
        kernels.rotary(*given(3))
    with open_tape(tmp_path / "a.tape") as tape, pytest.raises(UsageError, match="nor a function"):
        export(tape, 3)  # type: ignore[arg-type]
