"""What nobody may read: keys that are data, texts; and the language in which users name leaves."""

from __future__ import annotations

import random
from collections.abc import Iterable
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema.privacy import (
    KeySets,
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


def served(calls: int, at_once: int, steps: int) -> Iterable[set[str]]:
    """The requests that an engine has in each step; each stays for some steps."""
    chance = random.Random(1)
    left: dict[str, int] = {}
    for _ in range(calls):
        left = {name: n - 1 for name, n in left.items() if n > 1}
        while len(left) < at_once:
            left[f"{chance.getrandbits(64):x}"] = chance.randint(1, steps)
        yield set(left)


DATA = {
    "each its own": [{f"id{i}"} for i in range(9)],
    "several each": [{f"{i}a", f"{i}b", f"{i}c", f"{i}d"} for i in range(9)],
    "numbers": [{10_000 + 7 * i} for i in range(20)],
    "as many as there are": [{f"{i}-{n}" for n in range(i % 5)} for i in range(30)],
    "for some steps": list(served(200, 4, 12)),
    "and one that stays for long": [found | {"long"} for found in served(200, 3, 12)],
}
STRUCTURE = {
    "always the same": [{f"layer.{i}" for i in range(50)}] * 400,
    "one of eight": [{f"kind{i % 8}"} for i in range(400)],
    "any of ten": [
        set(random.Random(i).sample("abcdefghij", random.Random(i).randint(1, 4)))
        for i in range(400)
    ],
    "some more each time": [{f"k{n}" for n in range(i)} for i in range(40)],
    "few calls": [{f"id{i}"} for i in range(8)],
}


def lasting(sets: Iterable[Iterable[object]]) -> frozenset[object] | None:
    seen = KeySets()
    for keys in sets:
        seen.add(keys)
    return seen.lasting()


@pytest.mark.parametrize("name", DATA)
def test_keys_that_go_are_data(name: str) -> None:
    found = lasting(DATA[name])
    assert found is not None
    assert found <= {"long"}
    assert lasting(reversed(DATA[name])) == found


@pytest.mark.parametrize("name", STRUCTURE)
def test_keys_that_come_back_are_structure(name: str) -> None:
    assert lasting(STRUCTURE[name]) is None


def test_names_beside_them_are_kept() -> None:
    assert lasting([{"ids", f"request {i}"} for i in range(20)]) == {"ids"}


def test_memory_is_bounded() -> None:
    seen = KeySets()
    added = [seen.add({i}) for i in range(3000)]
    assert added == [True] * 1024 + [False] * 1976


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
