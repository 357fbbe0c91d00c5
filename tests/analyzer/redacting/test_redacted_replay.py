"""What a redacted tape says of a model: nothing that needed the values that it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape, private_data, redact, replay
from calltape_analyzer.testing import call, write_tape
from calltape_analyzer.testing.assertion import NewOutcomes


class Checking(torch.nn.Module):
    """Raises for a value."""

    def forward(self, x: Any) -> Any:
        if not x.sum() > 0:
            raise ValueError("nothing to do")
        return x + 1


class Failing(torch.nn.Module):
    """Raises for a size."""

    def forward(self, x: Any) -> Any:
        if x.shape[0] == 3:
            raise IndexError("no room")
        return x + 1


@pytest.fixture
def tapes(tmp_path: Path) -> tuple[Path, Path]:
    """A tape, and the same redacted."""
    inputs = torch.ones(2), torch.ones(3)
    calls = [call(x).returns(x + 1) for x in inputs]
    calls.append(call(torch.zeros(4)).raises(ValueError("nothing to do")))
    source = write_tape(tmp_path / "a.tape", calls, Checking())
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")
    return source, tmp_path / "b.tape"


def test_a_call_that_raised_for_a_value_proves_nothing_without_it(
    tapes: tuple[Path, Path],
) -> None:
    whole, redacted = tapes
    with open_tape(whole) as tape:
        assert replay(tape, Checking()).ok
        assert not replay(tape, torch.nn.Identity()).rows[2].ok
    with open_tape(redacted) as tape:
        # Made-up numbers may raise, or not: neither says that the model is another one.
        row = replay(tape, Failing()).rows[2]
    assert not row.ok
    assert not row.is_tested
    assert "returned, instead of raising" in str(row.error)


def test_no_outcome_is_kept_of_arguments_that_were_made_up(tapes: tuple[Path, Path]) -> None:
    for path, is_kept in zip(tapes, (True, False), strict=True):
        outcomes = NewOutcomes()
        with open_tape(path) as tape:
            report = replay(tape, torch.nn.Identity())
            outcomes.add(tape.calls[2], torch.zeros(4), None)
            outcomes.add(tape.calls[0], torch.zeros(2), None)
            row = report.rows[0].model_copy(update={"against": "tape"})
            assert (outcomes.of(tape.calls[0], row) is not None) == is_kept


def test_the_advice_on_a_redacted_tape_is_not_to_redact_it(tapes: tuple[Path, Path]) -> None:
    whole, redacted = tapes
    with open_tape(whole) as tape:
        assert "`calltape redact`" in (private_data(tape).short(1) or "")
    with open_tape(redacted) as tape:
        text = private_data(tape).short(100)
        assert text is None or "`calltape redact`" not in text


def test_the_largest_difference_is_that_of_all_calls(tapes: tuple[Path, Path]) -> None:
    class Off(Checking):
        def forward(self, x: Any) -> Any:
            return super().forward(x) + (x.shape[0] == 3)

    with open_tape(tapes[0]) as tape:
        assert "largest difference 1.0e+00" in replay(tape, Off()).summary
