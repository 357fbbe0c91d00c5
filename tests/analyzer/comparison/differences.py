"""One comparison of two results."""

from __future__ import annotations

from typing import Any

from calltape_analyzer.comparison.comparing import (
    Tolerances,
    compared,
    leaves_of,
)
from calltape_analyzer.comparison.reports import Verdict


def difference(expected: Any, got: Any, **tolerances: Any) -> Verdict:
    return compared(leaves_of(expected), leaves_of(got), Tolerances(**tolerances))
