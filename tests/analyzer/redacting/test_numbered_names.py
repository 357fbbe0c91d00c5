"""Keys in texts, by number: two tapes with other keys say the same then."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer.redacting.numbered_names import NumberedNames
from calltape_analyzer.text import printable

NAMES = st.text("ab1[ =\n\x1b", max_size=3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x.key.0", "x.<key 0>.0"),
        ("x.key[1]", "x.<key 0>[1]"),
        ("key = 3", "<key 0> = 3"),
        ("x.keys, x.okey", "x.keys, x.okey"),
        ("x.a b.key", "x.<key 1>.<key 0>"),
        ("x.a", "x.a"),
        ("x.\\x1b[2J.y", "x.<key 2>.y"),
        ("x..y", "x.<key 3>.y"),
        ("key.key", "<key 0>.<key 0>"),
        ("x.c.d", "x.<key 4>"),
    ],
)
def test_parts_of_paths(text: str, expected: str) -> None:
    assert NumberedNames(["key", "a b", "\x1b[2J", "", "c.d"]).numbered(text) == expected


@given(st.lists(NAMES, unique=True, max_size=4), st.text("ab[ =\n\x1b..,)1", max_size=12))
def test_it_is_as_one_name_after_the_other(names: list[str], text: str) -> None:
    expected = text
    for number, name in enumerate(names):
        for form in (name, printable(name)):
            part = rf"(?<![^.]){re.escape(form)}(?![^.\[=, )])"
            expected = re.sub(part, f"<key {number}>", expected)
    assert NumberedNames(names).numbered(text) == expected
