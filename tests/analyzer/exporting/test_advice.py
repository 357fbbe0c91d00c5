"""What an error or a note tells people to do works: each piece of advice is given, and followed.

Advice about generators, block masks and nested tensors is followed beside the tests of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from calltape_analyzer import ExportError, NoVariant, export, load_programs, open_tape
from calltape_analyzer.exporting.causes import cause_of
from calltape_recorder import record
from tests.analyzer.exported import Call, call, made, taped


class Calling(torch.nn.Module):
    """Calls a function; the tests say which."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.lstm = torch.nn.LSTM(4, 4, batch_first=True)
        self.offset: Any = 0

    def forward(self, x: Any, y: Any = None) -> Any:
        return self.function(self, x, y)


class ReadsValues(NamedTuple):
    """A function that a bare export cannot trace, and what it becomes if its author does as told.

    Attributes:
        told: the advice.
        bad, good: before and after.
        arguments: of a call, by a size.
        followed: arguments afterwards, if others; the results of both are the same.
    """

    told: str
    bad: Callable[..., Any]
    good: Callable[..., Any]
    arguments: Callable[[int], Call]
    followed: Callable[[int], Call] | None = None


def packed(own: Any, x: Any, lengths: Any) -> Any:
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    one = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(own.lstm(one)[0], batch_first=True)[0]


def padded(own: Any, x: Any, lengths: Any) -> Any:
    known = torch.arange(x.shape[1])[None] < lengths[:, None]
    return own.lstm(x)[0] * known[:, :, None]


def read(own: Any, x: Any, y: Any) -> Any:
    return x[:, : int(y)] + 1


def passed(own: Any, x: Any, y: Any) -> Any:
    return x[:, :y] + 1


def rooted(own: Any, x: Any, y: Any) -> Any:
    return x * math.sqrt(y.item())


def kept_a_tensor(own: Any, x: Any, y: Any) -> Any:
    return x * y.sqrt()


def branching(own: Any, x: Any, y: Any) -> Any:
    if y.sum() > 0:
        return x + 1
    return x - 1


def choosing(own: Any, x: Any, y: Any) -> Any:
    return torch.where(y.sum() > 0, x + 1, x - 1)


def choosing_a_function(own: Any, x: Any, y: Any) -> Any:
    return torch.cond(y.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))


def checking(own: Any, x: Any, y: Any) -> Any:
    assert (y >= 0).all()
    return x + y


def checking_eagerly(own: Any, x: Any, y: Any) -> Any:
    if not torch.compiler.is_exporting():
        assert (y >= 0).all()
    return x + y


def selecting(own: Any, x: Any, y: Any) -> Any:
    mask = y > 0
    return x[mask].chunk(1)[0].sum()


def multiplying(own: Any, x: Any, y: Any) -> Any:
    return (x * (y > 0)).sum()


def looping(own: Any, x: Any, y: Any) -> Any:
    for _ in range(y):
        x = x * 2
    return x


def looping_over_a_size(own: Any, x: Any, y: Any) -> Any:
    rounds = torch.arange(x.shape[0]) < y
    return x * torch.where(rounds, 2, 1).prod()


def with_lengths(n: int) -> Call:
    return call(torch.ones(2, n, 4), torch.tensor([n, n - 1]))


def with_number(n: int) -> Call:
    return call(torch.ones(2, n), torch.tensor(n - 1))


def with_root(n: int) -> Call:
    return call(torch.ones(n), torch.tensor(float(n)))


def with_ones(n: int) -> Call:
    return call(torch.ones(n), torch.ones(n))


def with_rounds(n: int) -> Call:
    return call(torch.ones(n), torch.tensor(n - 1))


READING = {
    "packed": ReadsValues("pass padded sequences", packed, padded, with_lengths),
    "number": ReadsValues(
        "pass the number as an argument", read, passed, with_number,
        lambda n: call(torch.ones(2, n), n - 1),
    ),
    "root": ReadsValues("keep it a tensor", rooted, kept_a_tensor, with_root),
    "function": ReadsValues("or torch.cond", branching, choosing_a_function, with_ones),
    "branch": ReadsValues("use torch.where", branching, choosing, with_ones),
    "check": ReadsValues(
        "leave the check out while torch.compiler.is_exporting()", checking, checking_eagerly,
        with_ones,
    ),
    "selection": ReadsValues("multiply by the mask", selecting, multiplying, with_ones),
    "loop": ReadsValues("loop over a size", looping, looping_over_a_size, with_rounds),
}  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("name", list(READING))
def test_a_model_that_reads_values_follows_the_advice(name: str, tmp_path: Path) -> None:
    case = READING[name]
    bad, good = Calling(case.bad).eval(), Calling(case.good).eval()
    good.load_state_dict(bad.state_dict())
    args, _ = case.arguments(5)
    with pytest.raises(Exception, match=r"(?s).*") as caught:  # torch has many types
        torch.export.export(bad, args, strict=False)
    assert case.told in str(cause_of(caught.value))
    follow = case.followed or case.arguments
    for n in (3, 5, 6):
        before, after = bad(*case.arguments(n)[0]), good(*follow(n)[0])
        torch.testing.assert_close(after, before)
    programs = made(tmp_path, good, list(map(follow, (3, 5, 6))), [follow(8)])
    assert [verdict.scope for verdict in programs.verdicts] == ["general"]


def by_flag(own: Any, x: Any, y: Any) -> Any:
    return x * 2 if x.is_conj() else x


def by_argument(own: Any, x: Any, y: Any) -> Any:
    return x * 2 if y else x


def by_own_tensor(own: Any, x: Any, y: Any) -> Any:
    return x * 2 if x is own.lstm.bias_ih_l0 else x


def plain(own: Any, x: Any, y: Any) -> Any:
    return x + 1


def conjugated(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.complex64).conj()


@pytest.mark.integration
def test_a_model_that_reads_a_flag_gets_it_as_an_argument(tmp_path: Path) -> None:
    with record(model := Calling(by_flag), tmp_path / "calls.tape"):
        for n in (2, 3, 5):
            model(conjugated(n))
    tape = open_tape(tmp_path / "calls.tape")
    with pytest.raises(ExportError, match=r"its code asks for is_conj\(\)") as caught:
        export(tape, model)
    assert str(caught.value.advice).endswith("; or pass what it asks for as an argument")
    follow = [call(torch.ones(n, dtype=torch.complex64), True) for n in (2, 3, 5)]
    made(_folder(tmp_path), Calling(by_argument), follow)


@pytest.mark.integration
def test_a_copy_is_passed_in_place_of_the_model_s_own_tensor(tmp_path: Path) -> None:
    model = Calling(by_own_tensor).eval()
    own = model.lstm.bias_ih_l0.detach

    def tape(folder: Path, given: Any) -> Any:
        with record(model, folder / "calls.tape"), torch.no_grad():
            for x in (given, torch.ones(3), torch.ones(5)):
                model(x)
        return open_tape(folder / "calls.tape")

    with pytest.raises(ExportError, match=r"is the model's own lstm\.bias_ih_l0") as caught:
        export(tape(tmp_path, model.lstm.bias_ih_l0), model)
    assert caught.value.advice == "a program gets copies: pass a copy, and record again"
    programs = export(tape(_folder(tmp_path), own().clone()), model)
    assert programs.verify().ok
    with pytest.raises(NoVariant) as refused:
        programs(model.lstm.bias_ih_l0)
    assert refused.value.advice == "pass a copy of it, if a copy is meant"
    assert torch.equal(programs(own().clone()), own())


def test_a_call_whose_outputs_have_elements_is_recorded(tmp_path: Path) -> None:
    def few(own: Any, x: Any, y: Any) -> Any:
        return x[3:] + 1

    model = Calling(few)
    with pytest.raises(ExportError, match="nothing was compared") as caught:
        export(taped(tmp_path, model, [call(torch.ones(n)) for n in (2, 3)]), model)
    assert "record a call whose outputs have some" in str(caught.value)
    more = export(
        taped(_folder(tmp_path), model, [call(torch.ones(n)) for n in (2, 3, 5, 6)]), model
    )
    # What has elements is served, and the other side of its branch is still nobody's proof.
    (verdict,) = more.verdicts
    assert (verdict.scope, verdict.rejected, verdict.open) == ("recorded sizes only", 2, ("x[0]",))
    assert torch.equal(more(torch.ones(7)), torch.full((4,), 2.0))


def test_an_argument_that_was_not_kept_is_left_out(tmp_path: Path) -> None:
    model = Calling(plain)
    calls = [call(torch.ones(n), torch.ones(2).to_sparse()) for n in (2, 3, 5)]
    tape = taped(tmp_path, model, calls)
    with pytest.raises(ExportError, match="has no values on a tape"):
        export(tape, model)
    assert tape.remove_inputs(["y"])
    programs = export(tape, model)
    with pytest.raises(NoVariant) as refused:
        programs(torch.ones(4), y=torch.ones(2))
    assert "call it without y" in str(refused.value.advice)
    assert torch.equal(programs(torch.ones(4)), torch.ones(4) + 1)


class Counts(torch.nn.Module):
    """Its calls change an attribute, or what stands in its place."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.count = 0
        self.register_buffer("held", torch.zeros(()))

    def forward(self, x: torch.Tensor, held: Any = None) -> Any:
        if self.kind == "attribute":
            self.count += 1
            return x + self.count
        if self.kind == "buffer":
            self.held += 1
            return x + self.held
        return x + held + 1, held + 1


def test_state_is_kept_in_a_buffer_or_passed(tmp_path: Path) -> None:
    model = Counts("attribute")
    with pytest.raises(ExportError, match="count") as caught:
        export(
            taped(tmp_path, model, [call(torch.ones(n)) for n in (2, 3, 5)]), Counts("attribute")
        )
    text = str(caught.value)
    assert "keep it in a registered buffer, or let the model take it as an argument" in text
    buffer = Counts("buffer")
    tape = taped(_folder(tmp_path), buffer, [call(torch.ones(n)) for n in (2, 3, 5)])
    # In the state in which the recording began.
    programs = export(tape, Counts("buffer"))
    assert programs.verify().ok
    assert [float(programs(torch.zeros(1))) for _ in range(3)] == [1.0, 2.0, 3.0]
    calls = [call(torch.ones(n), torch.tensor(float(n))) for n in (2, 3, 5)]
    made(_folder(tmp_path, "passed"), Counts("argument"), calls)


def test_calls_like_a_refused_one_are_recorded_as_well(tmp_path: Path) -> None:
    def either(own: Any, x: Any, y: Any) -> Any:
        return x + 1 if y is None else x + y

    model = Calling(either)
    calls = [call(torch.ones(n)) for n in (2, 3, 5)]
    programs = made(tmp_path, model, calls)
    with pytest.raises(NoVariant) as refused:
        programs(torch.ones(4), y=torch.ones(4))
    assert refused.value.advice == "record calls like this one as well, and export again"
    more = [call(torch.ones(n), y=torch.ones(n)) for n in (2, 3, 5)]
    followed = made(_folder(tmp_path), model, [*calls, *more])
    followed.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert torch.equal(loaded(torch.ones(4), y=torch.ones(4)), torch.full((4,), 2.0))


def _folder(inside: Path, name: str = "followed") -> Path:
    folder = inside / name
    folder.mkdir()
    return folder
