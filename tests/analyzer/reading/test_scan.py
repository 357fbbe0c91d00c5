"""The walk over a tape: what it keeps of each call, and that it skips nothing by being quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from calltape_analyzer.reading.distinct_inputs import EncodedInputs

from calltape_analyzer import TapeError, open_tape
from calltape_analyzer.reading import distinct_inputs, scan
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.segment import Segment
from calltape_recorder import Recorder
from calltape_schema import skimming
from calltape_schema.skimming import Skimmer
from tests.analyzer.reading.test_fuzz import mutated
from tests.analyzer.tapes import Recorded, write_tape


class Model(torch.nn.Module):
    def forward(self, x: Any, n: Any = 0, **others: Any) -> Any:
        if isinstance(n, str):
            raise ValueError(n)
        return x + 1


def recorded(path: Path, calls: list[tuple[Any, dict[str, Any]]]) -> Path:
    model = Model()
    recorder = Recorder(path).attach(model)
    for x, kwargs in calls:
        if isinstance(kwargs.get("n"), str):
            with pytest.raises(ValueError, match=kwargs["n"]):
                model(x, **kwargs)
        else:
            model(x, **kwargs)
    recorder.close()
    return path


FLOATS, INTS = torch.zeros(2, 3), torch.arange(4)
CALLS: list[tuple[Any, dict[str, Any]]] = [
    (FLOATS, {}), (FLOATS[:1], {}), (FLOATS, {}), (INTS, {}), (INTS + 70_000, {}),
    (FLOATS, {"n": 1}), (FLOATS, {"n": 2}), (FLOATS, {"n": 1}), (FLOATS, {"n": 1.0}),
    (FLOATS, {"n": 0.0}), (FLOATS, {"n": -0.0}), (FLOATS, {"n": 2j}), (FLOATS, {"n": 2**80}),
    (FLOATS, {"n": float("nan")}), (FLOATS, {"n": float("nan")}), (FLOATS, {"n": "bad"}),
    (FLOATS, {"n": "bad"}), (FLOATS, {"word": "\ud800"}), (FLOATS, {"n": True}),
]  # fmt: skip
LIKE = [0, 1, 0, 2, 2, 3, 4, 3, 5, 6, 7, 8, 9, 10, 10, 11, 11, 12, 13]
"""Which calls of CALLS have the same inputs but for the elements of their tensors."""


def opened(path: Path) -> Segment:
    return Segment(str(path), Damage())


def key_of_record(segment: Segment, position: int) -> EncodedInputs:
    record = segment.record(position)
    inputs = record.inputs
    return EncodedInputs(inputs.structure, inputs.leaves, inputs.scalars, record.error is not None)


def test_calls_of_equal_inputs_have_the_same_key(tmp_path: Path) -> None:
    segment = opened(recorded(tmp_path / "a.tape", CALLS))
    assert [segment.inputs_number(position) for position in segment.order] == LIKE
    assert len(segment.distinct_inputs) == max(LIKE) + 1
    for position in segment.order:
        key = segment.distinct_inputs[LIKE[position]]
        assert repr(key) == repr(key_of_record(segment, position))
    assert [key.raised for key in segment.distinct_inputs].count(True) == 1


def test_a_hand_written_tape_has_the_same_keys(tmp_path: Path) -> None:
    calls = [
        Recorded(args=(1, FLOATS)), Recorded(args=(1.0, FLOATS)), Recorded(args=(1, FLOATS)),
        Recorded(args=(1, FLOATS), error=("builtins:ValueError", "no"), number=7),
        Recorded(args=(1, FLOATS), number=4),
    ]  # fmt: skip
    segment = opened(write_tape(tmp_path / "a.tape", calls))
    assert [segment.number(position) for position in segment.order] == [0, 1, 2, 4, 7]
    assert [segment.inputs_number(position) for position in segment.order] == [0, 1, 0, 0, 2]


@pytest.mark.parametrize(("limit", "value"), [("_MAX_ENTRIES", 3), ("_MAX_BYTES", 800)])
def test_keys_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    path = recorded(tmp_path / "a.tape", CALLS)
    monkeypatch.setattr(distinct_inputs, limit, value)
    segment = opened(path)
    found = [segment.inputs_number(position) for position in segment.order]
    assert 2 <= len(segment.distinct_inputs) < max(LIKE)
    for position, key in enumerate(found):
        if key is not None:
            assert repr(segment.distinct_inputs[key]) == repr(key_of_record(segment, position))
    assert None in found
    with open_tape(path) as tape:
        assert len(list(tape)) == len(CALLS)
        assert not tape.damage


def test_many_scalars_are_counted_at_what_they_cost() -> None:
    table = distinct_inputs.DistinctInputs()
    found = [
        table.number_of((b"s", b"l", tuple(range(n, n + 1000))), False)
        for n in range(10_000, 11_000)
    ]
    assert distinct_inputs.NOT_NUMBERED in found
    assert 10 < len(table.entries) < 400
    # What is there is still found, and what is small still fits.
    assert table.number_of((b"s", b"l", tuple(range(10_000, 11_000))), False) == 0
    assert table.number_of((b"s", b"l", ()), True) == len(table.entries) - 1


def test_keys_follow_their_calls(tmp_path: Path) -> None:
    # The index of a sealed tape does not know the second call, which takes it off the columns.
    calls = [Recorded(args=(torch.zeros(n, 3),), number=number) for n, number in ((1, 0), (2, 1))]
    data = write_tape(tmp_path / "a.tape", calls, sealed=False).read_bytes()
    other = [calls[0], Recorded(args=(torch.zeros(3, 3),), number=2)]
    sealed = write_tape(tmp_path / "b.tape", other).read_bytes()
    unsealed = write_tape(tmp_path / "c.tape", other, sealed=False).read_bytes()
    first = len(write_tape(tmp_path / "d.tape", calls[:1], sealed=False).read_bytes())
    path = tmp_path / "e.tape"
    path.write_bytes(unsealed + data[first:] + sealed[len(unsealed) :])
    damage = Damage()
    segment = Segment(str(path), damage)
    assert ["does not have it here" in error.reason for error in damage.list()] == [True]
    for position in segment.order:
        key = segment.inputs_number(position)
        assert key is not None
        assert segment.distinct_inputs[key] == key_of_record(segment, position)


def summary(path: Path) -> Any:
    damage = Damage()
    try:
        segment = Segment(str(path), damage)
    except TapeError as error:
        return str(error)
    keys = [segment.distinct_inputs[segment.inputs_number(position)] for position in segment.order]  # type: ignore[index]
    found = [(segment.number(p), segment.blob(p), segment.record(p)) for p in segment.order]
    segment.close()
    return list(map(str, damage.list())), segment.coverage, repr(keys), repr(found)


def test_a_default_of_nan_is_no_other_tape(tmp_path: Path) -> None:
    """No NaN equals another one, so the manifest that is read again seemed to be another."""

    class WithDefault(torch.nn.Module):
        def forward(self, x: Any, fill: float = float("nan")) -> Any:
            return x

    path = tmp_path / "nan.tape"
    recorder = Recorder(path).attach(model := WithDefault())
    model(torch.ones(2))
    recorder.close()
    with open_tape(path, scan=True) as tape:
        assert len(tape.calls) == 1
        assert tape.verify() == []


class Thorough(Skimmer[Any]):
    """Builds models of every record."""

    def __call__(self, data: bytes) -> Any:
        return self._reduced(skimming._thoroughly(data))


def fuzz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, count: int) -> None:
    whole = recorded(tmp_path / "whole.tape", CALLS[:6] * 2).read_bytes()
    path = tmp_path / "damaged.tape"
    for data in mutated(whole, seed, count):
        path.write_bytes(data)
        quick = summary(path)
        with monkeypatch.context() as context:
            context.setattr(scan, "Skimmer", Thorough)
            assert summary(path) == quick


def test_a_quick_scan_finds_what_a_thorough_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzz(tmp_path, monkeypatch, 1, 200)


@pytest.mark.chaos
def test_a_quick_scan_finds_the_same_in_many_tapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzz(tmp_path, monkeypatch, 2, 4000)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (3, 2, 1, 0)])
def test_a_number_counts_once_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Calls end in another order than they began in. The scan notices a second call of a number
    before the highest, and one of the highest."""
    calls = [Recorded((torch.zeros(n + 1, 3),), number=n) for n in order]
    path = write_tape(tmp_path / "a.tape", calls, sealed=False, target=Model())
    with open_tape(path, scan=True) as tape:
        assert [len(call.tensor("inputs", 0)) for call in tape.calls] == [1, 2, 3, 4]
        assert not tape.damage
        segment = tape.segments[0]
        places = [segment.found.firsts[order.index(n)] for n in range(4)]
    data = path.read_bytes()
    ends = [*sorted(places), len(data)]
    for n in range(4):
        begin = places[n]
        again = data[begin : ends[ends.index(begin) + 1]]
        path.write_bytes(data + again)
        with open_tape(path, scan=True) as tape:
            assert [call.number for call in tape.calls] == [0, 1, 2, 3]
            (error,) = tape.damage
        assert "another call before it has the same number" in str(error)
