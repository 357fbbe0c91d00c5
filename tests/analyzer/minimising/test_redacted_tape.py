"""A tape is made small and then redacted: it still fails, and only what the failure needs stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InferenceError, UsageError, minimise_tape, open_tape
from calltape_analyzer.testing import call, write_tape
from tests.unpacked import readable

from .checked import BadAtLongRows, Numbered, Sum, Worded
from .test_minimising import CHECKED, minimised, recorded

pytestmark = pytest.mark.integration  # each search starts a process that imports torch

PRIVATE = "a SECRET-WORD of Jane Doe, 1 Main Street"
TITLE = "the private title of the document"


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of ten calls is wide, has a large y, and a long prompt."""
    model, made = Worded(), []
    for i in range(10):
        is_bad = i == 6
        x = torch.rand(2, 50 if is_bad else 4 + i)
        y = torch.full((3,), 97.0) if is_bad else torch.rand(3)
        kwargs = {"y": y, "prompt": PRIVATE if is_bad else "short", "title": TITLE}
        made.append(call(x, **kwargs).returns(model(x, **kwargs)))
    return write_tape(tmp_path_factory.mktemp("tapes") / "worded.tape", made, model)


def history(path: Path) -> list[str]:
    with open_tape(path) as tape:
        assert tape.sealed
        assert tape.verify() == []
        return [step.verb for step in tape.manifest.history or ()]


def test_a_failure_of_a_shape_survives_redaction(worded: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    report = minimised(worded, out, fails=f"{CHECKED}:is_wide", redact=True)
    assert (report.redacted, report.kept, report.calls) == (True, (), 1)
    assert "redacted, and fails as before" in str(report)
    assert history(out) == ["minimise", "redact"]
    content = out.read_bytes()
    assert PRIVATE.encode() not in content
    assert TITLE.encode() not in content
    with open_tape(out) as tape:
        (only,) = tape.calls
        (leaf,) = only.record.inputs.facts()
        assert (leaf.shape, leaf.key) == ((1, 41), None)
        assert tape.manifest.producer.host is None


def test_the_values_of_one_leaf_stay(worded: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    report = minimised(worded, out, fails=f"{CHECKED}:has_value_in_y", redact=True)
    (kept,) = report.kept
    assert kept == "y (float32[1])"
    assert f"kept: {kept}" in str(report)
    with open_tape(out) as tape:
        (only,) = tape.calls
        facts = {leaf.key is not None: leaf for leaf in only.record.inputs.facts()}
        assert only.inputs.kwargs["y"].item() > 90
        assert facts[True].shape == (1,)
        step = (tape.manifest.history or ())[-1]
        assert '"kwargs.y"' in dict(step.options)["keep"]
    assert history(out) == ["minimise", "redact"]


def test_a_text_that_the_failure_quotes_need_not_stay(worded: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    report = minimised(worded, out, fails=f"{CHECKED}:quotes_prompt", redact=True)
    assert report.kept == ()
    assert "Jane" not in report.reason
    assert report.reason.startswith("ValueError: cannot parse '…' (at checked.py:")
    assert b"Jane" not in readable(out.read_bytes())
    with open_tape(out) as tape:
        assert len(tape.calls[0].inputs.kwargs["prompt"]) == len(PRIVATE)


def test_a_text_that_the_failure_needs_stays_and_is_named(worded: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    report = minimised(worded, out, fails=f"{CHECKED}:needs_the_word", redact=True)
    assert report.kept == (f"prompt (str of length {len(PRIVATE)})",)
    with open_tape(out) as tape:
        assert tape.calls[0].inputs.kwargs == {"prompt": PRIVATE}
    assert TITLE.encode() not in readable(out.read_bytes())


def test_a_long_number_that_the_failure_needs_stays_and_is_named(tmp_path: Path) -> None:
    model, calls = Numbered(), []
    for customer in (987_654_321_987, 12_345_678_901):
        x, named = torch.rand(2, 3), {"customer": customer, "phone": 49_301_987_654_321}
        calls.append(call(x, **named).returns(model(x, **named)))
    whole = write_tape(tmp_path / "whole.tape", calls, model)
    out = tmp_path / "small.tape"
    report = minimised(whole, out, fails=f"{CHECKED}:is_odd_customer", redact=True)
    assert report.kept == ("customer (int)",)
    with open_tape(out) as tape:
        assert tape.calls[0].inputs.kwargs == {"customer": 987_654_321_987}


def test_what_is_to_go_goes_or_nothing_is_written(worded: Path, tmp_path: Path) -> None:
    """An explicit choice is never overruled."""
    out = tmp_path / "small.tape"
    with pytest.raises(InferenceError, match="besides what shapes_only decides"):
        minimised(
            worded, out, fails=f"{CHECKED}:needs_the_word", redact={"shapes_only": ["prompt"]}
        )
    assert not out.exists()
    # Without it, the log has the answers of the search.
    again = minimised(worded, out, fails=f"{CHECKED}:needs_the_word", redact={"keep": "prompt"})
    assert again.kept == ()  # it was asked for, and is no surprise
    assert again.answered > 5
    assert again.steps == 4


def test_wrong_values_keep_what_shows_them(tmp_path: Path) -> None:
    whole, out = recorded(tmp_path / "whole.tape"), tmp_path / "small.tape"
    report = minimised(
        whole, out, fails_replay=f"{CHECKED}:BadAtLongRows", reference=f"{CHECKED}:Sum", redact=True
    )
    assert report.kept == ("x (float32[1, 41], all 0)", "outputs (float32[1], all 0)")
    with open_tape(out) as tape:
        (only,) = tape.calls
        (x,), _ = only.inputs
        assert torch.equal(only.outputs, Sum()(x))
        assert not torch.equal(only.outputs, BadAtLongRows()(x))


def test_an_interrupted_redaction_goes_on(worded: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    options: dict[str, Any] = {"fails": f"{CHECKED}:has_value_in_y", "redact": True}
    with pytest.raises(InferenceError, match="the time was up"):
        minimised(worded, out, **options, max_seconds=0.01, step_seconds=60)
    assert not out.exists()
    assert minimised(worded, out, **options, step_seconds=60).kept
    again = minimised(worded, out, **options, step_seconds=60, overwrite=True)
    assert again.steps == 3  # the last look at the smallest tape, and two at the redacted one


def test_options_that_redact_does_not_have(worded: Path, tmp_path: Path) -> None:
    with (
        open_tape(worded) as tape,
        pytest.raises(UsageError, match="redact has no option 'burn'"),
    ):
        minimise_tape(tape, tmp_path / "o.tape", fails=f"{CHECKED}:is_wide", redact={"burn": "x"})
