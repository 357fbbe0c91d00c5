"""A default that is NaN equals itself: no NaN equals another, so each manifest was another one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import diff, merge_tapes, open_tape
from calltape_recorder import record


class Filling(torch.nn.Module):
    def forward(self, x: Any, fill: float = math.nan) -> Any:
        return x


def recorded(path: Path, calls: int) -> Path:
    model = Filling()
    with record(model, path) as recorder:
        for number in range(calls):
            model(torch.ones(number % 5 + 1))
            if number % 32 == 0:
                recorder.flush()
    return path


def test_calls_of_a_tape_with_a_summary_are_read(tmp_path: Path) -> None:
    """The file was said to have changed, because its manifest did not equal itself."""
    with open_tape(recorded(tmp_path / "a.tape", 300)) as tape:
        assert tape.segments[0].unscanned_end is not None
        assert tape.calls[260].inputs.args[0].shape == (260 % 5 + 1,)


def test_two_recordings_of_one_model_have_one_signature(tmp_path: Path) -> None:
    paths = [recorded(tmp_path / name, 3) for name in ("a.tape", "b.tape")]
    with open_tape(paths[0]) as one, open_tape(paths[1]) as other, open_tape(paths) as both:
        assert one.signature == other.signature
        assert "signature" not in str(diff(one, other))
        assert merge_tapes(both, tmp_path / "c.tape").calls == 6
