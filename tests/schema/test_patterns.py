"""The language in which users name leaves."""

from __future__ import annotations

import pytest

from calltape_schema.privacy import is_exact, matches, matches_whole, specificity


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


def test_how_much_a_pattern_says() -> None:
    assert is_exact("args.0.x")
    assert not any(map(is_exact, ("args.*", "args.?", "args.[0]")))
    assert specificity("args.*.x") == len("args..x")
    assert specificity("*[01]") == len("01")
