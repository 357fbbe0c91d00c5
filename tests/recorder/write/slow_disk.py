"""A disk that answers only when the test says so."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from calltape_recorder.write import disk_file

__all__ = ["slow_disk"]


def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The writer's next write waits until the event is set."""
    gate = threading.Event()
    plain = os.pwritev

    def waiting(file: int, parts: Any, offset: int) -> int:
        gate.wait()
        return plain(file, parts, offset)

    monkeypatch.setattr(disk_file, "pwritev", waiting)
    return gate
