"""The affine span of rows, whole and within a bound."""

from __future__ import annotations

import random

from calltape_schema.affine_span import AffineSpan


def test_rows_within_the_span_add_nothing() -> None:
    span = AffineSpan()
    assert [span.add(row) for row in ([3, 6], [4, 8], [50, 100], [5, 11], [7, 9])] == [
        True, True, False, True, False,
    ]  # fmt: skip


def test_a_span_with_a_bound_stays_as_it_is_from_there_on() -> None:
    numbers = random.Random(0)
    rows = [[numbers.randrange(1000) for _ in range(9)] for _ in range(9)]
    whole, bounded = AffineSpan(), AffineSpan(40)
    assert all(whole.add(row) for row in rows)
    assert [bounded.add(row) for row in rows] == [True] * 4 + [False] * 5
