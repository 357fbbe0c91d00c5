"""What decides without running whether a call is for a program says what running it would say."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from calltape_analyzer import ExportOptions, Programs, export
from calltape_analyzer.arguments.samples import LiveCall
from calltape_analyzer.foreign_errors import (
    AssertionFailed,
    ErrorMeaning,
    OtherAssertion,
    Raised,
    failure_of,
)
from calltape_analyzer.programs.conditions import Conditions, Sized
from calltape_analyzer.programs.program import Program
from tests.analyzer.exported import Call, call, taped


class Equal(torch.nn.Module):
    def forward(self, x, y):
        return x + y


class Short(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y if x.shape[0] <= 4 else x.prod() - y


class Between(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y if 3 <= x.shape[0] < 9 and y.shape[0] > 2 else x.prod() - y


class Halved(torch.nn.Module):
    def forward(self, x, y):
        return x.view(-1, 2).sum(0)[:1] + y


class Even(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y if (x.shape[0] + y.shape[0]) % 2 == 0 else x.prod() - y


class Longer(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y if x.shape[0] > y.shape[0] + 1 else x.prod() - y


class Times(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y if x.shape[0] == 2 * y.shape[0] else x.prod() - y


class Rooted(torch.nn.Module):
    def forward(self, x, y):
        side = int(x.shape[0] ** 0.5)
        return x.view(side, side).sum(0)[:1] + y


class Divided(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y if x.shape[0] // 3 == 2 else x.prod() - y


class Constant(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y if x.shape[0] == 6 else x.prod() - y


class Unequal(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y if x.shape[0] != 7 else x.prod() - y


class Tabled(torch.nn.Module):
    """Slices a table: the size must be at most the table's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(8.0))

    def forward(self, x, y):
        return (x + self.table[: x.shape[0]]).sum() + y


MODELS: dict[type[torch.nn.Module], tuple[list[tuple[int, int]], Any]] = {
    Equal: ([(4, 4), (6, 6)], None),
    Short: ([(3, 5), (4, 6)], None),
    Between: ([(5, 7), (6, 4)], None),
    Halved: ([(4, 3), (6, 5)], None),
    Even: ([(4, 6), (6, 2)], None),
    Longer: ([(5, 2), (7, 3)], None),
    Times: ([(4, 2), (6, 3)], None),
    Rooted: ([(4, 3), (9, 5)], None),
    Divided: ([(6, 3), (8, 5)], None),
    Constant: ([(6, 3), (6, 5)], None),
    Unequal: ([(4, 3), (6, 5)], None),
    Tabled: ([(4, 3), (6, 5)], None),
}


def tensors(m: int, n: int) -> Call:
    return call(torch.randn(m), torch.randn(n))


@functools.cache
def exported(cls: type[torch.nn.Module]) -> Programs:
    calls = [tensors(*sizes) for sizes in MODELS[cls][0]]
    with tempfile.TemporaryDirectory() as folder:
        return export(
            taped(Path(folder), cls(), calls), cls(), options=ExportOptions(merge="never")
        )


def agrees(program: Program, live: LiveCall) -> bool:
    rejection = program.conditions_reject(live.placed.row)
    try:
        program.outputs(live.sample)
    except Exception as error:  # torch's own, of any type
        assert rejection is not None, f"accepted, and {type(error).__name__}: {error}"  # noqa: PT017
        return False
    assert rejection is None, f"rejected, and runs: {rejection}"
    return True


sizes = st.integers(0, 14)


@pytest.mark.integration
@pytest.mark.parametrize("cls", MODELS)
@given(m=sizes, n=sizes)
@example(m=1, n=1)
@example(m=0, n=2)
def test_conditions_say_what_running_says(cls: type[torch.nn.Module], m: int, n: int) -> None:
    programs = exported(cls)
    args, kwargs = tensors(m, n)
    live = LiveCall(args, kwargs, programs.sorter)
    for program in programs.values():
        agrees(program, live)


@pytest.mark.parametrize("cls", MODELS)
def test_recorded_sizes_are_accepted(cls: type[torch.nn.Module]) -> None:
    programs = exported(cls)
    for recorded in MODELS[cls][0]:
        args, kwargs = tensors(*recorded)
        live = LiveCall(args, kwargs, programs.sorter)
        assert any(agrees(program, live) for program in programs.values())


class OfInt(torch.nn.Module):
    def forward(self, x, n):
        return x * n if n > 3 else x - n


class OfRange(torch.nn.Module):
    def forward(self, x, n):
        return x[:n] if n % 2 == 0 else x


INTS: dict[type[torch.nn.Module], list[tuple[int, int]]] = {
    OfInt: [(3, 5), (6, 9)],
    OfRange: [(7, 2), (9, 4)],
}


@functools.cache
def exported_with_ints(cls: type[torch.nn.Module]) -> Programs:
    calls = [call(torch.randn(m), n) for m, n in INTS[cls]]
    with tempfile.TemporaryDirectory() as folder:
        return export(taped(Path(folder), cls(), calls), cls())


@pytest.mark.integration
@pytest.mark.parametrize("cls", INTS)
@given(m=st.integers(2, 12), n=st.integers(0, 12))
def test_conditions_on_ints_say_what_running_says(
    cls: type[torch.nn.Module], m: int, n: int
) -> None:
    programs = exported_with_ints(cls)
    live = LiveCall((torch.randn(m), n), {}, programs.sorter)
    for program in programs.values():
        agrees(program, live)


# --- the evaluator -------------------------------------------------------------------------------

ARGUMENTS = {"x": Sized("float32", (4, 3)), "n": 5, "xs": [Sized("float32", (2,))]}


def rejection_of(*guards: str) -> str | None:
    error = Conditions((), {}, guards).reject([], ARGUMENTS)
    return None if error is None else str(error)


@pytest.mark.parametrize(
    "guard",
    [
        "L['x'].size()[0] == 4",
        "L['x'].size()[0] <= 4 and L['n'] > 4",
        "not (L['n'] == 4)",
        "L['x'].size()[0] % 2 == 0",
        "2 <= L['x'].size()[1] < L['n']",
        "L['xs'][0].size()[0]*2 == L['x'].size()[0]",
        "L['n']//2 == 2 or False",
        "-L['n'] < 0",
        "math.trunc(torch.sym_float(L['x'].size()[0]) ** 0.5) == 2",
    ],
)
def test_condition_that_holds_refuses_nothing(guard: str) -> None:
    assert rejection_of(guard) is None
    assert rejection_of(f"not ({guard})") is not None


@pytest.mark.parametrize(
    ("guard", "text"),
    [
        ("L['x'].size()[0] <= 3", "x[0] is at most 3"),
        ("L['xs'][0].size()[0] == 4", "xs.0[0] is 4"),
        ("3 >= L['x'].size()[0]", "x[0] is at most 3"),
        ("L['x'].size()[0] <= 3 and L['n'] > 4", "x[0] is at most 3, and n is more than 4"),
        ("((-1)*(((-1)*L['x'].size()[0]) // 4)) != 1", "ceil(x[0] / 4) is not 1"),
        (
            "torch.sym_max(1, torch.sym_max(L['x'].size()[0], L['n'])) != L['n']",
            "max(1, x[0], n) is not n",
        ),
        (
            "(L['x'].size()[0] == 3 or L['n'] == 4) and L['n'] > 9",
            "(x[0] is 3, or n is 4), and n is more than 9",
        ),
        ("((-1) + L['x'].size()[0]) // 2 == 7", "(x[0] - 1) // 2 is 7"),
        ("torch.sym_not(L['x'].size()[0] == 4)", "it is not so that x[0] is 4"),
    ],
)
def test_rejection_reads_like_the_condition(guard: str, text: str) -> None:
    assert rejection_of(guard) == f"the program is for calls in which {text}"


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("Ne(u0, 1)", "a number computed from the inputs is not 1"),
        ("u4 >= 22", "a number computed from the inputs is at least 22"),
        ("1.0 < zuf0", "a number computed from the inputs is more than 1.0"),
        ("2*zuf0 <= 1.0", "a number computed from the inputs is at most 0.5"),
        (
            "Ne(ToFloat(floor(zuf0)), zuf0)",
            "float(floor(number)) is not number, where number follows from values",
        ),
        ("Eq(ToFloat(s77), zuf0)", "float(input) is number, where number follows from values"),
        ("0 <= ((s27//u1))", "input // number is at least 0, where number follows from values"),
        (
            "(1 <= ((s27//u1))) & (Eq(u2, u1))",
            "input // number_1 is at least 1, and number_2 is number_1, "
            "where number_1 and number_2 follow from values",
        ),
        (
            "(" * 400 + "u0" + ")" * 400,
            "(" * 400 + "number" + ")" * 400 + ", where number follows from values",
        ),
    ],
)
def test_an_assertion_reads_like_a_sentence(condition: str, words: str) -> None:
    assert str(AssertionFailed(condition)) == f"the program is for calls in which {words}"
    placed = AssertionFailed(condition, "the model asks at values.py:3, in forward: if n > 1:")
    assert str(placed).endswith(f"{words}: the model asks at values.py:3, in forward: if n > 1:")


def test_an_assertion_of_torch_is_known() -> None:
    text = "Runtime assertion failed for expression Ne(u0, 1) on node 'ge_1'"
    assert failure_of(RuntimeError(text)) == AssertionFailed("Ne(u0, 1)")
    placed = failure_of(RuntimeError(f"{text}: the model asks at a.py:3, in forward: x.item()"))
    assert isinstance(placed, AssertionFailed)
    assert placed.place == "the model asks at a.py:3, in forward: x.item()"
    assert placed.kinds == (ErrorMeaning.NEEDS_VALUE,)
    assert failure_of(RuntimeError("Runtime assertion failed: so")) == OtherAssertion("so")
    assert failure_of(RuntimeError("another error")) == Raised("RuntimeError", "another error")


HOSTILE = [
    "__import__('os').system('false')",
    "L.__class__.__mro__ == 0",
    "L['x'].__class__ == 0",
    "L['x'].size.__globals__ == 0",
    "L['x'].size().__class__ == 0",
    "L['x'].dtype == 0",
    "L['x'].shape[0] == 0",
    "L.clear() == 0",
    "L['xs'].clear() == 0",
    "L['x'].size(0) == 9",
    "L['x'].size(dim=0) == 9",
    "[x for x in L] == 0",
    "(lambda: 0)() == 1",
    "f'{L}' == 0",
    "2 ** 99999999 == 0",
    "(-8) ** 0.5 == 0",
    "0 ** (-1) == 0",
    "9 << 99999999 == 0",
    "'a' * 999999999 == 0",
    "(1, 2) * 999999999 == 0",
    "L['x'].size() * 999999999 == 0",
    "1 if L['n'] else 0",
    "(a := 5) == 0",
    "L['missing'] == 3",
    "L['xs'][7].size()[0] == 3",
    "L['x'].size()[9] == 3",
    "L['x'].size()['0'] == 3",
    "L['n'] // 0 == 3",
    "L['n'] % 0 == 3",
    "L['n'][0] == 3",
    "L['x'] == 3",
    "~L['n'] == 0",
    "L['x'].size()[0:2] == 0",
    "L == 0",
    "x == 0",
    "",
    "(",
    "import os",
    "L['n'] == 3; L['n'] == 4",
    "\x00",
    "(" * 500 + "0" + ")" * 500,
    "-" * 100_000 + "1 == 0",
    "not " * 20_000 + "L['n']",
    "+".join(["1"] * 20_000) + " == 0",
    "L" + "[0]" * 20_000,
    "9" * 10_000 + " == 0",
    "await L",
]


@pytest.mark.parametrize("guard", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_condition_is_ignored(guard: str) -> None:
    before = repr(ARGUMENTS)
    assert rejection_of(guard) is None
    assert repr(ARGUMENTS) == before


def test_products_of_huge_numbers_stay_small_in_time() -> None:
    guard = "*".join(["9" * 4000] * 2000) + " == 0"
    rejection_of(guard)


@pytest.mark.parametrize("digits", [10**7, 10**10, 10**30])
def test_digits_before_the_point_stay_few(digits: int) -> None:
    assert rejection_of(f"round(5, -{digits}) == 1") is None
    assert rejection_of("round(1234, -2) == 1") == (
        "the program is for calls in which round(1234, -2) is 1"
    )


@given(text=st.text(alphabet="L[]'x.size()0123 +-*/%<>=!andornt\"", max_size=60))
def test_no_text_makes_the_evaluator_fail(text: str) -> None:
    rejection_of(text)


def with_one(size: Any) -> Conditions:
    return Conditions((("x", "float32", (size, "s0")),), {"s0": (3, 9)}, ())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Sized("float32", (4, 5)), None),
        (Sized("float64", (4, 5)), "x is float64; the program takes float32"),
        (Sized("float32", (4,)), "x has rank 1; the program takes 2"),
        (Sized("float32", (5, 5)), "x[0] is 5; the program takes 4"),
        (Sized("float32", (4, 2)), "x[1] is 2; the program takes at least 3"),
        (Sized("float32", (4, 10)), "x[1] is 10; the program takes at most 9"),
    ],
)
def test_declared_sizes_are_checked(value: Sized, expected: str | None) -> None:
    error = with_one(4).reject([value], {"x": value})
    assert (None if error is None else str(error)) == expected
