"""More evidence never makes a result worse; ``python -m tests.evidence`` asks every small case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.answers.subjects import subjects
from tests.evidence import without_each


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["empty_first_cache", "negative_int", "every_expert", "float_in_a_part"]
)
def test_no_call_makes_a_result_worse(name: str, tmp_path: Path) -> None:
    assert list(without_each(subjects()[f"small/{name}"], tmp_path)) == []
