"""Which calls are kept, and of which leaves the bytes."""

from __future__ import annotations

import logging
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import (
    Every,
    First,
    Keep,
    Novelty,
    PerSecond,
    PerStructure,
    Rate,
    When,
    record,
)
from calltape_recorder.capture.structures import Structure
from calltape_recorder.keep import policies
from calltape_recorder.keep.policies import CallView, settled
from tests.raising import raises
from tests.recorder.models import Add, Echo, Identity
from tests.recorder.reading import read
from tests.recorder.waiting import in_threads


def kept(tmp_path: Path, keep: Keep, calls: list[Any]) -> tuple[list[int], dict[str, int]]:
    model = Identity()
    with record(model, tmp_path / "t.tape", keep=keep) as recorder:
        for value in calls:
            assert model(value) is value
    stats = recorder.stats()
    assert stats.seen == len(calls) == stats.kept + sum(stats.dropped.values())
    tape = read(tmp_path / "t.tape")
    assert tape.table.totals().seen == len(calls)
    return tape.numbers, stats.dropped


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(sizes)


@pytest.mark.parametrize(
    ("keep", "numbers"),
    [
        (Every(), [0, 1, 2, 3, 4, 5]),
        (First(2), [0, 1]),
        (First(0), []),
        (Rate(0.0), []),
        (Rate(1.0), [0, 1, 2, 3, 4, 5]),
        (PerStructure(1), [0, 3]),
        (PerStructure(2) & First(3), [0, 1, 3]),
        (When(lambda args, kwargs: isinstance(args[0], list)), [3, 4, 5]),
        (First(1) | When(lambda args, kwargs: len(args) == 5), [0]),
        (When(lambda args, kwargs: isinstance(args[0], list)) & First(1) | First(2), [0, 1, 3]),
    ],
    ids=str,
)
def test_policies_keep_their_calls_alone_and_composed(
    tmp_path: Path, keep: Keep, numbers: list[int]
) -> None:
    calls = [ones(2), ones(2), ones(2), [ones(2)], [ones(2)], [ones(2)]]
    found, dropped = kept(tmp_path, keep, calls)
    assert found == numbers
    assert dropped == ({"policy": 6 - len(numbers)} if len(numbers) < 6 else {})


def test_a_rate_chooses_the_same_calls_for_the_same_seed(tmp_path: Path) -> None:
    first, _ = kept(tmp_path / "a", Rate(0.3, seed=1), [ones(1)] * 300)
    again, _ = kept(tmp_path / "b", Rate(0.3, seed=1), [ones(1)] * 300)
    other, _ = kept(tmp_path / "c", Rate(0.3, seed=2), [ones(1)] * 300)
    assert first == again != other
    assert 50 < len(first) < 130


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("seed", [0, 1, -5, 2**70])
def test_samples_are_as_large_as_asked_for(fraction: float, seed: int) -> None:
    count = 50_000
    decide = Rate(fraction, seed).decider()
    found = sum(decide(number, None) for number in range(count))
    # Six standard deviations of a fair sample.
    assert abs(found - count * fraction) < 6 * (count * fraction * (1 - fraction)) ** 0.5


@pytest.mark.parametrize("fraction", [0.0, 5e-324, 0.001, 1 / 16, 0.07])
def test_a_sample_hangs_on_nothing_but_the_number(fraction: float) -> None:
    numbers = [*range(3000), *range(10**12, 10**12 + 3000)]
    sample = {number for number in numbers if Rate(fraction, 3).decider()(number, None)}
    assert bool(sample) == (fraction >= 0.001)
    backwards = Rate(fraction, 3).decider()
    assert {number for number in reversed(numbers) if backwards(number, None)} == sample
    far = Rate(fraction, 3).decider()
    pairs = zip(numbers, reversed(numbers), strict=True)
    assert {number for pair in pairs for number in pair if far(number, None)} == sample


def test_a_limit_per_second_allows_a_burst(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [0.0]
    monkeypatch.setattr(policies, "time", type("Clock", (), {"monotonic": lambda: now[0]}))
    decide = PerSecond(2).decider()
    taken = []
    for tick in range(40):
        now[0] = tick / 10
        taken.append(decide(tick, None))
    assert taken[:4] == [True, True, False, False]
    assert sum(taken) in (8, 9)  # a burst of two, then two a second for 3.9 seconds
    slow = PerSecond(0.5).decider()
    assert [slow(0, None), slow(1, None)] == [True, False]
    now[0] += 2
    assert slow(2, None)
    now[0] += 3600  # a quiet hour saves up nothing
    assert [slow(number, None) for number in (3, 4, 5)] == [True, False, False]


def test_a_predicate_that_raises_keeps_nothing_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(args: Any, kwargs: Any) -> bool:
        raise ValueError("broken predicate")

    found, dropped = kept(tmp_path, When(broken), [ones(2)] * 3)
    assert (found, dropped) == ([], {"internal": 3})
    assert caplog.text.count("broken predicate") == 1


def test_the_manifest_says_what_was_kept(tmp_path: Path) -> None:
    keep = Novelty() | Rate(0.01, seed=7) & PerSecond(5)
    kept(tmp_path, (First(3) | keep) & PerStructure(9), [ones(2)])
    policy = read(tmp_path / "t.tape").manifest.policy
    assert policy.keep == (
        "(first(3) | novelty() | rate(0.01, seed=7) & per_second(5)) & per_structure(9)"
    )
    with record(Add(), tmp_path / "all.tape"):
        pass
    assert read(tmp_path / "all.tape").manifest.policy.keep is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: First(-1), lambda: First(True), lambda: Rate(1.5), lambda: Rate("1"),  # type: ignore[arg-type]
        lambda: Rate(0.1, seed=1.0), lambda: PerSecond(0), lambda: PerSecond(float("inf")),  # type: ignore[arg-type]
        lambda: PerStructure(-3), lambda: Novelty(growth=1), lambda: When(3),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_wrong_arguments_of_policies_are_rejected(make: Any) -> None:
    with raises("usage"):
        make()


@pytest.mark.parametrize("keep", [First(50), PerStructure(50), PerStructure(50) & Every()], ids=str)
def test_many_threads_share_a_limit(tmp_path: Path, keep: Keep) -> None:
    model = Add()
    with record(model, tmp_path / "t.tape", keep=keep) as recorder:
        in_threads(lambda _: [model(ones(2), ones(2)) for _ in range(100)], range(8))
    assert (recorder.stats().kept, recorder.stats().dropped) == (50, {"policy": 750})


# --- values by leaf path -----------------------------------------------------------------------


class Model(torch.nn.Module):
    def forward(self, input_ids: Any, past_key_values: Any = None, mask: Any = None) -> Any:
        return {"logits": ones(2), "state": ones(3)}


def test_the_most_specific_path_decides_which_values_are_kept(tmp_path: Path) -> None:
    model = Model()
    values = {"*": "all", "past_key_values": "none", "past_key_values.1": "all", "outputs*": "none",
              "outputs.logits": "all"}  # fmt: skip
    ids = torch.arange(5)
    with record(model, tmp_path / "t.tape", values=values):  # type: ignore[typeddict-item]
        model(ids, [ones(7, 7), ones(2)], mask=ones(1))
    tape = read(tmp_path / "t.tape")
    call = tape.calls[0]
    leaves = call.record.inputs.facts()
    assert [leaf.key for leaf in leaves] == [
        "args.0", None, "args.1.1", "kwargs.mask",
    ]  # fmt: skip
    assert leaves[1].missing == "policy"
    assert leaves[1].shape == (7, 7)
    assert call.record.outputs is not None
    keys = [leaf.key for leaf in call.record.outputs.facts()]
    assert keys == ["outputs.logits", None]
    assert tape.manifest.policy.leaf_values == tuple(values.items())
    assert tape.manifest.policy.values == "all"


def test_patterns_that_match_nothing_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values: Any = {"*": "all", "X": "none", "y.*": "none", "outputs": "none", "[xz]": "all"}
    with record(Add(), tmp_path / "t.tape", values=values):
        pass
    text = f"calltape, process {os.getpid()}: values: no argument matches 'X'"
    assert [entry.message for entry in caplog.records if "values" in entry.message] == [text]
    caplog.clear()
    with record(Echo(), tmp_path / "u.tape", values=values):  # takes any name
        pass
    assert not any("values" in entry.message for entry in caplog.records)


class Open(torch.nn.Module):
    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        return input_ids


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING]
    caplog.clear()
    return [text.partition(": ")[2] for text in texts]


@pytest.mark.parametrize("keep", [Every(), Novelty()], ids=str)
def test_patterns_that_no_recorded_call_has_are_said_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keep: Any
) -> None:
    values: Any = {"*": "all", "promt": "none", "past_key_values.*": "none", "cache.*": "none",
                   "input_ids": "none", "mask": "none", "late.b": "none", "kwargs.*": "none",
                   "outputs.*": "none", "mdoe": "all"}  # fmt: skip
    model = Open()
    with record(model, tmp_path / "t.tape", values=values, keep=keep) as recorder:
        for late in ({"a": 1}, {"a": 1, "b": "x"}):
            model(ones(2), prompt="a", cache=[ones(2)], mask=None, late=late)
    assert recorder.stats().last_error is None  # this is no trouble of the recorder
    assert warnings_of(caplog) == [
        "values: no recorded call has a value at 'promt', 'past_key_values.*': nothing "
        "was omitted there. If a name is wrong, the values you meant may be on the tape",
        "values: no recorded call has a value at 'mdoe': nothing was kept there",
    ]


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"values": {"*": "all", "promt": "none"}}, 0),
        ({"values": {"*": "all", "promt": "none"}, "keep": When(lambda args, kwargs: False)}, 1),
        ({"values": {"*": "all", "promt": "all"}}, 1),  # nothing is withheld
        ({"values": {"*": "all", "outputs.x": "none"}, "outputs": False}, 1),
    ],
)
def test_patterns_without_a_call_or_an_effect_are_not_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: Any, calls: int
) -> None:
    model = Open()
    with record(model, tmp_path / "t.tape", **options):
        for _ in range(calls):
            model(ones(2), prompt="a")
    assert not any(text.startswith("values") for text in warnings_of(caplog))


def test_a_rate_is_a_share_of_what_would_be_kept(tmp_path: Path) -> None:
    model = Identity()
    keep = When(lambda args, kwargs: args[0].item() % 2 == 0)
    with record(model, tmp_path / "t.tape", keep=keep) as recorder:
        recorder.set_rate(0.1)
        for number in range(4000):
            model(torch.tensor(number))
        recorder.set_rate(None)
        for number in range(4000, 4100):
            model(torch.tensor(number))
    numbers = read(tmp_path / "t.tape").numbers
    assert all(number % 2 == 0 for number in numbers)
    sampled = [number for number in numbers if number < 4000]
    assert abs(len(sampled) - 200) < 6 * (2000 * 0.1 * 0.9) ** 0.5
    assert len(numbers) - len(sampled) == 50


@pytest.mark.parametrize("keep", [PerStructure(1), Novelty()])
def test_what_is_remembered_of_a_structure_is_small(keep: Keep) -> None:
    decider, large = keep.decider(), 64 * 1024
    tracemalloc.start()
    try:
        for number in range(100):
            structure = Structure(number.to_bytes(2, "big") * (large // 2), (), {})
            row = (torch.float32,) * 1000
            assert settled(decider(number, CallView(number, (), {}, structure, row, [])))
        assert tracemalloc.get_traced_memory()[0] < 100 * 4096
    finally:
        tracemalloc.stop()
