"""What stands beside the command that shows a failure."""

from __future__ import annotations

import pytest

from calltape_analyzer.minimising.minimise_report import notes_of_memory


@pytest.mark.parametrize(
    ("reason", "has_note"),
    [
        ("MemoryError (at checks.py:3, in f)", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate # GiB.", True),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried # bytes", True),
        ("ValueError: the memory of the cache is full", False),
    ],
)
def test_a_lack_of_memory_is_one_of_this_machine(reason: str, has_note: bool) -> None:
    assert bool(notes_of_memory(reason)) is has_note
