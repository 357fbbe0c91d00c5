"""Tapes that have a part of the calls, and counters of all: texts that come back in the calls that
were not kept divide variants too."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InferenceError, merge_tapes, open_tape, redact
from calltape_recorder import FlightRecorder, Rate, When, record

MODES = ("sum", "mean", "median", "least", "greatest")


class Model(torch.nn.Module):
    def forward(self, ids: Any, mode: str = "mean", **more: Any) -> Any:
        if len(ids) == 3:
            raise ValueError(f"cannot take {ids.tolist()}")
        return ids + 1


def test_ranges_are_those_of_all_calls(tmp_path: Path) -> None:
    source, model = tmp_path / "a.tape", Model()
    drawn = random.Random(5)
    with record(model, source, keep=Rate(0.1, seed=1), flight_recorder=FlightRecorder(calls=5)):
        for i in range(40):
            ids = torch.randint(1000, 50_000, (drawn.randint(2, 9), 900))
            with contextlib.suppress(ValueError):
                model(ids, mode=MODES[i % 5], **{f"user {i % 2}": f"text {i}"})
    with open_tape(source) as tape:
        ranges = [tensor.range for v in tape.variants() for tensor in v.findings.tensors]
        notes = "\n".join(redact(tape, tmp_path / "b.tape").notes)
    of_all = min(low for low, _ in ranges), max(high for _, high in ranges)
    with open_tape(tmp_path / "b.tape") as tape:
        made = [tensor.range for v in tape.variants() for tensor in v.findings.tensors]
    assert made == [of_all] * len(ranges)
    # The names in notes are those that options take.
    assert "the texts at mode were replaced" in notes
    with open_tape(source) as tape:
        report = redact(tape, tmp_path / "c.tape", keep=["mode", "user 0", "user 1"])
    assert "no value has a path like" not in "\n".join(report.notes)
    assert "were replaced" not in "\n".join(report.notes)


class Pass(torch.nn.Module):
    def forward(self, x: Any, more: Any) -> Any:
        return x


def test_a_later_file_has_an_earlier_call(tmp_path: Path) -> None:
    """Which of two calls is named first does not depend on the files that they are in."""
    model, keep = Pass(), When(lambda args, kwargs: "a" in args[1])
    held = FlightRecorder(calls=5)
    with record(model, f"{tmp_path}/a/", keep=keep, flight_recorder=held) as recorder:
        for size, name in ((3, "b"), (4, "a")):
            model(torch.ones(size), {name: torch.ones(2)})
        recorder.seal()
        recorder.dump("asked")
    with open_tape(tmp_path / "a") as tape:
        assert [call.number for call in tape] == [1, 0]
        merge_tapes(tape, tmp_path / "b.tape")
        redact(tape, tmp_path / "c.tape")
    for path in ("a", "b.tape", "c.tape"):
        with (
            open_tape(tmp_path / path) as tape,
            pytest.raises(InferenceError, match=r"in call 1, more has no key"),
        ):
            _ = tape.single.findings
