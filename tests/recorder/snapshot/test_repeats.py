"""Leaves that look like those of the call before, and all others."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.capture.call_view import row_of
from calltape_recorder.capture.structures import Structure
from calltape_recorder.snapshot import repeats as module
from calltape_recorder.snapshot.facts import Alias
from calltape_recorder.snapshot.look import look_at
from calltape_recorder.snapshot.repeats import Repeat, Repeats
from tests.recorder.models import Echo


def structure_of(count: int, wanted: Any = True) -> Structure:
    return Structure(b"", tuple(f"args.{index}" for index in range(count)), {}, wanted)


def learned(leaves: list[torch.Tensor], structure: Structure) -> Repeat | None:
    return Repeats().learn(structure, leaves, look_at(leaves, structure.wanted))


def fits(repeat: Repeat, leaves: list[torch.Tensor]) -> bool:
    return repeat.is_like(leaves) and repeat.has_memory_of(leaves)


def freed(size: int) -> torch.Tensor:
    tensor = torch.randn(size)
    tensor.untyped_storage().resize_(0)
    return tensor


_base = torch.randn(4, 8)
UNLIKE: dict[str, torch.Tensor] = {
    "another size": torch.randn(5, 8),
    "another rank": torch.randn(4, 8, 1),
    "another dtype": torch.randn(4, 8).double(),
    "requires grad": torch.randn(4, 8, requires_grad=True),
    "a parameter": torch.nn.Parameter(torch.randn(4, 8)),
    "strided": torch.randn(8, 4).t(),
    "expanded": torch.randn(1, 8).expand(4, 8),
    "negative": torch.ops.aten._neg_view(torch.randn(4, 8)),
    "meta": torch.randn(4, 8, device="meta"),
    "sparse": torch.randn(4, 8).to_sparse(),
    "freed": freed(32).view(4, 8),
}
with torch.inference_mode():
    UNLIKE["inference"] = torch.randn(4, 8)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", UNLIKE)
def test_what_looks_different_is_no_repeat(name: str, grad: bool) -> None:
    structure = structure_of(2)
    with torch.set_grad_enabled(grad):
        repeat = learned([_base, torch.ones(3)], structure)
        assert repeat is not None
        leaves = [torch.randn(4, 8), torch.zeros(3)]
        assert fits(repeat, leaves)
        assert repeat.look == look_at(leaves, True)
        assert not fits(repeat, [UNLIKE[name], torch.ones(3)])
        assert not (repeat.is_like([torch.ones(3), UNLIKE[name]]))


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("count", [2, 3])
def test_leaves_that_share_memory_are_no_repeat(wanted: bool, count: int) -> None:
    structure = structure_of(count, wanted)
    repeat = learned([torch.randn(4) for _ in range(count)], structure)
    assert repeat is not None
    both = torch.randn(4 * count)
    assert not fits(repeat, list(both.split(4)))
    aliases = tuple(Alias(0, 16 * number) for number in range(count))
    assert look_at(list(both.split(4)), wanted).storages == aliases
    assert learned(list(both.split(4)), structure) is None


MODES: dict[str, Any] = {
    "usual": contextlib.nullcontext,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "below autograd": torch._C._AutoDispatchBelowAutograd,
}


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("then", MODES)
@pytest.mark.parametrize("first", MODES)
def test_inference_tensors_are_told_apart_in_every_mode(
    first: str, then: str, wanted: bool
) -> None:
    ordinary = [torch.randn(4), torch.randn(4)]
    with torch.inference_mode():
        inference = [torch.randn(4), torch.randn(4)]
    for known in (ordinary, inference):
        for count in (1, 2, 20):
            leaves_of = {id(of): [of[0].clone() for _ in range(count)] for of in (ordinary,)}
            with torch.inference_mode():
                leaves_of[id(inference)] = [inference[0].clone() for _ in range(count)]
            structure = structure_of(count, wanted)
            with MODES[first]():
                repeat = learned(leaves_of[id(known)], structure)
            assert repeat is not None
            for kind in (ordinary, inference):
                leaves = leaves_of[id(kind)]
                with MODES[then]():
                    found = fits(repeat, leaves)
                    read = look_at(leaves, wanted)
                    alone = count == 1 and repeat.is_like_single(leaves[0])
                assert not found or repeat.look == read
                assert found == (kind is known) or first != then
                assert count > 1 or alone == found


@pytest.mark.parametrize("name", sorted(set(UNLIKE) - {"requires grad", "inference"}))
def test_only_plain_leaves_are_learned(name: str) -> None:
    repeat = learned([UNLIKE[name]], structure_of(1))
    assert (repeat is not None) == name.startswith("another")


def test_without_guards_there_are_no_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_Guards", None)
    assert learned([_base], structure_of(1)) is None


ODD = """
import sys, torch
from calltape_recorder.capture.structures import Structure
from calltape_recorder.snapshot.facts import Alias
from calltape_recorder.snapshot.look import look_at
from calltape_recorder.snapshot.repeats import Repeats
from torch._subclasses.fake_tensor import FakeTensorMode

a = torch.randn(4, 4)
odd = [
    a.to_sparse(), a.to_sparse_csr(), a.to_sparse_csc(), a.to_sparse_bsr((2, 2)),
    a.to_sparse_bsc((2, 2)), a.to_mkldnn(), torch.nested.nested_tensor([a, a[:2]]),
    torch.nested.nested_tensor([a, a[:2]], layout=torch.jagged),
    torch.quantize_per_tensor(a, 0.1, 0, torch.qint8), a.to("meta"), a.to(torch.complex64),
    a.to(torch.complex64).conj(), torch.ops.aten._neg_view(a), a.t(), a.expand(3, 4, 4),
    torch.empty(0),
    torch.tensor(1.0), torch.nn.Parameter(a), FakeTensorMode().from_tensor(a), a.half(),
    torch._to_functional_tensor(a), torch.nn.parameter.UninitializedParameter(),
]
with torch.inference_mode():
    odd.append(torch.randn(4, 4))
freed = torch.randn(4, 4)
freed.untyped_storage().resize_(0)
odd.append(freed)
pair, single = (Structure(b"", ("a", "b")[:n], {}, True) for n in (2, 1))
plain = [torch.randn(4, 4), torch.randn(4, 4)]

def learned(structure, leaves):
    return Repeats().learn(structure, leaves, look_at(leaves, True))

both, one = learned(pair, plain), learned(single, plain[:1])
assert both is not None and one is not None
asked = 0
for first in [*odd, a]:
    one.is_like_single(first)
    one.is_like([first]) and one.has_memory_of([first])
    mine = learned(single, [first])
    for second in [*odd, torch.randn(4, 4)]:
        for leaves in ([first, second], [second, first]):
            asked += both.is_like(leaves) and both.has_memory_of(leaves)
            made = learned(pair, leaves)
            for others in (leaves, plain):
                if made is not None and made.is_like(others):
                    made.has_memory_of(others)
        if mine is not None:
            mine.is_like_single(second)
print("alive", asked)
"""


@pytest.mark.integration
def test_no_kind_of_tensor_ends_the_process() -> None:
    command = [sys.executable, "-W", "ignore", "-c", ODD]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("alive ")


def test_calls_are_counted_once_whoever_replaced_what(monkeypatch: pytest.MonkeyPatch) -> None:
    repeats, structure = Repeats(), structure_of(1)
    one, other = [torch.randn(4)], [torch.randn(5)]
    counted = 0
    for leaves in (one, other, one):
        repeat = repeats.learn(structure, leaves, look_at(leaves, True))
        assert repeat is not None
        repeats.call = repeat
        for _ in range(3):
            next(repeat.calls)
        counted += sum(calls for _, calls in repeats.counted())
    assert counted == 9
    for _ in range(3):
        assert list(repeats.counted()) == []
    assert len(repeats) == 1
    assert repeats.call is repeats.of(structure)


def test_how_many_are_remembered_is_bounded() -> None:
    repeats = Repeats()
    for size in range(3000):
        structure, leaves = structure_of(1), [torch.empty(3)]
        assert not repeats.has_same_sizes(structure, row_of(leaves))
        assert repeats.has_same_sizes(structure, row_of(leaves))
        repeats.learn(structure, leaves, look_at(leaves, True))
        if size % 500 == 0:
            assert list(repeats.counted()) == []
    assert len(repeats) <= 2048
    assert len(repeats._rows) <= 1024
    for _ in range(4):
        assert list(repeats.counted()) == []
    assert len(repeats) < 1024  # others can come
    assert repeats.learn(structure_of(1), leaves, look_at(leaves, True)) is not None


def test_what_was_replaced_has_no_guards() -> None:
    """Caches that grow in step: each size comes again, and then another one replaces it. What is
    small and lies between large tensors that come and go keeps the heap from shrinking."""
    repeats, structure = Repeats(), structure_of(1)
    guards: list[Any] = []
    for size in range(1, 9):
        leaves = [torch.ones(size)]
        made = repeats.learn(structure, leaves, look_at(leaves, True))
        assert made is not None
        assert made.is_like(leaves)
        check: Any = made._check
        guards.append(check.__self__)
        next(made.calls)
    counts = [sys.getrefcount(one) for one in guards]
    assert counts[:-1] == [counts[-1] - 1] * 7  # the latest repeat alone has its guards
    assert sum(calls for _, calls in repeats.counted()) == 8


def test_what_calls_on_the_tape_use_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not counted by their repeat, so it must know of them in another way."""
    monkeypatch.setattr(module, "MAX_REPEATS", 8)
    model, x = Echo(), torch.ones(3)
    with record(model, tmp_path / "t.tape", values="none") as recorder:
        pipeline: Any = recorder._handler.pipeline
        repeats: Repeats = pipeline.repeats

        def serve(names: list[str]) -> None:
            for name in names:
                for _ in range(3):
                    model(**{name: x})
            assert recorder.flush()
            assert pipeline.writer.ask(lambda: list(repeats.counted()), 20)

        serve([f"name_{letter}" for letter in "abcde"])
        assert len(repeats._known) > 4
        used = repeats.call
        assert used is not None
        for _ in range(4):
            serve(["name_e"])
        assert repeats.call is used
        assert len(repeats._known) < 5  # the others are forgotten
