"""Copies of calls whose tensors other calls have: as small as the tape, and each value is right."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, filter_tape, merge_tapes, open_tape, recover_tape
from calltape_analyzer.reading.call import Call
from calltape_analyzer.writing.new_tape import NewTape
from calltape_recorder import record
from calltape_schema.end import Coverage
from calltape_schema.storage import BytesSink
from calltape_schema.writer import TapeWriter
from tests.analyzer.tapes import Recorded, new_call, reader_of, write_tape
from tests.recorder.reading import read

STEPS = 40


class Decoder(torch.nn.Module):
    def forward(self, x: torch.Tensor, cache: torch.Tensor, fixed: torch.Tensor) -> Any:
        return torch.cat([cache, x], dim=1)


def generated(path: Path, seed: int = 0) -> Path:
    """Records calls with a cache that grows, and a tensor that stays."""
    torch.manual_seed(seed)
    model, fixed, cache = Decoder(), torch.rand(64, 64), torch.rand(4, 60, 64)
    with record(model, path), torch.inference_mode():
        for _ in range(STEPS):
            cache = model(torch.rand(4, 1, 64), cache, fixed)
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated(tmp_path_factory.mktemp("source") / "a.tape")


def copied(calls: Iterable[Call], path: Path) -> None:
    calls = list(calls)
    with NewTape(path, calls[0].manifest) as writer:
        for call in calls:
            writer.copy(call)
        writer.seal()


def have_equal_values(path: Path, source: Path, originals: dict[int, int]) -> None:
    """Calls of a tape have the values of calls of another one, by both readers."""
    calls = {call.record.call: call for call in read(path).calls}
    with open_tape(source) as tape, open_tape(path) as made:
        assert made.verify() == []
        assert {call.number for call in made.calls} == set(calls)
        for number, original in originals.items():
            expected, found = tape.find(original), made.find(number)
            for at in range(3):
                assert torch.equal(found.inputs.args[at], expected.inputs.args[at])
                assert torch.equal(calls[number].input(at), expected.inputs.args[at])
            assert torch.equal(found.outputs, expected.outputs)
            assert torch.equal(calls[number].output(0), expected.outputs)


def test_a_tape_that_is_mended_is_no_larger(source: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.tape"
    shutil.copy(source, torn)
    with torn.open("r+b") as file:
        file.truncate(source.stat().st_size - 2000)
    with open_tape(torn) as tape:
        recover_tape(tape, tmp_path / "b.tape")
    have_equal_values(tmp_path / "b.tape", source, {number: number for number in range(STEPS)})
    assert (tmp_path / "b.tape").stat().st_size < 1.1 * source.stat().st_size


def test_merged_tapes_are_no_larger(source: Path, tmp_path: Path) -> None:
    other = generated(tmp_path / "other.tape", seed=1)
    with open_tape([source, other]) as tape:
        merge_tapes(tape, tmp_path / "b.tape")
    numbers = range(STEPS)
    have_equal_values(tmp_path / "b.tape", source, {number: number for number in numbers})
    have_equal_values(tmp_path / "b.tape", other, {STEPS + number: number for number in numbers})
    both = source.stat().st_size + other.stat().st_size
    assert (tmp_path / "b.tape").stat().st_size < 1.1 * both


def test_the_first_of_a_part_has_its_tensors_itself(source: Path, tmp_path: Path) -> None:
    with open_tape(source) as tape:
        filter_tape(tape.only(calls=f"20..{STEPS - 1}"), tmp_path / "b.tape")
        whole = [call.blob_facts() for call in tape.calls[20:]]
    have_equal_values(tmp_path / "b.tape", source, {number: number for number in range(20, STEPS)})
    assert (tmp_path / "b.tape").stat().st_size < sum(blob.size for blob in whole if blob) / 5


def test_calls_whose_tensors_others_have_that_are_not_copied(source: Path, tmp_path: Path) -> None:
    with open_tape(source) as tape:
        copied(tape.calls[1::3], tmp_path / "b.tape")
    have_equal_values(tmp_path / "b.tape", source, {n: n for n in range(1, STEPS, 3)})


def test_calls_that_are_copied_later_have_lower_numbers(source: Path, tmp_path: Path) -> None:
    with open_tape(source) as tape:
        copied(reversed(tape.calls[:10]), tmp_path / "b.tape")
    have_equal_values(tmp_path / "b.tape", source, {number: number for number in range(10)})


def test_calls_of_files_with_the_same_name_are_not_mixed(source: Path, tmp_path: Path) -> None:
    """Two files may say that they are of one recording, and have other tensors."""
    other = generated(tmp_path / "other.tape", seed=1)
    with open_tape(source) as tape, open_tape(other) as forged:
        copied([tape.calls[0], *forged.calls[1:5]], tmp_path / "b.tape")
    have_equal_values(tmp_path / "b.tape", source, {0: 0})
    have_equal_values(tmp_path / "b.tape", other, {number: number for number in range(1, 5)})


@pytest.mark.parametrize("seed", range(6))
def test_copies_of_any_calls_in_any_order_keep_their_values(
    source: Path, tmp_path: Path, seed: int
) -> None:
    drawn = random.Random(seed)
    numbers = drawn.sample(range(STEPS), drawn.randint(1, STEPS))
    if seed % 2:
        numbers.sort()
    with open_tape(source) as tape:
        copied([tape.calls[number] for number in numbers], tmp_path / "b.tape")
    have_equal_values(tmp_path / "b.tape", source, {number: number for number in numbers})
    with open_tape(tmp_path / "b.tape") as tape:
        copied(tape.calls[len(numbers) // 3 :], tmp_path / "c.tape")
    numbers = sorted(numbers)[len(numbers) // 3 :]
    have_equal_values(tmp_path / "c.tape", source, {number: number for number in numbers})


def test_references_that_no_leaf_names_lead_nowhere(tmp_path: Path) -> None:
    """A stranger's tape may have them. Nothing on the copy leads to them."""
    x = torch.arange(2000.0)
    write_tape(tmp_path / "a.tape", [Recorded((x,)), Recorded((3,)), Recorded((x,))])
    reader, sink = reader_of(tmp_path / "a.tape"), BytesSink()
    writer = TapeWriter(sink, reader.manifest)
    key = reader.record(0).inputs.facts()[0].key
    blob = reader.blob_member(reader.record(0))
    data = bytes(reader.source.read_at(blob.start, blob.size))
    for number, own in enumerate((None, "z", key)):
        document = {name: v for name, v in reader.document(number).items() if name != "blob"}
        document |= {} if own is None else {"at": [(own, 0, key)]}
        writer.append([new_call(number, document, data if own is None else b"")])
    writer.seal(Coverage(seen=3, kept=3))
    (tmp_path / "b.tape").write_bytes(sink.data)
    with open_tape(tmp_path / "b.tape") as tape:
        assert tape.verify() == []
        copied(tape.calls[1:], tmp_path / "c.tape")
    with open_tape(tmp_path / "c.tape") as made:
        assert made.verify() == []
        assert torch.equal(made.find(2).inputs.args[0], x)


@pytest.mark.integration
def test_a_large_call_that_cannot_be_read_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (8, 8, 200_000, 8, 8)
    write_tape(tmp_path / "a.tape", [Recorded((torch.ones(size),)) for size in sizes])
    real = Call.raw_blob

    def raw_blob(call: Call, kept: Any = ()) -> Iterator[bytes]:
        if call.number == 2:
            raise TapeError("limit", "the file is nearly all holes")
        yield from real(call, kept)

    monkeypatch.setattr(Call, "raw_blob", raw_blob)
    lost = []
    with (
        open_tape(tmp_path / "a.tape") as tape,
        NewTape(tmp_path / "b.tape", tape.manifest) as writer,
    ):
        for call in tape.calls:
            try:
                writer.copy(call)
            except TapeError:
                lost.append(call.number)
        writer.seal()
    with open_tape(tmp_path / "b.tape") as made:
        assert made.verify() == []
        assert lost == [2]
        assert [call.number for call in made.calls] == [0, 1, 3, 4]
