"""Disks that stand still, fail or are full, in the place of ``os.pwritev``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from calltape_recorder.write import disk_file

__all__ = ["failing", "slow"]


class Gate(threading.Event):
    """Set if writes pass. ``reached`` is set once one waits."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()


def slow(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """The recorder's next write waits until the gate is set."""
    gate = Gate()

    def waiting(file: int, parts: Any, offset: int) -> int:
        gate.reached.set()
        if not gate.wait(250):  # the test failed; its process must end all the same
            gate.set()
        return os.pwritev(file, parts, offset)

    monkeypatch.setattr(disk_file, "pwritev", waiting)
    return gate


def failing(
    monkeypatch: pytest.MonkeyPatch,
    error: int,
    fails: Callable[[int, int], bool] = lambda number, nbytes: True,
    *,
    after: float = 0,
) -> None:
    """Writes fail with this error number.

    Args:
        monkeypatch: takes it back.
        error: its number.
        fails: which of them, by number and size.
        after: which part of such a write reaches the disk.
    """
    writes = 0

    def pwritev(file: int, parts: Any, offset: int) -> int:
        nonlocal writes
        data = b"".join(bytes(part) for part in parts)
        writes += 1
        if fails(writes - 1, len(data)):
            if after:
                os.pwrite(file, data[: int(after * len(data))], offset)
            raise OSError(error, os.strerror(error))
        return os.pwrite(file, data, offset)

    monkeypatch.setattr(disk_file, "pwritev", pwritev)
