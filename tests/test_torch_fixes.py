"""Every workaround for torch has tests that fail without it, which its table names."""

from __future__ import annotations

import re

from tests.torch_fixes import FIXES, TESTS, table


def test_each_workaround_has_a_row_that_names_tests() -> None:
    rows = table()
    assert [*rows] == FIXES
    for name, row in rows.items():
        named = re.findall(r"`(test_\w+\.py)::(\w+)`", row)
        assert named, f"no test needs {name}: delete it"
        for file, test in named:
            assert f"def {test}(" in (TESTS / file).read_text()
