"""Records the calls of a model."""

from __future__ import annotations

from pathlib import Path

from tests.zoo.case import Case

__all__ = ["record_case"]


def record_case(case: Case, path: Path) -> None:
    """Writes the tape of a case.

    Raises:
        AssertionError: a call was lost, so that the answers would be about others.
    """
    import torch

    from calltape_recorder import record

    module = case.make()
    with torch.no_grad(), record(module, path, overwrite=True) as recorder:
        case.drive(module)
    stats = recorder.stats()
    assert stats.kept == stats.seen, f"{case.name}: kept {stats.kept} of {stats.seen} calls"
