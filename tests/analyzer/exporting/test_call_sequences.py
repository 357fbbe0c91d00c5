"""A model may keep something of a call for the next one. A program does as well, or there is none,
or it says so; what is only kept, and read by no later call, is no reason to refuse."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from calltape_analyzer import ExportError, ExportOptions, NoVariant, export
from calltape_analyzer.programs.reasons import StateNeeded
from calltape_analyzer.programs.strategies import Strategy
from tests.analyzer.exported import Call, assert_as_module, call, taped
from tests.analyzer.exporting.models import t

SIZES = (4, 6, 5, 7)
CALLS = [call(t(n, 3)) for n in SIZES]
UNSEEN = [call(t(n, 3)) for n in (9, 9, 8)]
ALIKE = [call(t(4, 3)) for _ in range(3)]

_held: dict[str, Any] = {}

# Calls that nobody can undo are made in a fork.
pytestmark = pytest.mark.forks


def made(cls: type[Any]) -> Any:
    """A model as no call left it."""
    _held.clear()
    InAClass.last = None
    return cls()


class Stateful(torch.nn.Module):
    """Adds what was left by the call before to each row."""

    step: Any
    """Gives what the call before left, and leaves something for the next."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.step(x.sum(0))


class NoneAtFirst(Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None

    def step(self, total):
        before = torch.zeros(3) if self.last is None else self.last
        self.last = before + total
        return before


class Replaced(Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(3)

    def step(self, total):
        before, self.last = self.last, total
        return before


class InASubmodule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Replaced()

    def forward(self, x):
        return self.part(x)


class InAList(Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.past: list[Tensor] = []

    def step(self, total):
        self.past.append(total)
        return torch.stack(self.past).sum(0)


class InADeque(Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.past = deque([torch.zeros(3)] * 2, maxlen=2)

    def step(self, total):
        before = self.past[0]
        self.past.append(total)
        return before


class InAnObject(Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.kept = SimpleNamespace(last=torch.zeros(3))

    def step(self, total):
        before, self.kept.last = self.kept.last, total
        return before


class Counted(Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def step(self, total):
        self.calls += 1
        return total * self.calls


class PartlyABuffer(Stateful):
    """A cache in a buffer, filled at a number of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 3))
        self.at = 0

    def step(self, total):
        self.cache[self.at] = total
        self.at += 1
        return self.cache.sum(0)


class InPlace(Stateful):
    """Writes to a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(3)

    def step(self, total):
        before = self.last.clone()
        self.last.copy_(total)
        return before


class InPlaceInADict(Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.past = {"total": torch.zeros(3)}

    def step(self, total):
        return self.past["total"].add_(total).clone()


class InAGlobal(Stateful):
    def step(self, total):
        before = _held.get("last", torch.zeros(3))
        _held["last"] = total
        return before


class InAClass(Stateful):
    last: Any = None

    def step(self, total):
        before = torch.zeros(3) if InAClass.last is None else InAClass.last
        InAClass.last = total
        return before


class InAClosure(Stateful):
    def __init__(self) -> None:
        super().__init__()
        last = torch.zeros(3)

        def step(total):
            nonlocal last
            before, last = last, total
            return before

        self.step = step  # type: ignore[method-assign]


class InAGenerator(Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = iter(range(1, 1000))

    def step(self, total):
        return total * next(self.numbers)


class InSlots(Stateful):
    class Held:
        __slots__ = ("last",)

    def __init__(self) -> None:
        super().__init__()
        self.kept = self.Held()
        self.kept.last = torch.zeros(3)

    def step(self, total):
        before, self.kept.last = self.kept.last, total
        return before


SEEN = {
    NoneAtFirst: "last",
    Replaced: "last",
    InASubmodule: "part.last",
    InAList: "past",
    InADeque: "past",
    InAnObject: "kept",
    Counted: "calls",
    PartlyABuffer: "at",
}
OUT_OF_SIGHT = (InAGlobal, InAClass, InAClosure, InAGenerator, InSlots)


@pytest.mark.integration
@pytest.mark.parametrize(("cls", "name"), SEEN.items())
def test_state_that_no_program_keeps_is_refused_by_its_name(
    cls: type[Any], name: str, tmp_path: Path
) -> None:
    tape, model = taped(tmp_path, cls(), CALLS), cls().eval()
    with pytest.raises(ExportError) as raised:
        export(tape, model, options=ExportOptions(probe="none"))
    assert f"depends on what the call before left in it ({name})" in str(raised.value)
    assert "is not reproduced (keep it in a registered buffer" in str(raised.value)
    assert torch.equal(model(*UNSEEN[0][0]), cls()(*UNSEEN[0][0]))  # it is as it was


@pytest.mark.parametrize("cls", OUT_OF_SIGHT)
def test_state_that_nobody_sees_is_refused_before_a_trace_moves_it(
    cls: type[Any], tmp_path: Path
) -> None:
    tape, model = taped(tmp_path, made(cls), CALLS), made(cls)
    with pytest.raises(ExportError, match="something else when it is called again") as raised:
        export(tape, model)
    assert [attempt.strategy for attempt in raised.value.attempts] == [Strategy.IN_A_ROW]
    expected = model(*UNSEEN[0][0])
    assert torch.equal(expected, made(cls)(*UNSEEN[0][0]))  # it is as it was


@pytest.mark.integration
@pytest.mark.parametrize("cls", [InPlace, InPlaceInADict])
def test_a_tensor_that_is_written_in_place_is_kept_like_a_buffer(
    cls: type[Any], tmp_path: Path
) -> None:
    programs = export(taped(tmp_path, cls(), CALLS), cls())
    report = programs.verify()
    assert report.ok, report.table()
    assert_as_module(programs, cls(), UNSEEN)


def test_calls_of_one_size_show_it_as_well(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="call 1 is not reproduced"):
        export(taped(tmp_path, Replaced(), ALIKE), Replaced(), options=ExportOptions(probe="none"))


def test_a_state_that_the_host_puts_back_is_a_note(tmp_path: Path) -> None:
    class PutBack(NoneAtFirst):
        def __call__(self, *args: Any) -> Any:
            self.last = None
            return super().__call__(*args)

    model = NoneAtFirst()
    (program,) = (programs := export(taped(tmp_path, PutBack(), CALLS), model)).values()
    report = programs.verify()
    assert report.ok, report.table()
    assert program.depends
    assert "depends on it: only calls that begin in that state are right" in report.table()
    assert "keep it in a registered buffer" in report.table()
    assert_as_module(programs, PutBack(), UNSEEN)


def test_a_row_in_which_the_model_raises_shows_it_as_well(tmp_path: Path) -> None:
    model = PartlyABuffer()
    tape = taped(tmp_path, model, CALLS)  # exported as the recording left it, half full
    with pytest.raises(ExportError, match=r"left in it \(at\)"):
        export(tape, model, options=ExportOptions(probe="none"))


def test_one_call_does_not_show_that_state_is_put_back(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="in another order, or after more of them"):
        export(taped(tmp_path, Replaced(), CALLS[:1]), Replaced())


class Restarting(Counted):
    def forward(self, x: Tensor, restart: bool = False) -> Tensor:  # type: ignore[override]
        self.calls = 0 if restart else self.calls
        return super().forward(x)


@pytest.mark.integration
def test_calls_that_begin_anew_keep_their_program(tmp_path: Path) -> None:
    begin = [call(t(n, 3), restart=True) for n in (4, 6)]
    tape = taped(tmp_path, Restarting(), [begin[0], *CALLS[:2], begin[1], *CALLS[:2]])
    (program,) = (programs := export(tape, Restarting())).values()
    assert program.depends is False
    assert_as_module(programs, Restarting(), begin)
    (why,) = programs.missing.values()
    assert isinstance(why, StateNeeded)
    assert why.names == ("calls",)
    assert [row.ok for row in programs.verify()] == [True, False, False, True, False, False]


class Harmless(torch.nn.Module):
    """Keeps much, and reads of earlier calls only what it would make again."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = None
        self.rows: Any = None
        self.calls = 0
        self.maps: Any = None
        self.losses: list[Any] = []
        self.open: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = torch.linspace(0, 1, 3)
        if self.rows is None or self.rows.shape[0] < x.shape[0]:
            self.rows = torch.arange(x.shape[0])[:, None] * 0.1
        self.calls += 1
        self.maps = x.softmax(-1)
        self.losses.append(x.mean())
        self.open = []
        self.open.append(x * self.scale)
        return self.open[0] + self.rows[: x.shape[0]] + self.maps + _table(3)


@lru_cache
def _table(size: int) -> Tensor:
    _held["calls"] = _held.get("calls", 0) + 1
    return torch.arange(size) * 0.5


def test_what_no_later_call_reads_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (program,) = (programs := export(taped(tmp_path, Harmless(), CALLS), Harmless())).values()
    report = programs.verify()
    assert report.ok, report.table()
    assert program.depends is False
    assert "what the model returned in calls in a row did not depend on it" in report.table()
    assert_as_module(programs, Harmless(), UNSEEN)


class Noisy(Replaced):
    def step(self, total):
        return super().step(total) * 0 + torch.rand(3)


def test_random_numbers_are_no_state(tmp_path: Path) -> None:
    programs = export(taped(tmp_path, Noisy(), CALLS), Noisy())
    assert programs.verify().ok
    assert [program.depends for program in programs.values()] == [False]


class WritesOrReads(torch.nn.Module):
    """Calls of one kind leave something, and those of another read it."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt: Any = torch.zeros(3)

    def forward(self, x: Tensor, prompt: bool = False) -> Tensor:
        if prompt:
            self.prompt = x.sum(0)
            return x * 2
        return x + self.prompt


@pytest.mark.integration
def test_a_call_of_another_variant_may_leave_it(tmp_path: Path) -> None:
    calls: list[Call] = [call(t(5, 3), prompt=True), call(t(4, 3)), call(t(6, 3))]
    programs = export(taped(tmp_path, WritesOrReads(), calls), WritesOrReads())
    assert [program.depends for program in programs.values()] == [False]
    (why,) = programs.missing.values()
    assert isinstance(why, StateNeeded)
    assert why.names == ("prompt",)


class LongestByNow(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.longest = 4

    def forward(self, x: Tensor) -> Tensor:
        self.longest = max(self.longest, x.shape[0])
        return x * self.longest


def test_a_result_that_only_a_call_between_explains_is_of_state(tmp_path: Path) -> None:
    """The first and the last size leave nothing when they are run, which looks like other
    weights."""
    calls = [call(t(n, 3)) for n in (3, 6, 4)]
    with pytest.raises(ExportError, match=r"left in it \(longest\)") as caught:
        export(taped(tmp_path, LongestByNow(), calls), LongestByNow())
    assert "other weights" not in str(caught.value)


@pytest.mark.integration
def test_a_cache_that_a_model_keeps_for_itself_is_state(tmp_path: Path) -> None:
    from transformers import DynamicCache

    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache = DynamicCache()

        def forward(self, x):
            keys, _ = self.cache.update(x[None, None], x[None, None], 0)
            return x + keys.sum((0, 1, 2))

    tape, model = taped(tmp_path, Cached(), CALLS), Cached()
    with pytest.raises(ExportError, match=r"left in it \(cache\)"):
        export(tape, model)
    assert model.cache.get_seq_length() == 0


@pytest.mark.integration
def test_an_onnx_program_keeps_no_state(tmp_path: Path) -> None:
    class InABuffer(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(3))

        def step(self, total):
            before = self.last.clone()
            self.last.copy_(total)
            return before

    tape = taped(tmp_path, InABuffer(), CALLS)
    assert export(tape, InABuffer()).verify().ok
    with pytest.raises(ExportError, match=r"\(let the model take it as an argument and return it"):
        export(tape, InABuffer(), to="onnx")


class LongestSoFar(torch.nn.Module):
    """Positions are scaled by the longest input so far, until a short one comes."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 16
        self.register_buffer("frequency", torch.tensor(1.0), persistent=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        n = positions.max() + 1
        if n > self.longest:
            self.register_buffer("frequency", 16 / n, persistent=False)
            self.longest = n
        if n < 16 and self.longest > 16:
            self.register_buffer("frequency", torch.tensor(1.0), persistent=False)
            self.longest = 16
        return x * self.frequency


class WarmsUp(torch.nn.Module):
    """The first calls return something else."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 2 if self.calls > 8 else x


class Counts(torch.nn.Module):
    """Nothing that is returned depends on the count."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 2


def test_state_that_only_another_order_shows(tmp_path: Path) -> None:
    model = LongestSoFar().eval()
    calls = [call(torch.ones(2, n), torch.arange(n)) for n in (6, 11, 24, 31, 40)]
    programs = export(taped(tmp_path, model, calls), model)
    assert all("longest" in why.names for why in programs.missing.values())
    assert programs.missing
    with pytest.raises(NoVariant):
        programs(torch.ones(2, 30), torch.arange(30))


def test_a_counter_that_decides_later_is_named_as_state(tmp_path: Path) -> None:
    calls = [call(torch.ones(n, 2)) for n in (2, 3)]
    with pytest.raises(ExportError, match=r"depends on what the call before left in it .calls"):
        export(taped(tmp_path, WarmsUp(), calls), WarmsUp())
    (tmp_path / "b").mkdir()
    assert len(export(taped(tmp_path / "b", Counts(), calls), Counts())) == 1
