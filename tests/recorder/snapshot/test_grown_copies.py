"""Of a cache that grows only the tail is written, and each value is right."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import open_tape
from calltape_recorder import record
from calltape_recorder.snapshot import earlier_copies
from calltape_recorder.snapshot.buffers import packed_numbers
from calltape_recorder.snapshot.copies import pieces_of
from calltape_recorder.snapshot.grown_copies import axis_of_growth, grown
from calltape_recorder.write import encoding
from tests.recorder.reading import read
from tests.recorder.waiting import in_threads

KIB = 1024


class Decoder(torch.nn.Module):
    """Each step adds its tokens to the cache, of shape [batch, heads, tokens, elements]."""

    def forward(self, x: torch.Tensor, cache: Any = None, axis: int = 2) -> Any:
        return x if cache is None else torch.cat([cache, x], dim=axis)


def tokens(count: int, heads: int = 4, width: int = 64) -> torch.Tensor:
    return torch.rand(2, heads, count, width)


def generated(path: Path, steps: int, others: int = 0) -> list[list[Any]]:
    """Records a generation; gives copies of what each call got and returned. ``others`` tokens come
    to the cache in between."""
    model, seen = Decoder(), []
    with record(model, path), torch.inference_mode():
        cache = model(tokens(20))
        for _ in range(steps):
            if others:
                cache = torch.cat([cache, tokens(others)], dim=2)
            x = tokens(1)
            seen.append([x.clone(), cache.clone()])
            cache = model(x, cache)
            seen[-1].append(cache.clone())
    return seen


def has_all(path: Path, seen: list[list[Any]], first: int = 1) -> None:
    """The values of these calls are on the tape, by both readers."""
    calls = {call.record.call: call for call in read(path).calls}
    with open_tape(path) as tape:
        assert tape.verify() == []
        for number, (x, before, after) in enumerate(seen, first):
            call, other = calls[number], tape.calls[number]
            assert torch.equal(call.input(0), x)
            assert torch.equal(call.input(1), before)
            assert torch.equal(call.output(0), after)
            assert torch.equal(other.inputs.args[1], before)
            assert torch.equal(other.outputs, after)


@pytest.mark.parametrize("others", [0, 1])
def test_a_generation_costs_what_its_tokens_cost(tmp_path: Path, others: int) -> None:
    """Also if others grow the cache between two calls, so that an argument is more than what the
    call before returned."""
    path, steps = tmp_path / "a.tape", 60
    seen = generated(path, steps, others=others)
    has_all(path, seen)
    whole = sum(after.nbytes for _, _, after in seen)
    each = seen[0][0].nbytes  # a token is written as an argument and in the cache
    assert path.stat().st_size < (0.16 if others else 0.1) * whole
    assert others or path.stat().st_size < steps * (2 * each + 3 * KIB) + whole / 25
    tails = [max(map(len, call.record.at), default=0) == 4 for call in read(path).calls]
    assert tails.count(True) > steps * 0.8


@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize(("times", "written"), [(5, (1, 3)), (3, (9, 50))])
def test_caches_that_grow_at_the_same_time(
    tmp_path: Path, requests: int, times: int, written: tuple[int, int]
) -> None:
    """All of them together have to fit: docs/production.md says how."""
    path, model = tmp_path / "a.tape", Decoder()
    caches = [tokens(100) for _ in range(requests)]
    most = times * sum(cache.nbytes for cache in caches) * 112 // 100
    with record(model, path, max_queue_bytes=most) as recorder, torch.inference_mode():
        for _ in range(12):
            for at, cache in enumerate(caches):
                caches[at] = model(tokens(1), cache)
                assert recorder.flush()
    assert recorder.stats().kept == 12 * requests
    low, high = written
    assert low < path.stat().st_size / sum(cache.nbytes for cache in caches) < high


def test_tails_are_written_as_a_whole_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert earlier_copies.MAX_TAILS == 32
    monkeypatch.setattr(earlier_copies, "MAX_TAILS", 6)
    path = tmp_path / "a.tape"
    generated(path, 22)
    tails = [any(len(one) == 4 for one in call.record.at) for call in read(path).calls]
    whole = [number for number, is_tail in enumerate(tails) if not is_tail]
    assert whole == [0, 7, 14, 21]


@pytest.mark.parametrize("values", ["all", "none"])
def test_ranges_include_the_integers_by_which_a_tensor_grew(tmp_path: Path, values: Any) -> None:
    model, ids, path = Decoder(), torch.arange(3, 8003).reshape(1, 8000), tmp_path / "a.tape"
    with record(model, path, values=values) as recorder:
        for length in (4000, 6000, 8000):
            model(ids[:, :length].contiguous())
    assert recorder.stats().kept == 3
    ranges = [call.ranges[0] for call in read(path).calls]
    assert ranges == [(3, 4002), (3, 6002), (3, 8002)]


def test_caches_of_several_threads_grow_apart(tmp_path: Path) -> None:
    """Threads that go on from one cache."""
    path, model, seen = tmp_path / "a.tape", Decoder(), {}
    prefix = tokens(20)

    def generate(name: int) -> None:
        cache = prefix
        for step in range(20):
            cache = model(torch.full((2, 4, 1, 64), float(name)), cache)
            seen[name, step] = cache.clone()

    with record(model, path):
        in_threads(generate, range(4))
    with open_tape(path) as tape:
        assert tape.verify() == []
        for call in tape:
            name, step = int(call.inputs.args[0][0, 0, 0, 0]), call.inputs.args[1].shape[2] - 20
            assert torch.equal(call.outputs, seen[name, step])


@pytest.mark.integration
@given(st.integers(0, 2**32))
def test_caches_that_grow_in_any_way_keep_their_values(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance, model, seen = random.Random(seed), Decoder(), []
    path = tmp_path_factory.mktemp("a") / "a.tape"
    with record(model, path) as recorder:
        # Tensors of zeros begin alike, however they grew.
        filled = chance.choice((torch.rand, torch.zeros, torch.ones))
        caches = [model(filled((2, 4, chance.randint(8, 20), 64)))]
        for _ in range(30):
            cache = chance.choice(caches[-3:])
            axis = chance.choice((0, 1, 2, 2, 2, 2))
            shape = list(cache.shape)
            shape[axis] = chance.randint(1, 3)
            x = filled(shape)
            if chance.random() < 0.1:
                cache.view(-1)[chance.randrange(cache.numel())] = 7.0
            seen.append([x, cache.clone()])
            caches.append(model(x, cache, axis))
            seen[-1].append(caches[-1].clone())
            if chance.random() < 0.2:
                recorder.flush()
    has_all(path, seen)


@pytest.mark.parametrize("fill", [torch.zeros, torch.ones])
@pytest.mark.parametrize(
    "shapes",
    [
        [(1, 1200), (1, 1201), (2, 1201), (2, 1202), (3, 1202)],
        [(3, 4000), (4, 4000), (4, 4001), (4, 4002)],
        [(2, 512), (2, 544), (3, 544), (3, 600)],
        [(1024,), (5_000_000,), (5_000_001,)],
    ],
)
def test_masks_that_grow_along_any_axis_keep_their_values(
    tmp_path: Path, fill: Any, shapes: list[tuple[int, ...]]
) -> None:
    model, path = Decoder(), tmp_path / "a.tape"
    values = [fill(*shape) for shape in shapes]
    for at, value in enumerate(values):
        value.view(-1)[-1] = at
    with record(model, path) as recorder:
        for value in values:
            model(value)
    assert recorder.stats().kept == len(shapes)
    with open_tape(path) as tape:
        assert tape.verify() == []
        for call, value in zip(tape, values, strict=True):
            assert torch.equal(call.inputs.args[0], value)
            assert torch.equal(call.outputs, value)


@pytest.mark.parametrize("most", [1, 4, 64])
def test_a_copy_whose_place_is_forgotten_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(encoding, "MAX_ORIGINS", most)
    whole = generated(tmp_path / "a.tape", 20)
    has_all(tmp_path / "a.tape", whole)
    size = (tmp_path / "a.tape").stat().st_size
    assert (size > whole[-1][2].nbytes * 4) == (most == 1)


def test_a_part_that_is_damaged_costs_what_is_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tape"
    seen = generated(path, 40)
    data = bytearray(path.read_bytes())
    at = data.index(seen[9][0].numpy().tobytes()[:64])  # the token of call 10, as its argument
    data[at] ^= 1
    path.write_bytes(data)
    with open_tape(path) as tape:
        assert len(tape) == 41
        damaged = [number for number in range(41) if not _is_whole(tape, number)]
        assert damaged == list(range(10, 34))  # the next one that is written as a whole is call 33
        assert any("call 10" in str(error) for error in tape.damage)


def _is_whole(tape: Any, number: int) -> bool:
    try:
        tape.calls[number].check()
    except Exception:
        return False
    return True


@pytest.mark.parametrize(
    ("before", "now", "axis"),
    [
        ((2, 3), (2, 4), 1), ((2, 3), (3, 3), 0), ((2, 3), (2, 3), None), ((2, 3), (3, 4), None),
        ((2, 3), (2, 2), None), ((2, 0), (2, 1), None), ((2,), (2, 1), None), ((), (), None),
        ((1, 2000, 3), (1, 2000, 4), None), ((1, 2000, 3), (1, 2001, 3), 1),
    ],
)  # fmt: skip
def test_only_growth_along_one_axis_is_found(
    before: tuple[int, ...], now: tuple[int, ...], axis: int | None
) -> None:
    assert axis_of_growth(before, now) == axis


@pytest.mark.parametrize("count", [1, 8])
def test_a_small_copy_holds_little_more_than_its_tensor(count: int) -> None:
    """A call that waits reserves the size of the tensor."""
    before, now = torch.rand(count, 500), torch.rand(count, 1000)
    now[:, :500] = before
    piece = bytearray(before.numpy().tobytes())
    size = now.nbytes
    span, shape = (0, len(piece), 0, 0, 0), tuple(before.shape)
    copy = grown(piece, span, shape, now.data_ptr(), tuple(now.shape), size)
    assert copy is not None
    (read,) = pieces_of([copy[0].memory], packed_numbers([*copy[1]]))
    assert bytes(read.data) == now.numpy().tobytes()
    assert size <= len(read.memory) <= size * 9 // 8
