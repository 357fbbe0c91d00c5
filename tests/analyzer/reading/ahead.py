"""A recording with write-ahead files that was killed in a call."""

from __future__ import annotations

from pathlib import Path

from tests.analyzer.observing.doubling import ZEROS, Doubling
from tests.analyzer.tapes import Recorded, write_tape


def ahead(tmp_path: Path, *numbers: int) -> Path:
    """A recording that was killed in a call."""
    calls = [Recorded((ZEROS(2 + n, 4),), outputs=ZEROS(2 + n, 4), number=n) for n in range(3)]
    write_tape(tmp_path / "a.tape", calls, target=Doubling(), sealed=False)
    for file, number in enumerate(numbers):
        call = Recorded(
            (ZEROS(9, 4),), outputs_missing="under way", number=number, duration_ns=None
        )
        write_tape(tmp_path / f"a.ahead-{file}.tape", [call], target=Doubling(), sealed=False)
    write_tape(tmp_path / "a.ahead-9.tape", [], target=Doubling(), sealed=False)
    return tmp_path
