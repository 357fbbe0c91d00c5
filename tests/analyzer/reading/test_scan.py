"""The walk over a tape: what it keeps of each call, and that it skips nothing by being quick."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.errors import Damage
from calltape_analyzer.reading.recordings import coverage_without_end
from calltape_analyzer.reading.segment import Segment
from calltape_recorder import Recorder
from calltape_schema.drop_reasons import DropReason
from calltape_schema.packing import pack
from calltape_schema.tar import BLOCK, member_header
from tests.analyzer.tapes import Recorded, write_tape
from tests.forging.changes import member_list


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


def likes(segment: Segment) -> list[int]:
    """A number per call, from 0 on, that is equal for calls of equal inputs."""
    found: dict[int, int] = {}
    return [found.setdefault(segment.inputs_number(at), len(found)) for at in segment.order]


def test_calls_of_equal_inputs_have_the_same_number(tmp_path: Path) -> None:
    segment = opened(recorded(tmp_path / "a.tape", CALLS))
    assert likes(segment) == LIKE
    keys: dict[int, str] = {}
    for position in segment.order:
        record = segment.record(position)
        inputs = record.inputs
        key = inputs.structure, inputs.leaves, pack(inputs.scalars), record.error is not None
        assert keys.setdefault(segment.inputs_number(position), repr(key)) == repr(key)
    assert len(set(keys.values())) == len(keys)


def test_a_hand_written_tape_has_them_too(tmp_path: Path) -> None:
    calls = [
        Recorded(args=(1, FLOATS)), Recorded(args=(1.0, FLOATS)), Recorded(args=(1, FLOATS)),
        Recorded(args=(1, FLOATS), error=("builtins:ValueError", "no"), number=7),
        Recorded(args=(1, FLOATS), number=4),
    ]  # fmt: skip
    segment = opened(write_tape(tmp_path / "a.tape", calls, groups=[2, 3]))
    assert [segment.numbers[position] for position in segment.order] == [0, 1, 2, 4, 7]
    assert likes(segment) == [0, 1, 0, 0, 2]


def test_the_distinct_inputs_have_their_first_and_last_calls(tmp_path: Path) -> None:
    segment = opened(recorded(tmp_path / "a.tape", CALLS))
    found = [(seen.first.number, seen.last.number, seen.calls) for seen in segment.seen_inputs()]
    assert found[:4] == [(0, 2, 2), (1, 1, 1), (3, 4, 2), (5, 7, 2)]
    assert sum(calls for _, _, calls in found) == len(CALLS)


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


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (3, 2, 1, 0)])
def test_a_number_counts_once_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Calls end in another order than they began in. The scan notices a second call of a number
    before the highest, and one of the highest."""
    calls = [Recorded((torch.zeros(n + 1, 3),), number=n) for n in order]
    path = write_tape(tmp_path / "a.tape", calls, sealed=False, target=Model())
    with open_tape(path, scan=True) as tape:
        assert [len(call.tensor("inputs", 0)) for call in tape.calls] == [1, 2, 3, 4]
        assert not tape.damage
    data = path.read_bytes()
    blobs = [one for one in member_list(path) if one.name.startswith("blobs")]
    ends = [*(one.offset for one in blobs[1:]), len(data)]
    for blob, end in zip(blobs, ends, strict=True):
        path.write_bytes(data + data[blob.offset : end])
        with open_tape(path, scan=True) as tape:
            assert [call.number for call in tape.calls] == [0, 1, 2, 3]
            (error,) = tape.damage
        assert "a copy of it" in str(error)


def test_a_group_of_which_one_call_is_there_already_is_none(tmp_path: Path) -> None:
    calls = [Recorded((n,), number=n) for n in (0, 1, 3, 2, 1)]
    path = write_tape(tmp_path / "a.tape", calls, sealed=False, groups=[2, 3])
    with open_tape(path) as tape:
        assert [call.number for call in tape.calls] == [0, 1]
        (error,) = tape.damage
        assert error.member == "records/00000003.msgpack"


@pytest.fixture
def whole(tmp_path: Path) -> tuple[bytes, int]:
    """An unsealed tape of two calls, and the bytes of the first of them."""
    calls = [Recorded(args=(torch.ones(300),), number=number) for number in (0, 1)]
    first = write_tape(tmp_path / "first.tape", calls[:1], sealed=False).read_bytes()
    return write_tape(tmp_path / "both.tape", calls, sealed=False).read_bytes(), len(first)


def test_whatever_is_left_of_the_last_call_is_no_damage(
    whole: tuple[bytes, int], tmp_path: Path
) -> None:
    data, first = whole
    blocks = range(first + BLOCK, len(data), BLOCK)
    for size in (first + 1, first + 100, *blocks, blocks[-1] + 300):
        path = tmp_path / "torn.tape"
        path.write_bytes(data[:size])
        damage = Damage()
        segment = Segment(str(path), damage)
        assert (list(segment.numbers), segment.unfinished) == ([0], size - first)
        assert not damage
        segment.close()
    assert len(Segment(str(tmp_path / "both.tape"), Damage())) == 2


def test_a_group_that_is_cut_short_takes_its_blobs_with_it(tmp_path: Path) -> None:
    calls = [Recorded(args=(torch.ones(300),), number=number) for number in range(4)]
    first = write_tape(tmp_path / "first.tape", calls[:1], sealed=False).stat().st_size
    with closing(Segment(str(tmp_path / "first.tape"), Damage())) as segment:
        tensor_bytes = segment.tensor_bytes
    path = write_tape(tmp_path / "all.tape", calls, sealed=False, groups=[1, 3])
    data = path.read_bytes()
    for size in (first + 700, len(data) - 1500, len(data) - 600):
        path.write_bytes(data[:size])
        damage = Damage()
        with closing(Segment(str(path), damage)) as segment:
            assert (list(segment.numbers), segment.unfinished) == ([0], size - first)
            assert segment.tensor_bytes == tensor_bytes
        assert not damage


def torn(path: Path, data: bytes) -> tuple[int, list[str]]:
    """How many bytes are unfinished, and where damage is."""
    path.write_bytes(data)
    damage = Damage()
    with closing(Segment(str(path), damage)) as segment:
        return segment.unfinished, [f"{one.member} {one.offset}" for one in damage.list()]


def test_damage_before_the_tail_is_damage(whole: tuple[bytes, int], tmp_path: Path) -> None:
    data, first = whole
    broken = bytearray(data[: len(data) - 300])
    blob = data.index(b"blobs/00000000")
    broken[blob : blob + BLOCK] = b"x" * BLOCK
    assert torn(tmp_path / "a.tape", bytes(broken)) == (
        len(broken) - first,
        [f"None {blob}"],
    )


def test_what_no_call_begins_with_is_damage(whole: tuple[bytes, int], tmp_path: Path) -> None:
    data, _ = whole
    found = torn(tmp_path / "a.tape", data + b"x" * 3 * BLOCK)
    assert found == (0, [f"None {len(data)}"])
    found = torn(tmp_path / "b.tape", data + member_header("end.msgpack", 900) + b"x" * BLOCK)
    assert found == (0, [f"end.msgpack {len(data)}"])


def test_zeros_at_the_end_are_no_damage(whole: tuple[bytes, int], tmp_path: Path) -> None:
    assert torn(tmp_path / "a.tape", whole[0] + bytes(5 * BLOCK + 7)) == (0, [])


def test_numbers_tell_how_many_calls_were_seen_at_least() -> None:
    found = coverage_without_end([3, 5, 4, 9], first_call=3)
    assert (found.seen, found.kept, found.dropped) == (7, 4, {DropReason.NOT_SEALED: 3})
    assert coverage_without_end([], first_call=7).seen == 0
    # A call that began before this segment may end in it.
    assert coverage_without_end([2], first_call=7).seen == 1
