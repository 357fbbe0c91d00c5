"""What variants cost grows like what they are about: leaves, names, symbols, calls, variants.

Work is counted in executed instructions of this package, never in time: machines are shared.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import calltape_analyzer
from calltape_analyzer import Tape, open_tape
from tests.analyzer.observed import Anything
from tests.analyzer.tapes import write_tape

pytestmark = pytest.mark.integration

HERE = str(Path(calltape_analyzer.__file__).parent)
PER_DOUBLING = 2.6

Calls = list[dict[str, Any]]


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def named(make: Callable[[int], Any], count: int) -> dict[str, Any]:
    """One argument per number."""
    return {f"a{i:04d}": make(i) for i in range(count)}


def names_in_half_the_calls(n: int) -> Calls:
    chance = random.Random(1)
    every = [(f"a{i:04d}", empty(3, 4)) for i in range(n)]
    return [dict(pair for pair in every if chance.random() < 0.5) for _ in range(6)]


def names_of_one_call_each(n: int) -> Calls:
    return [{"x": empty(3), f"only_{i}": empty(2)} for i in range(n)]


def keys_of_one_call_each(n: int) -> Calls:
    # Eight at each place, and no more: then they would be data, and the calls one variant.
    return [{f"x_{i // 8}": {f"only_{i % 8}": empty(2)}} for i in range(n)]


def names_that_are_one(n: int) -> Calls:
    # What is not a letter is "_": all inputs and all symbols want one name.
    return [{"x": {chr(0x4E00 + i): empty(i * i + c * (i + 1)) for i in range(n)}} for c in (2, 3)]


def symbols(n: int) -> Calls:
    chance = random.Random(1)
    return [named(lambda _: empty(chance.randint(2, 9999)), n) for _ in range(4)]


def symbols_that_follow(n: int) -> Calls:
    def of(call: int) -> dict[str, Any]:
        return named(lambda i: empty(call * (i % 9 + 1) + i), n)

    return [of(call) for call in (2, 3, 5, 8)]


def symbols_that_only_others_tell_apart(n: int) -> Calls:
    return [named(lambda _: empty(7), n), {**named(lambda i: empty(8 + i), n), "y": empty(2)}]


def leaves_of_one_call(n: int) -> Calls:
    return [{"x": [empty(i + 2) for i in range(n)]}]


def dimensions_of_one_or_more(n: int) -> Calls:
    chance = random.Random(1)
    other = itertools.count(2)  # none equals another, so that nothing is broadcast

    def size(_: int) -> torch.Tensor:
        return empty(1 if chance.random() < 0.3 else next(other))

    return [named(size, n) for _ in range(4)]


def ints(n: int) -> Calls:
    chance = random.Random(1)
    return [{"x": empty(3), **named(lambda _: chance.randint(0, 9**9), n)} for _ in range(3)]


def texts(n: int) -> Calls:
    chance = random.Random(1)
    return [{"x": empty(3), **named(lambda _: chance.choice("ab"), n)} for _ in range(9)]


def combinations_of_texts(n: int) -> Calls:
    chance = random.Random(1)
    return [{"x": empty(3), **named(lambda _: chance.choice("ab"), 12)} for _ in range(n)]


def calls(n: int) -> Calls:
    return [{"x": empty(c % 97 + 1, c + 2), "y": empty(c % 97 + c + 3)} for c in range(n)]


@pytest.mark.parametrize(
    ("traffic", "n"),
    [
        (names_in_half_the_calls, 60),
        (names_of_one_call_each, 30),
        (keys_of_one_call_each, 30),
        (names_that_are_one, 60),
        (symbols, 70),
        (symbols_that_follow, 70),
        (symbols_that_only_others_tell_apart, 70),
        (leaves_of_one_call, 70),
        (dimensions_of_one_or_more, 70),
        (ints, 60),
        (texts, 60),
        (combinations_of_texts, 100),
        (calls, 100),
    ],
)
@pytest.mark.parametrize("doublings", [1, pytest.param(2, marks=pytest.mark.integration)])
def test_cost_grows_like_what_it_is_of(
    tmp_path: Path, traffic: Callable[[int], Calls], n: int, doublings: int
) -> None:
    tapes = [
        open_tape(write_tape(tmp_path / f"{size}.tape", traffic(size), target=Anything()))
        for size in (2, n * doublings, 2 * n * doublings)
    ]
    answer(tapes.pop(0))  # what is imported, or made once, is not counted
    first, second = (instructions(lambda tape=tape: answer(tape)) for tape in tapes)
    assert second <= PER_DOUBLING * first


def answer(tape: Tape) -> None:
    variants = tape.variants()
    for variant in variants:
        _ = variant.findings
    variants[0].infer_dynamic_shapes(dim="names")
    variants[0].infer_arguments()


def instructions(work: Callable[[], object]) -> int:
    """How many instructions of this package are executed."""
    count = 0

    def each(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            return each
        if event == "call" and not frame.f_code.co_filename.startswith(HERE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return each

    before = sys.gettrace()
    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
