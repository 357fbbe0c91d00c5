"""Damage at random: whatever happens to the bytes of a tape, what is read is what was recorded,
or a TapeError says that it cannot be."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from calltape_analyzer import Placeholder, TapeError, open_tape, render
from tests.analyzer.tapes import Recorded, write_tape

MEBIBYTE = 1024 * 1024
SECONDS_PER_TAPE = 5.0  # a machine may be busy; a hang is for ever


class Pair(NamedTuple):
    a: Any
    b: Any


def recorded_calls() -> list[Recorded]:
    torch.manual_seed(0)
    x = torch.randn(2, 3)
    cache = {"layers": [Pair(torch.randn(1, 2), torch.randn(1, 2).to(torch.bfloat16))]}
    return [
        Recorded(args=(x, x), kwargs={"n": 3, "cache": cache}, outputs=torch.randn(2)),
        Recorded(
            args=(torch.randn(2, 2, 2, 2).to(memory_format=torch.channels_last),),
            kwargs={"mask": torch.ones(3, 1, dtype=torch.bool).expand(3, 4), "text": "héllo"},
            outputs=(torch.arange(5), None),
        ),
        Recorded(kwargs={"z": torch.randn(2, dtype=torch.complex64), "o": object()}),
        Recorded(args=(1.5, None), error=("builtins:ValueError", "bad value")),
    ]


def fingerprint(value: Any) -> Any:
    """Everything that a caller can see of a value, comparable."""
    if isinstance(value, torch.Tensor):
        plain = value.resolve_conj()
        numbers = torch.view_as_real(plain) if plain.is_complex() else plain
        return (str(value.dtype), tuple(value.shape), value.stride(), numbers.double().tolist())
    if isinstance(value, Placeholder):
        children = [fingerprint(child) for child in value.children]
        return (value.type_name, value.reason, value.names, children)
    if isinstance(value, dict):
        return [(key, fingerprint(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(fingerprint(item) for item in value)]
    return (type(value).__name__, value)


def fingerprint_of_call(call: Any) -> Any:
    record = call.record
    return (
        fingerprint(call.inputs),
        fingerprint(call.outputs),
        (record.time_ns, record.duration_ns, record.thread, record.error),
        render(record.inputs),
    )


class Subject:
    """A tape, what its calls are, and a file to put damaged copies in."""

    def __init__(self, folder: Path, *, sealed: bool) -> None:
        self.path = folder / "damaged.tape"
        whole = write_tape(folder / "whole.tape", recorded_calls(), sealed=sealed, target=Pair)
        self.data = whole.read_bytes()
        with open_tape(whole, classes=(Pair,)) as tape:
            self.expected = {call.number: fingerprint_of_call(call) for call in tape}
            self.manifest = tape.manifest
            assert tape.damage == []

    def read(self, data: bytes) -> tuple[int, int]:
        """Reads a damaged copy; how many calls it gave, and how many places it called damaged."""
        self.path.write_bytes(data)
        began = time.thread_time()
        try:
            good, damaged = self._read()
        except TapeError:  # anything else is a bug
            good = damaged = 0
        assert time.thread_time() - began < SECONDS_PER_TAPE
        return good, damaged

    def _read(self) -> tuple[int, int]:
        with open_tape(self.path, classes=(Pair,)) as tape:
            # The manifest has a checksum: it is the one that was written, or an error.
            assert tape.manifest == self.manifest
            good = 0
            for call in tape:
                assert fingerprint_of_call(call) == self.expected[call.number]
                good += 1
            damaged = len(tape.damage)
            assert good + damaged >= len(tape)
            assert len(tape.verify()) == damaged  # nothing that iterating had let pass
            return good, damaged


@pytest.fixture(params=[True, False], ids=["sealed", "unsealed"])
def subject(tmp_path: Path, request: pytest.FixtureRequest) -> Subject:
    return Subject(tmp_path, sealed=request.param)


Mutation = Callable[[random.Random, bytearray], None]


def _flip(rng: random.Random, data: bytearray) -> None:
    data[_somewhere(rng, data)] ^= 1 << rng.randrange(8)


def _replace(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.randint(1, 4)):
        data[_somewhere(rng, data)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])


def _fill(rng: random.Random, data: bytearray) -> None:
    at = _somewhere(rng, data)
    data[at : at + rng.randint(1, 700)] = bytes([rng.choice([0, 0xFF, 0x90])]) * rng.randint(1, 700)


def _copy_over(rng: random.Random, data: bytearray) -> None:
    blocks = len(data) // 512
    source, target = rng.randrange(blocks) * 512, rng.randrange(blocks) * 512
    count = 512 * rng.randint(1, 3)
    data[target : target + count] = data[source : source + count]


def _insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) // 512) * 512
    source = rng.randrange(len(data) // 512) * 512
    data[at:at] = data[source : source + 512 * rng.randint(1, 4)]


def _remove(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice([1, 512, 1024, rng.randint(1, 2000)])]


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


MUTATIONS: list[Mutation] = [
    _flip,
    _flip,
    _replace,
    _replace,
    _fill,
    _copy_over,
    _insert,
    _remove,
    _cut,
]


def _somewhere(rng: random.Random, data: bytearray) -> int:
    """A position, three times in four of a byte that is not padding."""
    for _ in range(40):
        at = rng.randrange(len(data))
        if data[at] or rng.random() < 0.05:
            return at
    return rng.randrange(len(data))


def mutated(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(count):
        copy = bytearray(data)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            if len(copy) >= 512:
                rng.choice(MUTATIONS)(rng, copy)
        yield bytes(copy)


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(subject: Subject, seed: int, count: int) -> None:
    before = peak_memory()
    good = damaged = 0
    for data in mutated(subject.data, seed, count):
        found = subject.read(data)
        good += found[0]
        damaged += found[1]
    assert peak_memory() - before < 128 * MEBIBYTE
    # The mutations do damage, and most calls survive it.
    assert damaged > count / 4
    assert good > count


def test_an_undamaged_tape_is_read_whole(subject: Subject) -> None:
    assert subject.read(subject.data) == (4, 0)


def test_some_mutations_raise_nothing_but_tape_errors(subject: Subject) -> None:
    fuzz(subject, 1, 750)


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(2, 7))
def test_many_mutations_raise_nothing_but_tape_errors(subject: Subject, seed: int) -> None:
    fuzz(subject, seed, 2500)


def test_a_tape_cut_at_any_block_is_read(subject: Subject) -> None:
    """Around every block boundary; the chaos tier takes every length there is."""
    for at in range(0, len(subject.data), 512):
        for length in (at, at + 1, at + 100, at + 511):
            subject.read(subject.data[:length])


@pytest.mark.integration
@pytest.mark.slow
def test_a_longer_file_never_has_fewer_calls(subject: Subject) -> None:
    lengths = range(len(subject.data))
    found = [subject.read(subject.data[:length])[0] for length in lengths]
    # A longer file never has fewer calls.
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] == 4


@pytest.mark.integration
@pytest.mark.slow
def test_a_flipped_byte_costs_at_most_one_call(subject: Subject) -> None:
    for at in range(len(subject.data)):
        data = bytearray(subject.data)
        data[at] ^= 0xFF
        good, _ = subject.read(bytes(data))
        # One byte costs one call at most, unless it is the manifest's.
        assert good >= 3 or at < 1024
