"""One folder of tapes for all tests of report pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzer.reporting.traffic import record


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs"))
