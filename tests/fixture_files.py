"""The fixtures folder, and its generator as importable modules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[1] / "fixtures"
if str(FIXTURES) not in sys.path:
    sys.path.append(str(FIXTURES))

_UNLIKE = "survey", "odd_values", "table_order", "unreadable_values"
WITH_CALLS = sorted(path for path in (FIXTURES / "v1").glob("*.tape") if path.stem not in _UNLIKE)
"""The golden tapes, but for a survey, which has no single call, and for those that say what no
recorder says: a reader takes them, and who writes tapes may not."""


HOSTILE = sorted(
    path for path in (FIXTURES / "hostile").glob("*.tape")
    if not path.stem.startswith(("field_", "reading_", "ruling_"))
)  # fmt: skip
"""The hostile tapes, but for those with a single wrong field, and those that tell two readings of
FORMAT.md apart, which only readers are held to."""


def expected_of(path: Path) -> dict[str, Any]:
    """What a reader must find on a fixture."""
    document: dict[str, Any] = json.loads(path.with_suffix(".json").read_bytes())
    return document
