"""Under a small bound, what is only a sample is deleted before what tells of new inputs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import Every, Novelty, PerStructure, Rate, Recorder, record
from calltape_recorder.keep import admission
from calltape_recorder.keep.policies import Keep
from tests.recorder.models import Identity
from tests.recorder.parts import recording
from tests.recorder.reading import read

BOUND = 300 * 1024
DELETES: dict[str, Any] = {
    "max_disk_bytes": BOUND, "when_full": "delete_oldest", "segment_bytes": 16 * 1024
}  # fmt: skip
KINDS = 6


def serve(recorder: Recorder, model: Any) -> None:
    """Calls of a few kinds at first, then of one."""
    for number in range(KINDS):
        model(torch.ones((2,) * number))
    recorder.flush()
    for number in range(900):
        model(torch.ones(2))
        if not number % 16:
            recorder.flush()
    recorder.flush()


@pytest.mark.parametrize("keep", [Novelty() | Every(), PerStructure(1) | Rate(0.9), Novelty()])
def test_samples_are_deleted_first(tmp_path: Path, keep: Keep) -> None:
    """A file from the middle is gone: its calls are counted in a later one."""
    model = Identity()
    with record(model, tmp_path / "a.tape", keep=keep, **DELETES) as recorder:
        serve(recorder, model)
        assert recorder.stats().disk_bytes <= BOUND
    stats = recorder.stats()
    with open_tape(sorted(tmp_path.glob("*.tape"))) as tape:
        assert tape.damage == []
        assert set(range(KINDS)) <= {len(one.record.inputs.facts()[0].shape) for one in tape}
        coverage = tape.coverage
        assert (coverage.seen, coverage.kept) == (stats.seen, len(tape.calls))
        assert coverage.dropped == stats.dropped
        assert keep == Novelty() or stats.dropped["deleted"] > 100
        assert 901 in {variant.findings.all_calls for variant in tape.variants()}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which evidence is remembered."""
    now = [100.0]
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_evidence_that_is_lost_is_gathered_again_in_a_while(
    tmp_path: Path, now: list[float]
) -> None:
    """The first loss counts at once, the others when some time has passed."""
    model, x = Identity(), torch.ones(3)
    with recording(model, tmp_path / "t.tape", keep=Novelty()) as parts:
        model(x)
        for _ in range(3):
            parts.decisions.lose_novelty()
            model(x)
        now[0] += 100
        model(x)
        model(x)
    assert read(tmp_path / "t.tape").numbers == [0, 1, 4]


def test_evidence_that_does_not_fit_is_gathered_ever_more_seldom(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each file that is written would delete the next one that is asked for."""
    model, begins = Identity(), list[float]()
    monkeypatch.setattr(admission, "start_over", lambda decider: begins.append(now[0]))
    with recording(model, tmp_path / "a.tape", keep=Novelty(), **DELETES) as parts:
        for _ in range(200):
            parts.decisions.lose_novelty(made_room=True)
            model(torch.ones(2))
            now[0] += 5
        gaps = [later - earlier for earlier, later in pairwise(begins)]
        assert gaps == sorted(gaps)
        assert len(gaps) < 8
        for step in (10_000, 10_000, 11):  # for another reason it is gathered soon
            parts.decisions.lose_novelty()
            now[0] += step
            model(torch.ones(2))
        assert begins[-1] - begins[-2] == 11
