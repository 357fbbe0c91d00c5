"""What redaction asks once, however many arguments a tape has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape, redact
from calltape_analyzer.redacting import answers
from tests.analyzer.tapes import write_tape


def test_reasons_are_found_once_for_all_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of hundreds of arguments is explained, and all columns are evidence."""
    asked: list[int] = []
    found = answers.reasons_of

    def counting(tape: Any, variants: Any) -> Any:
        asked.append(len(variants))
        return found(tape, variants)

    monkeypatch.setattr(answers, "reasons_of", counting)
    calls = [{f"a{n}": torch.ones(size) for n in range(30)} for size in (2, 3)]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        redact(tape, tmp_path / "b.tape")
    assert asked == [1, 1]  # of the tape, and of the redacted one
