"""What stands for a text that nobody may read, and the language in which users name leaves."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema.privacy import (
    is_exact,
    is_without_text,
    length_of_text,
    literal_of,
    matches,
    matches_whole,
    specificity,
    without_text,
)


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("mask", "mask", True),
        ("mask", "mask.0", True),
        ("mask", "masks", False),
        ("*.keys", "args.0.keys", True),
        ("*.keys", "args.0.keys.1", True),
        ("cache.*", "cache", False),
        ("cache.[0-1]", "cache.1", True),
        ("Mask", "mask", False),
    ],
)
def test_a_pattern_matches_a_name_and_what_is_below_it(
    pattern: str, name: str, found: bool
) -> None:
    assert matches(pattern, [name]) is found
    assert matches(pattern, ["other", name]) is found


def test_all_parts_of_a_bare_tensor_are_the_tensor() -> None:
    assert matches_whole("cache.*", ["cache"])
    assert matches_whole("cache.*", ["cache.keys.0"])
    assert not matches_whole("cache.*", ["caches"])


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        ("mask", "mask"), ("cache.*", "cache"), ("*.f17.*x", ".f17."), ("a?bc", "bc"), ("*", ""),
        ("x[ab]longer", "x"), ("[!a]b", ""), ("", ""),
    ],
)  # fmt: skip
def test_a_text_that_each_match_has(pattern: str, literal: str) -> None:
    assert literal_of(pattern) == literal


@given(
    pattern=st.text("ab.*?[]!", max_size=6), names=st.lists(st.text("ab.[", max_size=6), max_size=3)
)
def test_a_match_has_the_literal_and_is_one_of_fnmatch(pattern: str, names: list[str]) -> None:
    of_fnmatch = any(
        fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for name in names
    )
    assert matches(pattern, names) is of_fnmatch
    if matches_whole(pattern, names):
        assert any(literal_of(pattern) in name for name in names)


def test_how_much_a_pattern_says() -> None:
    assert is_exact("args.0.x")
    assert not any(map(is_exact, ("args.*", "args.?", "args.[0]")))
    assert specificity("args.*.x") == len("args..x")
    assert specificity("*[01]") == len("01")


def test_only_the_length_of_a_text_stays() -> None:
    left = without_text("no user called quokka")
    assert left == "(21 characters, not kept)"
    assert is_without_text(left)
    assert without_text(left) == left


def test_a_text_that_looks_similar_is_a_text() -> None:
    for text in (
        "",
        "(21 characters, not kept) ",
        "(٢ characters, not kept)",
        "21 characters, not kept",
    ):
        assert not is_without_text(text)
        assert is_without_text(without_text(text))


def test_the_text_of_a_host_is_replaced_whatever_it_says() -> None:
    assert length_of_text("(4111 characters, not kept)") == "(27 characters, not kept)"


def test_a_number_that_is_no_length_of_a_text_is_a_text() -> None:
    assert not is_without_text("(4111111111111111 characters, not kept)")
