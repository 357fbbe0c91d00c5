"""Cutting tapes: the calls that are asked for, as they were, and true accounts."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import TapeError, UsageError, filter_tape, open_tape
from calltape_analyzer.editing import choice as choosing
from calltape_analyzer.editing.choice import Choice, select_calls
from calltape_recorder import Novelty, record
from calltape_schema.reader import TapeReader
from calltape_schema.records import CallRecord
from tests.analyzer.editing.recordings import Model, as_copied, contents, numbers, recorded, values
from tests.analyzer.tapes import Recorded, write_tape
from tests.fixture_files import WITH_CALLS
from tests.unpacked import readable

SIZES = [3, 4, -2, 5, 4, 9, 16, 3, -1, 7]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("tapes") / "a.tape", SIZES)


def kept(source: Path, out: Path, **choice: Any) -> list[int]:
    with open_tape(source) as tape:
        filter_tape(tape, out, overwrite=True, **choice)
    with open_tape(out, verify=True) as tape:
        assert tape.damage == []
        assert tape.sealed
        assert tape.coverage.seen == len(SIZES)
        assert sum(tape.coverage.dropped.values()) == len(SIZES) - len(tape)
        assert set(tape.coverage.dropped) <= {"not extracted"}
        return numbers(tape)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, range(10)),
        ({"raised": True}, [2, 8]),
        ({"raised": False}, [0, 1, 3, 4, 5, 6, 7, 9]),
        ({"first": 3}, [0, 1, 2]),
        ({"first": 0}, []),
        ({"where": "n > 4"}, [3, 5, 6, 9]),
        ({"where": ["n > 4", "x[0] < 10"]}, [3, 5, 9]),
        ({"where": "x_dim_0 == 4 and x[-1] == 4"}, [1, 4]),
        ({"where": "mask[0] > 4"}, [3, 5, 9]),
        ({"where": "mask[0] > 4 or n == 4"}, [1, 3, 4, 5, 9]),
        ({"start": 4e9}, []),
        ({"end": 4e9}, range(10)),
    ],
)
def test_calls_are_chosen(
    source: Path, tmp_path: Path, choice: dict[str, Any], expected: Any
) -> None:
    assert kept(source, tmp_path / "b.tape", **choice) == list(expected)


def test_a_condition_sees_the_defaults_of_ints(tmp_path: Path) -> None:
    model = Model()
    with record(model, tmp_path / "a.tape"):
        model(torch.zeros(3, 4))
        model(torch.zeros(5, 4))
        model(torch.zeros(3, 4), n=0)
        model(torch.zeros(3, 4), 7)
    out = tmp_path / "b.tape"
    for where, expected in (("n == 0", [0, 1, 2]), ("n == 7 or x[0] == 5 and n < 1", [1, 3])):
        with open_tape(tmp_path / "a.tape") as tape:
            filter_tape(tape, out, where=where, overwrite=True)
        with open_tape(out) as cut:
            assert numbers(cut) == expected
    with open_tape(tmp_path / "a.tape") as tape:
        tape.remove_inputs(["n"])
        with pytest.raises(UsageError, match="no call has a size named n"):
            filter_tape(tape, out, where="n == 0", overwrite=True)


def test_names_of_an_error_can_be_typed_back(tmp_path: Path) -> None:
    model = Model()
    with record(model, tmp_path / "a.tape"):
        xs = [torch.zeros(3, 4), torch.zeros(5, 4)]
        model(torch.zeros(1), mask={"h.0": torch.zeros(2), "xs": xs})
    with open_tape(tmp_path / "a.tape") as tape:
        with pytest.raises(UsageError) as caught:
            filter_tape(tape, tmp_path / "b.tape", where="nothing > 1")
        advice = str(caught.value.advice)
        assert "mask.xs.0[0] and 1 like it, mask.xs.0[1] and 1 like it" in advice
        assert "mask.h.0[0]" in advice
        where = "mask.xs.1[0] == 5 == 2 * mask.h.0[0] + 1"
        assert filter_tape(tape, tmp_path / "b.tape", where=where).calls == 1


def test_calls_are_chosen_by_number_variant_duration_and_time(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.tape"
    with open_tape(source) as tape:
        name = tape.variants()[0].name
        expected = [call.number for call in tape.variants()[0].calls]
        filter_tape(tape.only(calls="2..4,9"), out)
        middle = tape[5].time
        long = [call for call in tape.calls if (call.duration or 0) > 1e6]
        assert filter_tape(tape.only(calls=long), tmp_path / "long.tape").calls == 0
        filter_tape(tape.only(calls=[c for c in tape.calls if c not in long]), tmp_path / "d.tape")
        part = tape.only(variant=name)
        filter_tape(part, tmp_path / "c.tape")
    with open_tape(out) as cut:
        assert numbers(cut) == [2, 3, 4, 9]
        assert cut.coverage.dropped == {"not extracted": 6}
        (step,) = cut.manifest.history or ()
        assert dict(step.options) == {"calls": '["2..4","9"]'}
        assert step.sources[0].left_out == 6
    with open_tape(tmp_path / "c.tape") as cut:
        assert numbers(cut) == expected
        assert cut.coverage.dropped == {"not extracted": 10 - len(expected)}
    with open_tape(tmp_path / "d.tape") as cut:
        assert numbers(cut) == list(range(10))
    assert kept(source, out, start=middle) == [5, 6, 7, 8, 9]
    assert kept(source, out, end=middle) == [0, 1, 2, 3, 4]


def test_the_records_of_other_hours_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_tape(tmp_path / "a.tape", [Recorded((torch.zeros(n + 1),)) for n in range(50)])
    with open_tape(source) as tape:
        start, end = (tape[at].record.time_ns / 1e9 for at in (20, 23))
    read: list[int] = []
    real = TapeReader.record_at

    def record_at(self: TapeReader, at: int) -> CallRecord:
        read.append(at)
        return real(self, at)

    monkeypatch.setattr(TapeReader, "record_at", record_at)
    with open_tape(source) as tape:
        assert [*select_calls(tape, Choice(start=start, end=end))] == [20, 21, 22]
    assert set(read) == {20, 21, 22}


def test_a_cut_tape_does_not_claim_the_traffic(source: Path, tmp_path: Path) -> None:
    with open_tape(source) as tape:
        assert tape.counters.calls == 10
        filter_tape(tape, tmp_path / "all.tape")
        filter_tape(tape, tmp_path / "some.tape", first=4)
    with open_tape(tmp_path / "all.tape") as tape:
        assert tape.counters.calls == 10
        assert tape.damage == []
    with open_tape(tmp_path / "some.tape") as tape:
        assert tape.counters.calls == 0
        assert tape.counters.missing
        assert tape.variants()[0].findings.all_calls is None
        assert tape.damage == []


def test_what_the_recorder_dropped_is_still_told(tmp_path: Path) -> None:
    source = recorded(tmp_path / "a.tape", [2, 3, 3, 3, 3, 4, 4, 8, 8, 8], keep=Novelty())
    with open_tape(source) as tape:
        before = tape.coverage
        assert before.dropped["policy"] > 0
        filter_tape(tape.only(calls=tape.calls[-2:]), tmp_path / "b.tape")
        filter_tape(tape, tmp_path / "all.tape")
    with open_tape(tmp_path / "b.tape") as cut:
        assert cut.coverage.seen == before.seen
        left_out = before.kept - 2
        assert cut.coverage.dropped == {**before.dropped, "not extracted": left_out}
    with open_tape(tmp_path / "all.tape") as every, open_tape(source) as tape:
        assert every.coverage == before
        assert every.counters.groups == tape.counters.groups
        assert every.damage == []


@pytest.mark.parametrize("path", WITH_CALLS, ids=lambda path: path.stem)
def test_a_filter_of_all_has_the_same_calls(path: Path, tmp_path: Path) -> None:
    with open_tape(path, verify=True) as tape:
        filter_tape(tape, tmp_path / "b.tape")
        with open_tape(tmp_path / "b.tape", verify=True) as cut:
            assert cut.damage == []
            assert [*map(as_copied, cut.calls)] == [*map(as_copied, tape.calls)]
            assert cut.target == tape.target
            assert cut.coverage.kept == len(tape)


@given(sizes=st.lists(st.integers(-3, 6), max_size=8), cut=st.lists(st.integers(0, 7), min_size=1))
def test_calls_stay_as_they_were(
    sizes: list[int], cut: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tapes")
    source = recorded(folder / "a.tape", sizes)
    wanted = sorted({number for number in cut if number < len(sizes)})
    with open_tape(source) as tape:
        if not wanted:
            return
        filter_tape(tape.only(calls=wanted), folder / "b.tape")
        with open_tape(folder / "b.tape", verify=True) as made:
            assert contents(list(made.calls)) == contents([tape.find(n) for n in wanted])
            assert made.damage == []
            assert made.coverage.seen == len(sizes)


def test_only_new_calls_are_kept(tmp_path: Path) -> None:
    sizes = [3, 3, 5, 7, 7, 4, 6, 3, 100, 8, 8, 5]
    source = recorded(tmp_path / "a.tape", [*sizes, -4, -5, -6])
    with open_tape(source) as tape:
        report = filter_tape(tape, tmp_path / "b.tape", novel=True)
        with open_tape(tmp_path / "b.tape") as cut:
            assert report.calls < len(tape)
            assert report.left_out == len(tape) - report.calls
            spans = [
                {
                    (symbol.name, symbol.expression, symbol.dimensions)
                    for variant in one.variants()
                    for symbol in variant.findings.symbols
                }
                for one in (tape, cut)
            ]
            assert spans[0] == spans[1]
            assert {100, 3} <= {call.inputs.kwargs["n"] for call in cut.calls}
            assert any(call.error for call in cut.calls)


def test_values_are_dropped_by_path(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.tape"
    with open_tape(source) as tape:
        report = filter_tape(tape, out, drop=["x", "mask*", "text", "outputs.y"])
        assert report.notes == ()
        shapes = [call.inputs.args[0].shape for call in tape.calls]
        plain = values(tape[0].outputs["same"])
    with open_tape(out, verify=True) as cut:
        assert cut.damage == []
        assert [call.inputs.args[0].shape for call in cut.calls] == shapes
        assert all(call.inputs.args[0].is_meta for call in cut.calls)
        assert cut[0].inputs.kwargs["mask"].is_meta
        assert cut[0].record.inputs.scalars == (3, 8)
        assert "prompt" not in repr([call.record for call in cut.calls])
        assert cut[0].inputs.kwargs["n"] == 3
        assert cut[0].outputs["y"].is_meta
        assert values(cut[0].outputs["same"]) == plain
        assert cut.variants()
    assert b"prompt" not in readable(out.read_bytes())
    assert os.path.getsize(out) < os.path.getsize(source)


class Ids(torch.nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids


def test_ranges_that_stay_are_those_that_the_recorder_leaves(tmp_path: Path) -> None:
    """Of a padded tensor, the range is the one id that it has."""
    padded, model = torch.zeros(4, 1024, dtype=torch.int64), Ids()
    padded[0, 7] = 6_210_791
    tensors = [
        padded, padded[:1], torch.randint(2, (2048,)), torch.arange(5, 3000, dtype=torch.int32),
        torch.arange(1023).repeat(3), torch.arange(0, 4092, 4).repeat(3), torch.arange(1024),
        torch.full((2048,), 99, dtype=torch.int16), torch.arange(9).expand(500, 9),
        torch.arange(2000).expand(3, 2000), torch.randint(256, (4096,), dtype=torch.uint8),
    ]  # fmt: skip
    for name, policy in (("a", "all"), ("b", "none")):
        with record(model, tmp_path / f"{name}.tape", values=policy):
            for one in tensors:
                model(one)
    with open_tape(tmp_path / "a.tape") as tape:
        filter_tape(tape, tmp_path / "c.tape", drop="*")
    with open_tape(tmp_path / "b.tape") as told, open_tape(tmp_path / "c.tape") as cut:
        for one, other in zip(told.calls, cut.calls, strict=True):
            assert one.record.inputs.ranges == other.record.inputs.ranges, one.number
            assert one.record.outputs.ranges == other.record.outputs.ranges, one.number
        assert any(call.record.inputs.ranges for call in cut.calls)


def test_a_name_takes_numbers_and_a_pattern_does_not(source: Path, tmp_path: Path) -> None:
    with open_tape(source) as tape:
        filter_tape(tape, tmp_path / "b.tape", drop="n")
        filter_tape(tape, tmp_path / "c.tape", drop="*")
    with open_tape(tmp_path / "b.tape", verify=True) as cut:
        assert cut.damage == []
        assert type(cut[0].inputs.kwargs["n"]).__name__ == "Placeholder"
        assert 3 not in cut[0].record.inputs.scalars
    with open_tape(tmp_path / "c.tape", verify=True) as cut:
        assert cut[0].inputs.kwargs["n"] == 3
        assert cut[0].record.blob is None
        assert cut[0].outputs["y"].is_meta


def test_a_path_that_names_nothing_is_told(source: Path, tmp_path: Path) -> None:
    with open_tape(source) as tape:
        report = filter_tape(tape, tmp_path / "b.tape", drop=["x", "nothing.*"])
    assert report.notes == ("no value has a path like nothing.*",)


def test_beyond_what_is_remembered_every_call_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of sizes whose pattern is known."""
    monkeypatch.setattr(choosing, "MAX_NUMBERS", 9)
    sizes = [(2, 3, 4), (5, 3, 7), (9, 4, 3), (2, 3, 4), (2, 3, 4)]
    source = write_tape(tmp_path / "a.tape", [((torch.zeros(size),), {}) for size in sizes])
    with open_tape(source) as tape:
        assert filter_tape(tape, tmp_path / "b.tape", novel=True).calls == 5
    monkeypatch.undo()
    with open_tape(source) as tape:
        assert filter_tape(tape, tmp_path / "c.tape", novel=True).calls == 3


def test_texts_that_never_repeat_are_no_evidence(tmp_path: Path) -> None:
    x = torch.zeros(2, 2)
    source = write_tape(tmp_path / "a.tape", [((x,), {"t": f"text {n}"}) for n in range(300)])
    with open_tape(source) as tape:
        assert filter_tape(tape, tmp_path / "b.tape", novel=True).calls == 257


@pytest.mark.parametrize(
    "choice",
    [
        {"first": -1},
        {"start": math.nan},
        {"start": math.inf},
        {"where": "nothing > 3"},
        {"where": "n >"},
        {"colour": "red"},
        {"drop": [""]},
    ],
)
def test_what_is_no_choice_is_refused(source: Path, tmp_path: Path, choice: Any) -> None:
    with open_tape(source) as tape, pytest.raises(UsageError):
        filter_tape(tape, tmp_path / "b.tape", **choice)
    assert list(tmp_path.iterdir()) == []


def test_no_tape_is_changed_in_place(source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    with open_tape(source) as tape:
        for overwrite in (False, True):
            with pytest.raises(TapeError):
                filter_tape(tape, source, overwrite=overwrite)
        with pytest.raises(UsageError, match="takes a tape, not a path"):
            filter_tape(source, tmp_path / "b.tape")  # type: ignore[arg-type]
    assert source.read_bytes() == before


def test_a_damaged_call_is_left_out_and_counted(tmp_path: Path) -> None:
    source = write_tape(tmp_path / "a.tape", [((torch.zeros(300) + n,), {}) for n in range(4)])
    data = bytearray(source.read_bytes())
    data[data.index(b"blobs/00000002.safetensors") + 900] ^= 1
    source.write_bytes(data)
    with open_tape(source) as tape:
        report = filter_tape(tape, tmp_path / "b.tape")
        assert "call 2" in report.lost[0]
    with open_tape(tmp_path / "b.tape", verify=True) as tape:
        assert numbers(tape) == [0, 1, 3]
        assert tape.coverage.dropped == {"damaged": 1}
        assert tape.coverage.lost == {"damaged": 1}
        assert tape.damage == []


def test_aliases_and_shared_keys_stay(tmp_path: Path) -> None:
    x = torch.randn(5)
    source = write_tape(tmp_path / "a.tape", [Recorded(args=(x, x), kwargs={"z": x[1:]})])
    with open_tape(source) as tape:
        filter_tape(tape, tmp_path / "b.tape", drop="z")
    with open_tape(tmp_path / "b.tape", verify=True) as tape:
        args, kwargs = tape[0].inputs
        assert args[0] is args[1]
        assert kwargs["z"].is_meta
        assert torch.equal(args[0], x)


def test_the_last_calls_of_a_tape_whose_end_counts_damaged_ones(tmp_path: Path) -> None:
    """The end of the file says that there are 9 calls; one of them is damaged."""
    calls = [Recorded((torch.ones(number + 1),)) for number in range(9)]
    path = write_tape(tmp_path / "a.tape", calls)
    data = bytearray(path.read_bytes())
    data[data.index(b"records/00000004.msgpack") + 600] ^= 0xFF
    path.write_bytes(data)
    with open_tape(path) as tape:
        part = tape.only(calls=tape.calls[-2:])
        assert filter_tape(part, tmp_path / "b.tape").calls == 2
    with open_tape(tmp_path / "b.tape") as cut:
        assert [call.number for call in cut.calls] == [7, 8]
