"""What is no tape, no model and no argument is refused with words that say what to pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    Tape,
    TapeError,
    UsageError,
    check,
    diff,
    export,
    open_tape,
    replay,
    script,
    targets,
)
from calltape_recorder import record


class Masked(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x + 1


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    model = Masked()
    with record(model, tmp_path / "t.tape"):
        model(torch.ones(2, 3))
        model(torch.ones(4, 3))
    return open_tape(tmp_path / "t.tape")


TAKE_A_TAPE: dict[str, Callable[[Any], Any]] = {
    "check": lambda tape: check(tape, "model.onnx"),
    "diff": lambda tape: diff(tape, tape),
    "export": lambda tape: export(tape, Masked()),
    "replay": lambda tape: replay(tape, Masked()),
    "script": script,
}


@pytest.mark.parametrize("name", sorted(TAKE_A_TAPE))
def test_a_variant_or_a_path_is_no_tape(name: str, tape: Tape) -> None:
    take = TAKE_A_TAPE[name]
    with pytest.raises(UsageError, match=rf"{name} takes a tape, not Variant. Pass tape.only\("):
        take(tape.variants()[0])
    with pytest.raises(UsageError, match=r"not a path. Pass open_tape\('a.tape'\)"):
        take("a.tape")
    with pytest.raises(UsageError, match=r"not NoneType. Pass what open_tape\(path\) gives"):
        take(None)


def test_a_target_takes_a_tape_or_a_variant() -> None:
    with pytest.raises(UsageError, match="a target takes a tape, not a path"):
        targets.optimization_profile("a.tape")  # type: ignore[arg-type]  # pyright: ignore


@pytest.mark.parametrize("path", [3, None, b"a.tape", ["a.tape", 3]])
def test_what_is_no_path_is_rejected(path: Any) -> None:
    with pytest.raises(UsageError, match="a path is text, not"):
        open_tape(path)


def test_what_is_no_model_is_rejected(tape: Tape) -> None:
    with pytest.raises(UsageError, match=r"NoneType is neither a torch.nn.Module nor a function"):
        export(tape, None)  # type: ignore[arg-type]  # pyright: ignore


def test_a_batch_of_what_is_no_argument_is_rejected(tape: Tape) -> None:
    for source in (tape, tape.variants()[0]):
        with pytest.raises(
            UsageError, match=r"'xx', which is not an argument. Name one of mask, x"
        ):
            source.infer_dynamic_shapes({"xx"})
        # An argument that no call passed is one all the same.
        assert source.infer_dynamic_shapes({"x", "mask", 0})
    with pytest.raises(TapeError):
        tape.infer_dynamic_shapes({"xx", 0})
