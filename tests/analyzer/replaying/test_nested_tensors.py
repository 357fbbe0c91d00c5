"""Calls with nested tensors replay: each part is compared, and what is made up fits together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, open_tape, redact, replay
from calltape_analyzer.arguments.samples import complete_inputs, recorded_sample, resized
from calltape_recorder import record
from tests.analyzer.nested import Attends, Scales, nested
from tests.analyzer.observed import sorter_of

LENGTHS = ((2, 3), (4, 1, 5), (1,), (6, 2))


def taped(folder: Path, model: Any = None, **options: Any) -> tuple[Tape, Any]:
    model = Scales().eval() if model is None else model
    with record(model, folder / "a.tape", **options) as recorder, torch.no_grad():
        for lengths in LENGTHS:
            one = nested(*lengths)
            model(one)
            if isinstance(model, Scales):
                model(one, other=one * 2)
    assert recorder.stats().dropped == {}
    return open_tape(folder / "a.tape"), model


def test_calls_with_nested_tensors_reproduce(tmp_path: Path) -> None:
    tape, model = taped(tmp_path)
    report = replay(tape, model)
    assert report.ok, report.table()
    assert report.reproduced == 8


def test_attention_of_nested_tensors_reproduces(tmp_path: Path) -> None:
    tape, model = taped(tmp_path, model=Attends().eval())
    report = replay(tape, model)
    assert report.ok, report.table()
    assert report.reproduced == 4


class Other(Scales):
    """Returns other lengths, or a plain tensor."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Any, other: Any = None) -> Any:
        y = super().forward(x)
        if self.way == "plain":
            return y.values()
        offsets = x.offsets().clone()
        offsets[1:-1] -= 1
        return torch.nested.nested_tensor_from_jagged(y.values(), offsets)


def test_what_differs_is_named(tmp_path: Path) -> None:
    tape, model = taped(tmp_path)
    tape = tape.only(calls="0")
    same = Scales()
    assert "values: " in str(replay(tape, same).rows[0].error)
    offsets = Other("offsets")
    offsets.linear = model.linear
    assert "offsets: 1 of 3 elements differ" in str(replay(tape, offsets).rows[0].error)
    assert not replay(tape, Other("plain")).ok


@pytest.mark.parametrize("values", ["none", {"*.offsets": "none"}])
def test_made_up_offsets_fit_the_values(tmp_path: Path, values: Any) -> None:
    tape, model = taped(tmp_path, values=values)
    for one, lengths in zip(list(tape.calls)[::2], LENGTHS, strict=True):
        (found,), _, made_up, _ = complete_inputs(one)
        assert made_up
        assert len(found.unbind()) == len(lengths)
        assert sum(len(part) for part in found.unbind()) == sum(lengths)
    report = replay(tape, model)
    if values == "none":
        assert report.ok, report.table()
        assert {row.against for row in report} == {"shapes"}
    for variant in tape.variants():
        args, _ = variant.infer_arguments()
        assert args[0].is_nested
        assert int(args[0].offsets()[-1]) == len(args[0].values())


def test_other_sizes_have_offsets_that_fit(tmp_path: Path) -> None:
    tape, _ = taped(tmp_path)
    facts = tape.variants()[0].facts
    sample = recorded_sample(tape.calls[0], sorter_of(tape))
    layout = facts.group.layout
    places = [place.path for place in layout.tensors]
    values = [symbol.values[0] + 3 for symbol in facts.symbols]
    made = resized(sample, facts, 0, values)
    found = dict(zip(places, made.tensors, strict=True))
    offsets = found[".offsets"]
    assert len(offsets) > 3
    assert offsets.tolist() == sorted(offsets.tolist())
    assert 0 <= int(offsets[0]) <= int(offsets[-1]) <= len(found[".values"])


def test_a_redacted_tape_of_nested_tensors_replays(tmp_path: Path) -> None:
    tape, model = taped(tmp_path)
    redact(tape, tmp_path / "b.tape")
    with open_tape(tmp_path / "b.tape") as redacted:
        report = replay(redacted, model)
        assert report.ok, report.table()
        assert [v.name for v in redacted.variants()] == [v.name for v in tape.variants()]


def test_the_ragged_dimension_is_no_secret(tmp_path: Path) -> None:
    tape, model = taped(tmp_path)
    redact(tape, tmp_path / "b.tape", shapes_only=["x", "other", "outputs"])
    with open_tape(tmp_path / "b.tape") as redacted:
        assert redacted.calls[1].inputs.args[0].is_nested
        assert redacted.calls[1].outputs["sum"].is_nested
        assert replay(redacted, model).ok


def test_sizes_of_the_parts_are_explained(tmp_path: Path) -> None:
    tape, _ = taped(tmp_path)
    assert "dimension 0 is dynamic: 4 values" in str(tape.explain("x.values", 0))
    assert "dimension 0 is dynamic: 3 values" in str(tape.explain("x.offsets", 0))
    args, kwargs = tape.variants()[0].infer_dynamic_shapes(), tape.variants()[1]
    assert [sorted(argument) for argument in args[0]] == [[0], [0]]
    assert kwargs.name == "other present"
