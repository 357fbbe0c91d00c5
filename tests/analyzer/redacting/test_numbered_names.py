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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no my name", "no <key 1>"),
        ("4 (in my name present, call 1)", "4 (in <key 1> present, call <key 0>)"),
        ("the size 1 of x.1", "the size <key 0> of x.<key 0>"),
        ("the size 1 1", "the size <key 2>"),
        ("in (0) present", "in <key 0> present"),
        ("the size of x", "the size of x"),
        ("of x.size", "of x.<key 3>"),
    ],
)
def test_names_of_arguments_in_sentences(text: str, expected: str) -> None:
    names = ["1", "my name", "1 1", "size"]
    words = {"1", "my name", "1 1"}
    found = NumberedNames(names, words, ["(0)", "(1)", "(2)", "(3)"]).numbered(text)
    assert found == expected


@given(st.lists(NAMES, unique=True, max_size=4), st.text("ab[ =\n\x1b..,)1", max_size=12))
def test_it_is_as_one_pattern_of_all_names(names: list[str], text: str) -> None:
    numbers = {name: number for number, name in reversed([*enumerate(names)])}
    forms = {form: numbers[name] for name in reversed(names) for form in (printable(name), name)}
    either = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
    part = rf"(?<![^.])(?:{either})(?![^.\[=, );:])"
    expected = re.sub(part, lambda found: f"<key {forms[found[0]]}>", text) if names else text
    assert NumberedNames(names).numbered(text) == expected
