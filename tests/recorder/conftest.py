"""What several tests of the recorder change about it."""

from __future__ import annotations

import pytest

from calltape_recorder.write import closed_segments, segments, writer
from tests.recorder.waiting import Clock


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder's thread looks in each of its turns what is to be done, instead of once a
    second."""
    monkeypatch.setattr(writer, "LOOK_SECONDS", 0.0)


@pytest.fixture
def clock(looks_always: None, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time by which files are old, and counts are due."""
    clock = Clock()
    for module in (segments, closed_segments):
        monkeypatch.setattr(module, "time", clock)
    return clock
