"""Under a small bound, what is only a sample is deleted before what tells of new inputs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import calltape_recorder.pipeline as pipeline
from calltape_analyzer import open_tape
from calltape_recorder import Every, Novelty, PerStructure, Rate, Recorder, record
from calltape_recorder.keep.policies import EVIDENCE, Keep
from tests.recorder.models import Identity

BOUND = 300 * 1024
DELETES: dict[str, Any] = {
    "max_disk_bytes": BOUND, "when_full": "delete_oldest", "segment_bytes": 16 * 1024
}  # fmt: skip
KINDS = 6


def serve(recorder: Recorder, model: Any, calls: int, kinds: int = KINDS) -> None:
    """Calls of a few kinds at first, then of one."""
    for number in range(kinds):
        model(torch.ones((2,) * number))
    recorder.flush()
    for number in range(calls):
        model(torch.ones(2))
        if not number % 16:
            recorder.flush()
    recorder.flush()


def ranks(folder: Path) -> set[int]:
    with open_tape(sorted(folder.glob("*.tape"))) as tape:
        assert tape.damage == []
        return {len(call.record.inputs.facts()[0].shape) for call in tape}


@pytest.mark.parametrize("keep", [Novelty() | Every(), PerStructure(1) | Rate(0.9), Novelty()])
def test_samples_are_deleted_first(tmp_path: Path, keep: Keep) -> None:
    model = Identity()
    with record(model, tmp_path / "a.tape", keep=keep, **DELETES) as recorder:
        serve(recorder, model, 900)
        assert recorder.stats().disk_bytes <= BOUND
    assert set(range(KINDS)) <= ranks(tmp_path)


def test_without_evidence_the_oldest_goes_first(tmp_path: Path) -> None:
    model = Identity()
    with record(model, tmp_path / "a.tape", keep=Every(), **DELETES) as recorder:
        serve(recorder, model, 900)
    assert recorder.stats().dropped["deleted"] > 100
    assert ranks(tmp_path) == {1}
    with open_tape(sorted(tmp_path.glob("*.tape"))) as tape:
        numbers = [call.number for call in tape]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_the_counters_still_add_up(tmp_path: Path) -> None:
    """A file from the middle is gone: its calls are counted in a later one."""
    model = Identity()
    with record(model, tmp_path / "a.tape", keep=Novelty() | Every(), **DELETES) as recorder:
        serve(recorder, model, 900)
        seen = recorder.stats().seen
    stats = recorder.stats()
    assert stats.dropped["deleted"] > 100
    with open_tape(sorted(tmp_path.glob("*.tape"))) as tape:
        coverage = tape.coverage
        assert (coverage.seen, coverage.kept) == (seen, len(tape.calls))
        assert coverage.dropped == {"deleted": stats.dropped["deleted"]}
        assert 901 in {variant.findings.all_calls for variant in tape.variants()}


def test_evidence_that_does_not_fit_is_gathered_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each file that is written would delete the next one that is asked for."""
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(pipeline, "time", clock)
    model = Identity()
    begins: list[float] = []
    recorder = Recorder(tmp_path / "a.tape", keep=Novelty(), **DELETES)
    monkeypatch.setattr(pipeline, "start_over", lambda decider: begins.append(now[0]))
    with recorder.attach(model):
        home = recorder._handler.pipeline
        assert home is not None
        for _ in range(200):
            home._evidence_deleted()
            model(torch.ones(2))
            now[0] += 5
        gaps = [later - earlier for earlier, later in pairwise(begins)]
        assert gaps == sorted(gaps)
        assert len(gaps) < 8
        for step in (10_000, 10_000, 11):  # for another reason it is gathered soon
            home.evidence_lost()
            now[0] += step
            model(torch.ones(2))
        assert begins[-1] - begins[-2] == 11


def test_answers_of_two_policies() -> None:
    view: Any = type("View", (), {"likeness": b"x"})
    for keep, answers in (
        (PerStructure(1) | Every(), [EVIDENCE, True]),
        (PerStructure(1) & Every(), [EVIDENCE, False]),
        (Every() & PerStructure(1), [EVIDENCE, False]),
        (Every() & Every(), [True, True]),
    ):
        decide = keep.decider()
        assert [decide(n, view) for n in range(2)] == answers, str(keep)
