"""Promise: a tape of some kilobytes takes neither minutes nor gigabytes, at the prompt or by the
API, and the limits that it meets can be raised. Costs are counted in work, not in seconds."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import Limits, Tape, TapeError, open_tape
from calltape_analyzer import limits as budgets
from calltape_schema import inputs_document
from calltape_schema.bounds import MAX_ALIKE, MAX_ROW_BYTES
from calltape_schema.packing import unpack
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import write_tape
from tests.raising import raises
from tests.schema.container.tapes import hashed_bytes, sharing
from tests.security import costly
from tests.security.costly import COSTLY, inputs_of, packed_tapes, sealed


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_tape(tmp_path / "small.tape", [((n,), {}) for n in range(5)])


def test_a_structure_that_rows_share_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = hashed_bytes(monkeypatch)
    with open_tape(costly.long_structures(tmp_path / "a.tape")) as tape:
        hashed.clear()
        tape.variants()
        assert tape.damage
    assert sum(hashed) < 8 * MAX_ROW_BYTES


def test_ranges_of_leaves_that_are_not_there_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def unpacked(data: bytes) -> Any:
        sizes.append(len(data))
        return unpack(data)

    monkeypatch.setattr(inputs_document, "unpack", unpacked)
    with open_tape(costly.ranges_of_rows(tmp_path / "a.tape")) as tape:
        tape.variants()
        (error,) = tape.damage
    assert "ranges of leaves that have no integers" in str(error)
    assert len([size for size in sizes if size > 100_000]) == 1  # the table itself


def test_few_wide_ints_of_one_hash_are_taken(tmp_path: Path) -> None:
    """A set of n of them takes n * n steps."""
    with open_tape(costly.wide_ints(tmp_path / "survey.tape", 3000)) as tape:
        found = sum(map(len, tape.variants()))
        assert MAX_ALIKE < found <= MAX_ALIKE + 16, "narrow ints of the same hash are few"
        (error,) = tape.damage
        assert (error.kind, error.member) == ("limit", "end.msgpack")
        assert f"{3000 - found:,} calls" in error.reason
    with open_tape(costly.wide_ints_of_calls(tmp_path / "calls.tape", 1000)) as tape:
        found = sum(map(len, tape.variants()))
        assert MAX_ALIKE < found == len(list(tape.calls)) <= MAX_ALIKE + 16
        assert {error.kind for error in tape.damage} <= {"limit", "damaged"}


@pytest.mark.integration
@pytest.mark.parametrize("name", COSTLY)
def test_no_question_takes_long(tmp_path: Path, name: str) -> None:
    """Five times what it may take, because a machine may be slow to look."""
    path = COSTLY[name](tmp_path / "a.tape")
    assert path.stat().st_size < 4 * 2**20
    questions = (Tape.variants, Tape.observations, lambda tape: tape.single, Tape.verify)
    for ask in questions:
        began = time.thread_time()
        with contextlib.suppress(TapeError), open_tape(path) as tape:
            ask(tape)
        assert time.thread_time() - began < 5 * budgets.seconds_for(path.stat().st_size)


# The limits of the API.


def busy(*_: Any) -> None:
    while True:
        sum(range(1000))


def test_a_question_that_takes_too_long_is_a_tape_error(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calltape_analyzer.variant.find_variants", busy)
    with open_tape(small, limits=Limits(seconds=0.2)) as tape:
        with raises("limit") as caught:
            tape.variants()
        assert "more than 0.2 s of processor time" in caught.value.reason
        assert "limits=Limits(seconds=600)" in str(caught.value)
        with pytest.raises(TapeError, match=r"more than 0\.1 s"):  # each time half of it
            tape.variants()
        assert len(tape.calls[0].inputs.args) == 1, "other questions are answered"


def test_limits_hold_within_a_block(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calltape_analyzer.variant.find_variants", busy)
    with open_tape(small) as tape, Limits(seconds=0.1), pytest.raises(TapeError, match="more than"):
        tape.variants()
    assert budgets.limits() == Limits()


def test_the_limits_of_the_format_can_be_raised(tmp_path: Path) -> None:
    path = tmp_path / "a.tape"
    path.write_bytes(sharing(1026))
    with open_tape(path) as tape, pytest.raises(TapeError, match="more than 1024 leaves"):
        tape.calls[0].record  # noqa: B018
    with open_tape(path, limits=Limits(format_times=2)) as tape:
        assert len(tape.calls[0].record.inputs.facts()) == 1026
        assert tape.damage == []
    with Limits(format_times=2), open_tape(path) as tape:
        assert len(tape.calls[0].record.inputs.facts()) == 1026


def test_memory_has_a_limit(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(*_: Any) -> None:
        held = []
        while True:
            held.append(b"x" * 2**20)
            sum(range(20_000))

    monkeypatch.setattr("calltape_analyzer.variant.find_variants", grow)
    with (
        open_tape(small, limits=Limits(seconds=60, nbytes=0)) as tape,
        pytest.raises(TapeError, match="64 MiB of memory"),  # a process always takes some
    ):
        tape.variants()


def test_code_that_handles_the_error_of_a_limit_does_not_hide_it(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydantic makes another error of what is raised in code that it calls."""

    def handled(*_: Any) -> list[Any]:
        try:
            busy()
        except BaseException:
            return []
        raise AssertionError

    monkeypatch.setattr("calltape_analyzer.variant.find_variants", handled)
    with (
        open_tape(small, limits=Limits(seconds=0.1)) as tape,
        pytest.raises(TapeError, match="more than"),
    ):
        tape.variants()


def test_going_through_calls_has_a_limit(tmp_path: Path) -> None:
    made = inputs_of([{"kind": "tensor", "leaf": 0}], [(2, 3)])
    path = sealed(tmp_path / "a.tape", [made] * 50)
    with open_tape(path) as tape:
        # No time at all: where that is noticed depends on the machine, on the way to them too.
        for calls in (lambda: tape.calls, lambda: tape, lambda: tape.calls.by_recording()[0]):
            with Limits(seconds=0), pytest.raises(TapeError, match="of processor time"):
                list(calls())
    with open_tape(path) as tape:
        assert len(list(tape.calls)) == 50


def test_a_command_has_limits_of_its_own(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calltape_analyzer.variant.find_variants", busy)
    ran = run("--max-seconds", "0.2", "variants", small)
    assert ran.code == 1
    assert "more than 0.2 s of processor time" in ran.err
    assert "calltape --max-seconds" in ran.err


# Temporary files.


def test_compressed_tapes_have_one_room_together(tmp_path: Path) -> None:
    """Eight files of some kilobytes took gigabytes of a disk."""
    mebibyte = 2**20
    packed_tapes(tmp_path, 3 * mebibyte)
    for _ in range(2):  # what is closed has no room any more
        with open_tape(tmp_path, limits=Limits(nbytes=4 * mebibyte)) as tape:
            assert len(tape.paths) == 1
            assert [error.kind for error in tape.damage] == ["limit"] * 7
            assert "open together" in str(tape.damage[0])
            assert "limits=Limits(nbytes=" in str(tape.damage[0])
    with open_tape(tmp_path, limits=Limits(nbytes=64 * mebibyte)) as tape:
        assert not any(error.kind == "limit" for error in tape.damage)
