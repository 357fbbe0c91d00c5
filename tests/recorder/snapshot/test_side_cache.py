"""Leaves that look like those of the call before, and all others."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import Novelty, record
from calltape_recorder.capture.structures import Structure
from calltape_recorder.snapshot import side_cache as module
from calltape_recorder.snapshot.facts import Alias
from calltape_recorder.snapshot.side import outline_of
from calltape_recorder.snapshot.side_cache import CachedSide, SideCache, SideGuards
from calltape_recorder.snapshot.side_facts import SideFacts, read_facts
from tests.recorder.models import Echo
from tests.recorder.parts import recording
from tests.recorder.reading import read


def structure_of(count: int, wanted: Any = True) -> Structure:
    return Structure(b"", tuple(f"args.{index}" for index in range(count)), {}, wanted)


def learned(leaves: list[torch.Tensor], structure: Structure) -> SideGuards | None:
    """What recognizes leaves that came twice in a row."""
    known = CachedSide(structure, outline_of(leaves))
    known.learn(leaves, read_facts(leaves, structure.wanted))
    return known.learn(leaves, read_facts(leaves, structure.wanted))


def parts_of(facts: SideFacts) -> tuple[Any, ...]:
    return facts.per_leaf, facts.same, facts.storages, facts.sizes


def fits(repeat: SideGuards, leaves: list[torch.Tensor]) -> bool:
    return repeat.accept(leaves) and repeat.accept_memory(leaves)


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
@pytest.mark.parametrize("count", [2, 17])
@pytest.mark.parametrize("name", UNLIKE)
def test_what_looks_different_is_not_recognized(name: str, count: int, grad: bool) -> None:
    """Many leaves share guards with those of other sizes, which have another outline."""
    if count > 16 and name.startswith("another"):
        return
    plain = [torch.randn(4, 8) for _ in range(count)]
    with torch.set_grad_enabled(grad):
        repeat = learned(plain, structure_of(count))
        assert repeat is not None
        assert repeat.learn_call(tuple(plain), {}, plain, is_training=False) == (count <= 16)
        leaves = [torch.randn(4, 8) for _ in range(count)]
        assert fits(repeat, leaves)
        assert parts_of(repeat.facts) == parts_of(read_facts(leaves, True))
        assert not fits(repeat, [UNLIKE[name], *leaves[1:]])
        assert not fits(repeat, [*leaves[:-1], UNLIKE[name]])


@pytest.mark.parametrize("options", [{}, {"values": "none"}], ids=str)
def test_a_result_with_attributes_of_its_own_is_not_taken_for_one_without(
    options: dict[str, Any], tmp_path: Path
) -> None:
    class Marking(torch.nn.Module):
        def forward(self, x: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
            y = x + 1
            if len(marks):
                y.foo = 3  # type: ignore[attr-defined]
            return y

    model = Marking()
    with record(model, tmp_path / "t.tape", **options):
        for marks in (1, 1, 1, 1, 0, 0, 0, 0):
            model(torch.ones(3), torch.ones(marks))
    calls = read(tmp_path / "t.tape").calls
    structures = [call.record.outputs.structure for call in calls if call.record.outputs]
    assert [b"foo" in structure for structure in structures] == [True] * 4 + [False] * 4


def test_what_is_forgotten_meanwhile_recognizes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_SIDES", 1)
    side_cache, structure = SideCache(), structure_of(1)
    leaves = [torch.ones(3)]
    known = side_cache.of(structure, outline_of(leaves))
    assert known is not None
    known.learn(leaves, read_facts(leaves, True))
    side_cache.of(structure, outline_of([torch.ones(4)]))  # by another thread
    assert known.learn(leaves, read_facts(leaves, True)) is None
    assert known.guards is None
    assert known.side_without_leaves().is_template


@pytest.mark.parametrize("count", [3, 17])
def test_what_comes_again_in_the_next_call_has_guards(count: int, tmp_path: Path) -> None:
    """Those of each length of a growing cache kept the heap of the host from shrinking."""
    model = Wide()
    with recording(model, tmp_path / "t.tape", values="none") as parts:
        for _ in range(3):
            for length in range(1, 5):
                model(*[torch.ones(length) for _ in range(count)])
        assert (parts.snapshots.cache.latest_call is None) == (count > 16)
        for _ in range(3):
            model(*[torch.ones(9) for _ in range(count)])
        assert parts.snapshots.cache.latest_call is not None
        assert parts.snapshots.cache.latest_call.accept([torch.ones(9) for _ in range(count)])
    assert len(read(tmp_path / "t.tape").calls) == 3 * 4 + 3


class Wide(torch.nn.Module):
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return tensors[0].sum()


class Alone(torch.nn.Module):
    def forward(self) -> list[torch.Tensor]:
        return []


@pytest.mark.parametrize("options", [{}, {"values": "none"}, {"keep": Novelty()}])
def test_calls_without_arguments_are_recorded(options: dict[str, Any], tmp_path: Path) -> None:
    model = Alone()
    with record(model, tmp_path / "t.tape", **options) as recorder:
        for _ in range(5):
            assert model() == []
    stats = recorder.stats()
    assert (stats.seen, stats.lost) == (5, {})
    assert len(read(tmp_path / "t.tape").calls) == stats.kept >= 1


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("count", [2, 3])
def test_leaves_that_share_memory_are_not_recognized(wanted: bool, count: int) -> None:
    structure = structure_of(count, wanted)
    repeat = learned([torch.randn(4) for _ in range(count)], structure)
    assert repeat is not None
    both = torch.randn(4 * count)
    assert not fits(repeat, list(both.split(4)))
    aliases = tuple(Alias(0, 16 * number) for number in range(count))
    assert read_facts(list(both.split(4)), wanted).storages == aliases
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
                    read = read_facts(leaves, wanted)
                    alone = count == 1 and repeat.accept_result(leaves[0])
                assert not found or parts_of(repeat.facts) == parts_of(read)
                assert found == (kind is known) or first != then
                assert count > 1 or alone == found


@pytest.mark.parametrize("name", sorted(set(UNLIKE) - {"requires grad", "inference"}))
def test_only_plain_leaves_are_learned(name: str) -> None:
    repeat = learned([UNLIKE[name]], structure_of(1))
    assert (repeat is not None) == name.startswith("another")


def test_without_guards_every_tensor_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Guards", None)
    assert learned([_base], structure_of(1)) is None


ODD = """
import sys, torch
from calltape_recorder.capture.structures import Structure
from calltape_recorder.snapshot.facts import Alias
from calltape_recorder.snapshot.side_cache import CachedSide
from calltape_recorder.snapshot.side_facts import read_facts
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
    known = CachedSide(structure, ())
    known.learn(leaves, read_facts(leaves, True))
    return known.learn(leaves, read_facts(leaves, True))

both, one = learned(pair, plain), learned(single, plain[:1])
assert both is not None and one is not None
asked = 0
for first in [*odd, a]:
    one.accept_result(first)
    one.accept([first]) and one.accept_memory([first])
    mine = learned(single, [first])
    for second in [*odd, torch.randn(4, 4)]:
        for leaves in ([first, second], [second, first]):
            asked += both.accept(leaves) and both.accept_memory(leaves)
            made = learned(pair, leaves)
            for others in (leaves, plain):
                if made is not None and made.accept(others):
                    made.accept_memory(others)
        if mine is not None:
            mine.accept_result(second)
print("alive", asked)
"""


@pytest.mark.integration
def test_no_kind_of_tensor_ends_the_process() -> None:
    command = [sys.executable, "-W", "ignore", "-c", ODD]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("alive ")


def test_calls_are_counted_once_also_of_what_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_SIDES", 1)
    side_cache, structure = SideCache(), structure_of(1)

    def told() -> list[int]:
        return [calls for _, _, calls in side_cache.counted()]

    counted, late = 0, side_cache.of(structure, outline_of([torch.ones(3)]))
    assert late is not None
    for size in (4, 5, 4):
        known = side_cache.of(structure, outline_of([torch.ones(size)]))
        assert known is not None
        for _ in range(3):
            next(known.calls)
        del known
        counted += sum(told())
    assert counted == 9
    next(late.calls)  # by a thread that had found it before
    assert list(side_cache.counted()) == [(structure, late.outline, 1)]
    assert (len(side_cache), side_cache.evicted) == (2, 1)  # somebody holds it
    next(late.calls)
    del late
    assert (told(), told()) == ([1], [])
    assert (len(side_cache), side_cache.evicted) == (1, 0)


def test_how_many_are_remembered_is_bounded() -> None:
    side_cache = SideCache()
    structures = [structure_of(1) for _ in range(3000)]
    for structure in structures:
        leaves = [torch.empty(3)]
        known = side_cache.of(structure, outline_of(leaves))
        assert known is not None
        assert known is side_cache.of(structure, outline_of(leaves))
        assert known.learn(leaves, read_facts(leaves, True)) is None
        assert known.learn(leaves, read_facts(leaves, True)) is not None
    assert side_cache.evicted == 3000 - 1024
    for _ in range(2):
        assert list(side_cache.counted()) == []
    assert len(side_cache) == 1024


@pytest.mark.parametrize("options", [{}, {"values": "none"}])
def test_a_host_without_a_collector_does_not_grow(tmp_path: Path, options: dict[str, Any]) -> None:
    """Servers freeze the collector, or switch it off: nothing of a call may wait for it."""
    model = Echo()
    with record(model, tmp_path / "t.tape", **options):
        for size in range(1, 30):
            model([torch.ones(2, size).t(), None])
        gc.collect()
        gc.disable()
        try:
            for size in range(1, 400):
                model([torch.ones(2, size).t(), None])
            assert gc.collect() < 200
        finally:
            gc.enable()


def test_a_growing_cache_is_recognized_when_its_lengths_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each generation goes through the same lengths. What was read of the tensors of one is not
    read again for the next."""
    looks: list[int] = []
    monkeypatch.setattr(
        "calltape_recorder.snapshot.snapshots.read_facts",
        lambda *args: looks.append(1) or read_facts(*args),
    )
    model, counts = Echo(), list[int]()
    with record(model, tmp_path / "t.tape", values="none"):
        for _ in range(4):
            for length in range(1, 20):
                model([torch.ones(2, length) for _ in range(6)])
            counts.append(len(looks))
    assert counts[0] >= 19
    assert counts[1] == counts[2] == counts[3]
    assert len(read(tmp_path / "t.tape").calls) == 4 * 19
