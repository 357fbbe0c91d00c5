"""Checks, tapes and files that attack ``minimise``: each ends in a result or in clear words."""

from __future__ import annotations

import gzip
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    InferenceError,
    TapeError,
    UsageError,
    minimise,
    open_tape,
    redact,
)
from calltape_analyzer.testing import call, write_tape
from tests.analyzer.minimising import checked, hostile

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    calls = [call(torch.rand(1, 42 if i == 2 else 3)).returns(torch.zeros(1)) for i in range(4)]
    return write_tape(tmp_path_factory.mktemp("tapes") / "whole.tape", calls, torch.nn.Identity())


def minimised(whole: Path, out: Path, name: str, **options: Any) -> Any:
    with open_tape(whole) as tape:
        return minimise(tape, out, getattr(hostile, name), **options)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("prints", "the check returned true"),
        ("says_much", "RuntimeError: "),
        ("says_nothing", "tests.analyzer.minimising.hostile.WordlessError"),
        ("is_undecided", "ValueError: neither"),
        ("interrupts", "ended by exit code 1"),
        ("goes_away", "the check returned true"),
    ],
)
def test_checks_that_behave_badly_have_an_answer(
    whole: Path, tmp_path: Path, name: str, reason: str
) -> None:
    report = minimised(whole, tmp_path / "o.tape", name)
    assert report.reason.startswith(reason)
    assert len(report.reason) < 1000
    assert report.calls == 1
    assert "\x1b" not in str(report)


@pytest.fixture
def all_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Whether each process that said that it lives has ended; it waits a minute for it."""
    path = tmp_path / "lives"
    os.mkfifo(path)
    monkeypatch.setenv("LIVES", str(path))
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def all_end() -> bool:
        said = b""
        while select.select([pipe], [], [], 60)[0]:
            more = os.read(pipe, 100)
            if not more:
                return bool(said)
            said += more
        return False

    yield all_end
    os.close(pipe)


def test_what_a_check_starts_ends_with_it(
    whole: Path, tmp_path: Path, all_end: Callable[[], bool]
) -> None:
    assert minimised(whole, tmp_path / "o.tape", "starts_others").calls == 1
    assert all_end()


def test_torn_compressed_and_shapes_only_tapes_are_minimised(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    for name, cut in (("torn.tape", content[: len(content) - 1500]), ("gz.tape.gz", None)):
        source = tmp_path / name
        source.write_bytes(gzip.compress(content) if cut is None else cut)
        out = tmp_path / f"{name}.small.tape"
        assert minimised(source, out, "is_bad").calls == 1
        with open_tape(out) as tape:
            assert tape.sealed
            assert tape.calls[0].number == 2
    shapes = tmp_path / "shapes.tape"
    with open_tape(whole) as tape:
        redact(tape, shapes, shapes_only="*")
    out = tmp_path / "shapes.small.tape"
    with open_tape(shapes) as tape:
        report = minimise(tape, out, checked.is_wide)
    assert report.calls == 1


def test_a_tape_without_calls_cannot_be_minimised(tmp_path: Path) -> None:
    empty = write_tape(tmp_path / "empty.tape", [], torch.nn.Identity())
    with pytest.raises(UsageError, match=r"no calls.*calltape info"):
        minimised(empty, tmp_path / "o.tape", "is_bad")


def test_damaged_calls_are_counted(whole: Path, tmp_path: Path) -> None:
    content = bytearray(whole.read_bytes())
    with open_tape(whole) as tape:
        first = bytes(tape.calls[0].stored("inputs", 0) or b"")
    at = content.index(first)
    content[at] ^= 1
    damaged = tmp_path / "damaged.tape"
    damaged.write_bytes(content)
    report = minimised(damaged, tmp_path / "o.tape", "is_bad")
    assert report.notes[0] == "1 call could not be read: left out"
    assert report.calls == 1
    with (
        open_tape(damaged).only(calls="0..1") as tape,
        pytest.raises(InferenceError, match=r"nothing fails .* but 1 call could not be read"),
    ):
        minimise(tape, tmp_path / "other.tape", hostile.is_bad)


def test_results_that_cannot_be_written_are_refused_at_once(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(TapeError, match="it is a directory"):
        minimised(whole, tmp_path, "is_bad", overwrite=True)
    with pytest.raises(TapeError, match="no such directory"):
        minimised(whole, tmp_path / "no" / "o.tape", "is_bad")
    link = tmp_path / "link.tape"
    link.symlink_to(whole)
    content = whole.read_bytes()
    with pytest.raises(UsageError, match="in place"):
        minimised(whole, link, "is_bad", overwrite=True)
    assert whole.read_bytes() == content


def test_nothing_fails_is_no_result(whole: Path, tmp_path: Path) -> None:
    with open_tape(whole) as tape, pytest.raises(InferenceError, match="nothing fails"):
        minimise(tape.only(calls="0..1"), tmp_path / "o.tape", hostile.is_bad)
    assert not (tmp_path / "o.tape").exists()
