"""Tensors whose bytes an earlier call has: no tool notices a difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    TapeError,
    filter_tape,
    merge_tapes,
    minimise,
    open_tape,
    redact,
    replay,
)
from calltape_schema.groups import Group
from tests.analyzer.editing.recordings import contents, values
from tests.analyzer.tapes import Recorded, refer, write_tape
from tests.forging.changes import flip, member_list


class Model(torch.nn.Module):
    def forward(self, x: Any, weight: Any, mask: Any = None) -> Any:
        if mask is not None and mask.sum() > 100:
            raise ValueError("too many")
        return x @ weight


def too_many(tape: Any) -> bool:
    """Whether a call has a mask that the model refuses."""
    return any(call.inputs.kwargs["mask"].sum() > 100 for call in tape)


WEIGHT = torch.arange(6.0).reshape(3, 2)


def written(path: Path, *sizes: int) -> Path:
    """Calls that have a tensor in common, and one that has an input of the call before it."""
    torch.manual_seed(0)
    given = [torch.randn(size, 3) for size in sizes] + [torch.ones(2, 3)] * 2
    calls = [Recorded((x, WEIGHT), outputs=x @ WEIGHT) for x in given]
    return write_tape(path, calls, target=Model())


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A tape with references, and the same one without."""
    plain = written(tmp_path / "plain.tape", 2, 4)
    (tmp_path / "a.tape").write_bytes(plain.read_bytes())
    return refer(tmp_path / "a.tape"), plain


def said(path: Path) -> list[Any]:
    """What a tape says of its calls, without where their tensors are."""
    with open_tape(path, verify=True) as tape:
        assert tape.damage == []
        return [(call.number, values(call.inputs), values(call.outputs)) for call in tape]


def references(path: Path) -> list[int]:
    with open_tape(path) as tape:
        return [len(call.record.at) for call in tape.calls]


def test_values_are_those_of_the_earlier_call(pair: tuple[Path, Path]) -> None:
    assert references(pair[0]) == [0, 1, 1, 3]
    assert said(pair[0]) == said(pair[1])
    with open_tape(pair[0]) as tape:
        first, last = tape[0].inputs.args[1], tape[3].inputs.args[1]
        first.zero_()
        assert torch.equal(last, WEIGHT)


def test_references_hold_for_calls_in_another_order(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    path = tmp_path / "b.tape"
    path.write_bytes(pair[1].read_bytes())
    refer(path, order=(3, 1, 0, 2))
    assert said(path) == said(pair[1])


def test_calls_with_references_replay(pair: tuple[Path, Path]) -> None:
    with open_tape(pair[0]) as tape:
        assert str(replay(tape, Model())).startswith("4 of 4 recorded calls reproduced")


@pytest.mark.parametrize("wanted", ["0..3", "1..3", "3", "2,3"])
def test_filter_resolves_references_to_calls_that_it_drops(
    pair: tuple[Path, Path], tmp_path: Path, wanted: str
) -> None:
    made = []
    for at, path in enumerate(pair):
        with open_tape(path) as tape:
            filter_tape(tape.only(calls=wanted), tmp_path / f"{at}.out.tape")
        made.append(said(tmp_path / f"{at}.out.tape"))
    assert made[0] == made[1]
    with open_tape(tmp_path / "0.out.tape") as one, open_tape(tmp_path / "1.out.tape") as other:
        # A copy of a copy is the same, whatever it was copied from.
        assert len(contents(list(one.calls))) == len(contents(list(other.calls)))


def test_merge_keeps_what_references_lead_to(pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_tape(
        tmp_path / "other.tape", [Recorded((torch.ones(5, 3), WEIGHT), outputs=None)],
        target=Model(), tape_id=b"b" * 16,
    )  # fmt: skip
    with open_tape([pair[0], other]) as tape:
        report = merge_tapes(tape, tmp_path / "m.tape")
    assert (report.calls, report.lost) == (5, ())
    assert [one[1:] for one in said(tmp_path / "m.tape")][:4] == [o[1:] for o in said(pair[1])]


def test_a_part_beside_its_tape_is_no_other_call(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The part has the bytes by itself; its calls say the same."""
    with open_tape(pair[0]) as tape:
        filter_tape(tape.only(calls="1..3"), tmp_path / "part.tape")
    with open_tape([pair[0], tmp_path / "part.tape"]) as tape:
        assert len(tape) == 4
        assert not any("other calls" in str(error) for error in tape.damage), tape.damage


def test_redact_keeps_calls_with_references(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with open_tape(pair[0]) as tape:
        report = redact(tape, tmp_path / "r.tape")
    assert report.calls == 4
    with open_tape(tmp_path / "r.tape", verify=True) as tape:
        assert tape.damage == []
        assert tape[3].inputs.args[1].is_meta


def test_damage_of_a_tensor_costs_each_call_that_has_it(pair: tuple[Path, Path]) -> None:
    blob = next(
        member for member in member_list(pair[0]) if member.name == "blobs/00000000.safetensors"
    )
    flip(pair[0], blob.start + blob.size - 1)
    with open_tape(pair[0]) as tape:
        told = [str(error) for error in tape.verify()]
        assert len(told) == 4
        assert all(f"call {number} has tensors of call 0" in told[number] for number in (1, 2, 3))
        assert list(tape) == []
        with pytest.raises(TapeError, match="call 3 has tensors of call 0"):
            tape[3].inputs  # noqa: B018
    with open_tape(pair[0], verify=True) as tape:
        assert len(tape) == 0


def test_a_header_of_a_blob_is_not_believed_before_its_checksum(tmp_path: Path) -> None:
    """A flipped bit is damage: it is copied again, and its sender is not asked."""
    path = write_tape(tmp_path / "a.tape", [Recorded((torch.ones(2),), outputs=None)])
    flip(path, path.read_bytes().index(b'"F32"') + 1)
    with open_tape(path) as tape, pytest.raises(TapeError, match="checksum of its ten") as raised:
        tape[0].inputs  # noqa: B018
    assert raised.value.kind == "damaged"


def test_damage_of_a_call_costs_those_that_refer_to_it(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its record is gone: the others cannot find their tensors."""
    group = next(one for one in member_list(pair[0]) if one.name == "records/00000002.msgpack")
    flip(pair[0], group.start + group.size - 20)
    with open_tape(pair[0]) as tape:
        assert [call.number for call in tape] == [0, 1]
        assert len(tape.damage) == 2
        report = filter_tape(tape, tmp_path / "b.tape")
    assert report.calls == 2
    assert [one[0] for one in said(tmp_path / "b.tape")] == [0, 1]


def test_a_holder_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.full((2,), float(n)) for n in range(40)]
    path = write_tape(tmp_path / "a.tape", [Recorded((*tensors,)), Recorded((*tensors,))])
    refer(path)
    found: list[int] = []
    real = Group.record
    monkeypatch.setattr(Group, "record", lambda self, at: (found.append(at), real(self, at))[1])
    with open_tape(path) as tape:
        assert all(map(torch.equal, tape[1].inputs.args, tensors))
    assert len(found) <= 4


@pytest.mark.integration
def test_minimise_resolves_references(tmp_path: Path) -> None:
    mask = torch.full((200,), 1)
    calls = [Recorded((torch.ones(n, 3), WEIGHT), {"mask": mask}) for n in (2, 4)]
    path = refer(write_tape(tmp_path / "a.tape", calls, target=Model()))
    with open_tape(path) as tape:
        minimise(tape, tmp_path / "m.tape", too_many)
    with open_tape(tmp_path / "m.tape", verify=True) as tape:
        assert tape.damage == []
        assert len(tape) == 1
        assert too_many(tape)
