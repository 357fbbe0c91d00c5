"""Arguments on one line, the same from specs and from objects."""

from __future__ import annotations

import collections
import dataclasses
import enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from calltape_analyzer import open_tape, render
from calltape_analyzer.text import printable
from tests.analyzer.tapes import write_tape

F = torch.zeros
X, Y = F(2, 8), torch.zeros(2, dtype=torch.int64)


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Batch:
    x: Any


class Color(enum.Enum):
    RED = 1


class Bits(enum.Flag):
    A = 1
    B = 2


class TinyLayer:
    def __init__(self) -> None:
        self.keys, self.values, self.seen = F(1, 2), F(1, 3), 4


class TinyCache:
    def __init__(self, count: int) -> None:
        self.layers = [TinyLayer() for _ in range(count)]
        self.offloading = False


CASES: list[tuple[Any, str]] = [
    (((), {"x": X, "labels": Y}), "{x: float32[2,8], labels: int64[2]}"),
    (((X,), {"labels": Y}), "(float32[2,8], labels=int64[2])"),
    (((X, Y), {}), "(float32[2,8], int64[2])"),
    (((), {}), "()"),
    (((F(()),), {}), "(float32[])"),
    ((([F(2), F(1), F(1), F(1), F(3), F(3)],), {}),
     "([float32[2], float32[1] ×3, float32[3], float32[3]])"),
    ((([X, {"a": Y}],), {}), "([float32[2,8], {a: int64[2]}])"),
    ((((X,), ()), {}), "((float32[2,8],), ())"),
    (((None, True, 3, 1.5, 2j, "a'b", b"c", ...), {}),
     '(None, True, 3, 1.5, 2j, "a\'b", b\'c\', ...)'),
    (((torch.float16, torch.device("cpu"), torch.channels_last), {}),
     "(torch.float16, device(cpu), torch.channels_last)"),
    (((Color.RED, int, slice(1, None), range(3)), {}),
     "(Color.RED, <class int>, slice(1, None, None), range(0, 3, 1))"),
    (((Bits.A, Bits(0)), {}), "(Bits.A, Bits.0)"),
    (((Pair(X, 1), Batch(Y)), {}), "(Pair(a=float32[2,8], b=1), Batch(x=int64[2]))"),
    (((collections.OrderedDict(a=X), torch.Size([2, 3])), {}),
     "(OrderedDict({a: float32[2,8]}), Size(2, 3))"),
    (((TinyCache(1),), {}),
     "(TinyCache(layers=[TinyLayer(keys=float32[1,2], values=float32[1,3])]))"),
    (((TinyCache(12),), {}),
     "(TinyCache(layers=[TinyLayer(keys=float32[1,2], values=float32[1,3]) ×12]))"),
    (((TinyCache(0),), {}), "(TinyCache())"),
    ((("x" * 100, 2**2000), {}), f"('{'x' * 40}'…, int of 2001 bits)"),
    ((([F(i) for i in range(30)],), {}),
     f"([{', '.join(f'float32[{i}]' for i in range(16))}, …])"),
    (((), {"two words": 1, "a.b": 2}), "{'two words': 1, a.b: 2}"),
    ((({3: 1, (1, "x"): 2},), {}), "({3: 1, (1, 'x'): 2})"),
    (((F(2, device="meta"),), {}), "(float32[2]@meta)"),
    ((({1},), {}), "({1})"),
]  # fmt: skip
CLASSES = (Pair, Batch, Color, Bits, TinyCache, TinyLayer)


@pytest.mark.parametrize(("given", "text"), CASES, ids=[text[:40] for _, text in CASES])
def test_arguments_are_rendered_in_one_line(tmp_path: Path, given: Any, text: str) -> None:
    with open_tape(write_tape(tmp_path / "a.tape", [given]), classes=CLASSES) as tape:
        assert render(tape[0].record.inputs) == text
        assert render(tape[0].inputs) == text


def test_placeholders_look_like_what_they_stand_for(tmp_path: Path) -> None:
    given = ((TinyCache(2), Pair(X, 1), Batch(Y)), {})
    with open_tape(write_tape(tmp_path / "a.tape", [given])) as tape:
        assert render(tape[0].inputs) == render(tape[0].record.inputs)


def test_outputs_are_rendered_like_arguments(tmp_path: Path) -> None:
    with open_tape(write_tape(tmp_path / "a.tape", [((), {})], outputs=[(X, [Y])])) as tape:
        assert render(tape[0].outputs) == "(float32[2,8], [int64[2]])"
        assert render(tape[0].record.outputs) == "(float32[2,8], [int64[2]])"


def test_arrays_are_rendered_with_np() -> None:
    numpy = pytest.importorskip("numpy")
    assert render(numpy.zeros((2, 3), dtype="int16")) == "np.int16[2,3]"


def test_any_object_is_rendered_within_bounds() -> None:
    class Thing:
        def __init__(self) -> None:
            self.me = self
            self.x = X

    assert render(Thing()).startswith("Thing(me=Thing(me=")
    assert render(object()) == "object(?)"
    assert render(len) == "builtin_function_or_method(?)"


@pytest.mark.parametrize(
    "text", ["\x1b[31mred", "a\rb", "a\nb", "\u202egnp.exe", "\x9b1m", "\x7f", "\ud800", "\u2028"]
)
def test_nothing_is_rendered_that_a_terminal_obeys(tmp_path: Path, text: str) -> None:
    given = ((text, {text: 1}, text.encode("utf-8", "surrogatepass")), {text: 1})
    with open_tape(write_tape(tmp_path / "a.tape", [given])) as tape:
        for line in (render(tape[0].record.inputs), render(tape[0].inputs)):
            assert line.isprintable()
    assert printable(text).isprintable()
    assert printable("plain é 漢") == "plain é 漢"
