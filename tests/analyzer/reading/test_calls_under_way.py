"""Calls that were written ahead, and had not ended when the process died."""

from __future__ import annotations

from pathlib import Path

from calltape_analyzer import open_tape
from tests.analyzer.observing.doubling import ZEROS, Doubling
from tests.analyzer.tapes import Recorded, write_tape


def ahead(tmp_path: Path, *numbers: int) -> Path:
    """A recording that was killed in a call."""
    calls = [Recorded((ZEROS(2 + n, 4),), outputs=ZEROS(2 + n, 4), number=n) for n in range(3)]
    write_tape(tmp_path / "a.tape", calls, target=Doubling(), sealed=False)
    for file, number in enumerate(numbers):
        call = Recorded(
            (ZEROS(9, 4),), outputs_missing="under way", number=number, duration_ns=None
        )
        write_tape(tmp_path / f"a.ahead-{file}.tape", [call], target=Doubling(), sealed=False)
    write_tape(tmp_path / "a.ahead-9.tape", [], target=Doubling(), sealed=False)
    return tmp_path


def test_a_call_under_way_is_a_call_of_the_tape(tmp_path: Path) -> None:
    with open_tape(ahead(tmp_path, 3)) as tape:
        assert [call.number for call in tape.calls] == [0, 1, 2, 3]
        assert [call.number for call in tape.under_way] == [3]
        assert tape.under_way[0].index == 3
        assert tape[3].under_way
        assert not tape[0].under_way
        assert "1 of them under way when the process died" in repr(tape)
        assert (tape.coverage.seen, tape.coverage.kept) == (4, 4)
        assert tape.counters.missing == {str(tmp_path / "a.tape")}
        (variant,) = tape.variants()
        assert variant.findings.tensors[0].dimensions[0].max == 9
        assert tape.infer_arguments(3).args[0].shape == (9, 4)


def test_a_call_that_ended_after_all_is_there_once(tmp_path: Path) -> None:
    with open_tape(ahead(tmp_path, 1, 5)) as tape:
        assert [call.number for call in tape.calls] == [0, 1, 2, 5]
        assert [call.number for call in tape.under_way] == [5]
        assert tape.find(1).outputs is not None


def test_replay_leaves_a_call_under_way_out(tmp_path: Path) -> None:
    from calltape_analyzer import replay

    with open_tape(ahead(tmp_path, 3)) as tape:
        report = replay(tape, lambda x: x)
    assert report.ok
    assert [row.call for row in report] == [0, 1, 2]
    assert [*map(str, report.notes)] == ["1 call under way when the process died: left out"]
