"""Fixtures of the tests of exports."""

from __future__ import annotations

import pytest

from calltape_analyzer.exporting.session import sandbox as apart


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs at sizes that no call had are made in this process, where a test sees them."""
    monkeypatch.setattr(apart, "may_fork", lambda device: False)
