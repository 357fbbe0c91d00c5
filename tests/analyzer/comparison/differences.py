"""One comparison of two results."""

from __future__ import annotations

from typing import Any

from calltape_analyzer.comparison.comparing import (
    Difference,
    Tolerances,
    compared,
    leaves_of,
)


def difference(expected: Any, got: Any, **tolerances: Any) -> Difference:
    return compared(leaves_of(expected), leaves_of(got), Tolerances(**tolerances))
