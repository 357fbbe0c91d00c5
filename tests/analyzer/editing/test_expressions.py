"""Conditions on sizes: what is understood, and that nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import UsageError
from calltape_analyzer.editing.choice import Expression

SIZES = {"n": 3, "x[0]": 4, "x[-1]": 8, "cache.layers.0.keys[2]": 9, "xs.1": 5, "zero": 0}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("n == 3", True),
        ("n != 3", False),
        ("2 < n <= 3 < x[0]", True),
        ("not n > 2", False),
        ("n > 2 and x[0] > 4", False),
        ("n > 2 or x[0] > 4", True),
        ("x[-1] // 2 == x[0] and x[-1] % 3 == 2", True),
        ("n * 2 - 1 + -1 == x[0]", True),
        ("cache.layers[0].keys[2] == 9", True),
        ("cache.layers.0.keys[2] == 9", True),
        ("cache.layers.0.keys[2]*.5 > 4.0", True),
        ("xs.1*2 == 10 and 2.5*xs.1 > 12.0", True),
        ("cache['layers'][0]['keys'][2] == 9", True),
        ("xs[1] == 5", True),
        ("n", True),
        ("zero", False),
        ("x[0] // zero > 1", False),
        ("missing > 1", False),
        ("not missing > 1", False),
        ("missing > 1 or n == 3", True),
        ("n == 3 or missing > 1", True),
        ("missing > 1 or n == 4", False),
        ("missing > 1 and n == 3", False),
        ("not (missing > 1 and n == 4)", True),
        ("not (missing > 1 or n == 4)", False),
        ("n // zero > 1 or n == 3", True),
        ("(missing > 1 or n == 3) + 1 == 2", True),
        ("(not missing) + 1 == 2 or n == 3", True),
        ("n > 2.5", True),
        ("True", True),
    ],
)
def test_what_a_condition_means(text: str, holds: bool) -> None:
    assert Expression(text).holds(SIZES) is holds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n >",
        "n = 3",
        "__import__('os')",
        "n.__class__()",
        "(lambda: 1)()",
        "[n for n in (1,)]",
        "n ** 9",
        "2 << 99",
        "n if n else n",
        "f'{n}'",
        "'text'",
        "n := 3",
        "{n}",
        "n in (1, 2)",
        "n is 3",
        "x[n]",
        "x[1:2]",
        "99999999999999999999999999 > n",
        "n\0",
        "(" * 400 + "n" + ")" * 400,
        "-" * 900 + "n",
        "n + " * 240 + "n",
        "n" * 2000,
    ],
)
def test_nothing_else_is_understood(text: str) -> None:
    with pytest.raises(UsageError):
        Expression(text)


@pytest.mark.parametrize("text", ["cache.layers.*.keys[2] > 5", "cache.layers[*].keys[2] > 5"])
def test_a_star_is_refused_with_words(text: str) -> None:
    with pytest.raises(UsageError, match=r"several sizes\. Name one of them"):
        Expression(text)


def test_the_names_of_a_condition_are_known() -> None:
    references = Expression("a.b[0] > c and xs['k'][1] < 2").references
    assert [reference[0] for reference in references] == ["a.b[0]", "c", "xs.k[1]"]
    assert references[0] == ("a.b[0]", "a.b.0")


@pytest.mark.parametrize("text", ["c['h.0'][1] > 2", "c.h.0[1] > 2", "c['h.0.x-y'][1] > 2"])
def test_a_key_with_a_dot_is_a_name(text: str) -> None:
    (reference,) = Expression(text).references
    assert reference[0] in ("c.h.0[1]", "c.h.0.x-y[1]")


PARTS = st.sampled_from(
    ["n", "x[0]", "3", " and ", " or ", "not ", "(", ")", ">", "==", "-", "*", "%", "//", ".",
     "lambda", "__class__", "[", "]", "'", ",", ":", "import os", "\n"]
)  # fmt: skip


@given(st.lists(PARTS, max_size=30).map("".join))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        expression = Expression(text)
    except UsageError:
        return
    assert expression.holds(SIZES) in (True, False)
