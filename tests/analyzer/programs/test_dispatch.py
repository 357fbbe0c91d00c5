"""What is said of a call that no program takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.dispatch import no_variant
from tests.analyzer.tapes import target_of, write_tape


def exported(x: Any, mode: str = "") -> None: ...


def with_others(x: Any, **others: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "passed", "advice"),
    [
        (exported, {"x": 1}, "Record calls like this one as well"),
        (exported, {"x": 1, "prompt": 2, "cache": 3}, "the exported one takes no cache and prompt"),
        (with_others, {"x": 1, "prompt": 2}, "Record calls like this one as well"),
    ],
)
def test_the_advice_is_true(
    function: Any, passed: dict[str, int], advice: str, tmp_path: Path
) -> None:
    """Calls of another model can be recorded as often as one likes."""
    call = {name: torch.ones(size) for name, size in passed.items()}
    with open_tape(write_tape(tmp_path / "a.tape", [call])) as tape:
        sorter = CallSorter(Signature.of(target_of(function)))
        placed = sorter.sorted(tape.calls[0].record.inputs)
    assert advice in str(no_variant("no program accepts these arguments", {}, placed, {}))
