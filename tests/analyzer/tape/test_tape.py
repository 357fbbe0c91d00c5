"""Opening tapes: whole, unsealed, damaged, several, and none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, open_tape
from calltape_analyzer.cli.recordings import coverage_text
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.text import time_text
from calltape_recorder import record
from calltape_schema.end import Coverage
from calltape_schema.packing import open_envelope, pack, seal_envelope, unpack
from calltape_schema.tar import ZEROS_AT_END
from tests.analyzer.tape.recorded import calls, numbers
from tests.analyzer.tapes import Recorded, target_of, write_tape
from tests.forging.changes import flip, member_list
from tests.forging.sections import member


def test_a_call_reads_back(tape_file: Path) -> None:
    with open_tape(tape_file) as tape:
        assert len(tape) == 4
        assert tape.sealed
        assert tape.damage == []
        call = tape[2]
        args, kwargs = call.inputs
        assert torch.equal(args[0], torch.full((2, 3), 2.0))
        assert kwargs == {"n": 2}
        assert torch.equal(call.outputs, torch.ones(3))
        assert (call.index, call.number, call.thread, call.error) == (2, 2, 7, None)
        assert call.duration == pytest.approx(0.0015)
        assert call.path == str(tape_file)
        assert "Call 2" in repr(call)
        assert str(tape_file) in repr(tape)


def test_values_are_copies(tape_file: Path) -> None:
    before = tape_file.read_bytes()
    with open_tape(tape_file) as tape:
        first = tape[0].inputs.args[0]
        first.fill_(7)
        assert torch.equal(tape[0].inputs.args[0], torch.zeros(2, 1))
    assert first[0, 0] == 7  # its memory outlives the tape
    assert tape_file.read_bytes() == before


def test_a_tape_is_indexed_like_a_list_and_searched_by_number(tape_file: Path) -> None:
    with open_tape(tape_file) as tape:
        assert tape[-1].number == 3
        assert [call.number for call in tape[1:3]] == [1, 2]
        assert [call.number for call in tape[::-2]] == [3, 1]
        assert tape.find(2).index == 2
        for index in (4, -5):
            with pytest.raises(IndexError):
                tape[index]
        with pytest.raises(TapeError) as caught:
            tape.find(9)
        assert caught.value.kind == "usage"


def test_a_tape_has_the_facts_of_its_manifest_and_end(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    path = write_tape(
        tmp_path / "a.tape", calls(2), target=target_of(model), dropped={"queue full": 3}
    )
    with open_tape(path) as tape:
        assert tape.target is not None
        assert tape.target.type == "torch.nn.modules.linear:Linear"
        assert (tape.coverage.seen, tape.coverage.kept) == (5, 2)
        assert tape.coverage.dropped == {"queue full": 3}
        assert tape.paths == (str(path),)
        assert tape.nbytes == path.stat().st_size
        assert tape.manifest is tape.manifests[0]


def test_missing_outputs_have_a_reason(tmp_path: Path) -> None:
    path = write_tape(
        tmp_path / "a.tape",
        [
            Recorded(args=(1,), error=("builtins:ValueError", "no")),
            Recorded(args=(1,), outputs_missing="not asked for"),
            Recorded(args=(1,), outputs=None),
        ],
    )
    with open_tape(path) as tape:
        assert [call.outputs for call in tape] == [None, None, None]
        assert [call.record.outputs is None for call in tape] == [True, True, False]
        assert tape[0].error is not None
        assert tape[0].error.message == "no"
        assert tape[1].record.outputs_missing == "not asked for"
        with pytest.raises(TapeError, match="no outputs"):
            tape[0].tensor("outputs", 0)


def test_an_unsealed_tape_knows_only_the_calls_that_are_there(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", calls(3), sealed=False)
    with open_tape(path) as tape:
        assert not tape.sealed
        assert len(list(tape)) == 3
        assert tape.damage == []
        assert tape.unfinished == 0
        # No more is known than the calls that are there.
        last_ns = tape[2].record.time_ns
        assert tape.coverage == Coverage(seen=3, kept=3, at_least=True, counted_ns=last_ns)


def test_unsealed_counts_gaps(tmp_path: Path) -> None:
    given = [Recorded(args=(1,), number=number) for number in (0, 4, 5)]
    path = write_tape(tmp_path / "a.tape", given, sealed=False)
    with open_tape(path) as tape:
        assert (tape.coverage.seen, tape.coverage.kept) == (6, 3)
        assert sum(tape.coverage.dropped.values()) == 3
        last_ns = tape[2].record.time_ns
        assert coverage_text(tape.coverage) == (
            f"3 of at least 6 calls seen were kept (counted until {time_text(last_ns)}); "
            "3 unknown (the tape is not sealed)"
        )


@pytest.mark.parametrize("missing", [1, 100, 600, 1100, 1300])
def test_a_call_that_was_being_written_is_no_damage(tmp_path: Path, missing: int) -> None:
    path = write_tape(tmp_path / "a.tape", calls(3), sealed=False)
    data = path.read_bytes()[:-missing]
    path.write_bytes(data)
    last = member_list(write_tape(tmp_path / "b.tape", calls(3), sealed=False))[-1]
    kept = 3 if len(data) >= last.start + last.size else 2
    with open_tape(path) as tape:
        assert [call.number for call in tape] == list(range(kept))
        assert tape.damage == []
        assert (tape.unfinished > 0) == (kept == 2)


def test_a_tape_that_grows_is_a_snapshot(tmp_path: Path) -> None:
    whole = write_tape(tmp_path / "whole.tape", calls(3)).read_bytes()
    cut = member_list(tmp_path / "whole.tape")[6].start + 10
    path = tmp_path / "a.tape"
    path.write_bytes(whole[:cut])
    with open_tape(path) as tape:
        path.write_bytes(whole)
        assert [call.inputs.kwargs["n"] for call in tape] == [0, 1]
    assert numbers(path) == [0, 1, 2]


def test_a_closed_tape_reads_no_more(tape_file: Path) -> None:
    tape = open_tape(tape_file)
    call = tape[0]
    tape.close()
    tape.close()
    for read in (lambda: call.inputs, lambda: list(tape), tape[1].check):
        with pytest.raises(TapeError) as caught:
            read()
        assert caught.value.kind == "closed"
    assert tape.damage == []


def test_handles_are_closed(tape_file: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tape"
    bad.write_bytes(b"x" * 5000)
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        open_tape(tape_file).close()
        with pytest.raises(TapeError):
            open_tape(bad)
    assert len(os.listdir("/proc/self/fd")) <= len(before)  # what others left may end


# Several tapes.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, first in (("b", 10), ("a", 0)):
        given = [Recorded(args=(first + i,)) for i in range(2)]
        write_tape(tmp_path / f"{name}.tape", given, tape_id=name.encode() * 16)
    (tmp_path / "notes.txt").write_text("not a tape")
    return tmp_path


@pytest.mark.parametrize(
    "paths",
    [
        lambda folder: folder,
        lambda folder: str(folder),
        lambda folder: str(folder / "*.tape"),
        lambda folder: [folder / "a.tape", folder / "b.tape"],
        lambda folder: (folder / name for name in ("a.tape", "b.tape", "a.tape")),
    ],
)
def test_several_are_one_sequence(folder: Path, paths: Callable[[Path], Any]) -> None:
    with open_tape(paths(folder)) as tape:
        assert [call.inputs.args[0] for call in tape] == [0, 1, 10, 11]
        assert [call.index for call in tape] == [0, 1, 2, 3]
        assert [Path(path).name for path in tape.paths] == ["a.tape", "b.tape"]
        assert tape[2].number == 0
        assert tape.coverage.seen == 4
        with pytest.raises(TapeError, match="several recordings"):
            tape.find(0)


def test_one_of_several_cannot_be_read(folder: Path) -> None:
    (folder / "c.tape").write_bytes(b"")
    with open_tape(folder) as tape:
        assert len(tape) == 4
        (error,) = tape.damage
        assert error.kind == "not_a_tape"
        assert error.path is not None
        assert error.path.endswith("c.tape")


def test_tapes_of_different_models_are_not_opened_together(tmp_path: Path) -> None:
    write_tape(tmp_path / "a.tape", calls(1), target=torch.nn.Linear(1, 1))
    write_tape(tmp_path / "b.tape", calls(1), target=torch.nn.ReLU())
    with pytest.raises(TapeError) as caught:
        open_tape(tmp_path)
    assert caught.value.kind == "usage"
    assert "Linear.forward (a.tape)" in str(caught.value)


# What is no tape.


def _newer(path: Path) -> None:
    data = path.read_bytes()
    manifest = member_list(path)[0]
    document = dict(unpack(open_envelope(data[manifest.start : manifest.start + manifest.size])))
    content = seal_envelope(pack({**document, "version": 2, "shape_of_it": "unknown"}))
    path.write_bytes(member("tape.msgpack", content) + data[manifest.end :])


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.unlink(), "not_found"),
        (lambda path: path.write_bytes(b""), "not_a_tape"),
        (lambda path: path.write_bytes(b"PK\3\4" * 500), "not_a_tape"),
        (lambda path: path.write_bytes(b"short"), "not_a_tape"),
        (lambda path: path.write_bytes(ZEROS_AT_END), "not_a_tape"),
        (lambda path: path.write_bytes(member("other.txt", b"x")), "not_a_tape"),
        (lambda path: path.write_bytes(path.read_bytes()[:300]), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:600]), "damaged"),
        (lambda path: (flip(path, 600), path.write_bytes(path.read_bytes()[:-1])), "damaged"),
        (
            lambda path: path.write_bytes(member("tape.msgpack", seal_envelope(pack({})))),
            "not_a_tape",
        ),
        (_newer, "version"),
        (lambda path: (path.unlink(), path.mkdir()), "not_found"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not_a_tape"),
    ],
)
def test_a_file_that_is_no_tape_is_rejected_by_kind(
    tape_file: Path, make: Callable[[Path], Any], kind: str
) -> None:
    make(tape_file)
    with pytest.raises(TapeError) as caught:
        open_tape(tape_file)
    error = caught.value
    assert error.kind == kind
    assert str(tape_file) in str(error)
    assert "\n" not in str(error)
    assert str(error).endswith(".")


@pytest.mark.parametrize("path", [[], "nothing/*.tape", "a\0b"])
def test_a_path_without_files_is_not_found(path: Any) -> None:
    with pytest.raises(TapeError) as caught:
        open_tape(path)
    assert caught.value.kind == "not_found"


def test_the_version_is_named(tape_file: Path) -> None:
    _newer(tape_file)
    with pytest.raises(TapeError, match=r"version 2.*[Uu]pgrade"):
        open_tape(tape_file)


# Inference is asked through the tape.


def test_removed_inputs_stay_removed(tmp_path: Path) -> None:
    given = [{"x": torch.ones(n, 3), "y": torch.ones(n)} for n in (2, 4)]
    dynamic = {0: torch.export.Dim.DYNAMIC}
    with open_tape(write_tape(tmp_path / "a.tape", given)) as tape:
        assert tape.remove_inputs(["y"]) == 2
        assert tape.infer_dynamic_shapes() == {"kwargs": {"x": dynamic}}
        assert list(tape.infer_arguments(1).kwargs) == ["x"]
        findings = tape.single.findings
        assert [tensor.argument for tensor in findings.tensors] == ["x"]


PROGRAM = """
import sys
import calltape_analyzer
assert set(calltape_analyzer.__all__) <= set(dir(calltape_analyzer))
with calltape_analyzer.open_tape(sys.argv[1]) as tape:
    shown = [calltape_analyzer.render(call.record.inputs) for call in tape]
    names = [tensor.name for tensor in tape.single.findings.tensors]
heavy = {"torch", "numpy", "transformers", "typer", "rich"} & set(sys.modules)
assert not heavy, heavy
try:
    calltape_analyzer.nothing
except AttributeError as error:
    print(error)
"""


def test_reading_records_needs_no_torch(tape_file: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tape_file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "no attribute 'nothing'" in result.stdout, result.stderr


def test_the_first_call_is_first_in_time(tmp_path: Path) -> None:
    """Whatever the ids and the names of the recordings are."""
    model = torch.nn.Linear(2, 2)
    began = []
    for name in ("f", "c", "e", "a", "d", "b"):
        path = tmp_path / f"{name}.tape"
        with record(model, path):
            model(torch.ones(3, 2))
            model(torch.ones(4, 2))
        with open_tape(path) as tape:
            began.append(tape[0].address)
    for how in ({}, {"scan": True}):
        with open_tape(tmp_path, **how) as tape:
            (found,) = [variant.findings for variant in tape.variants()]
            assert found.address == began[0]
            assert f"3 (6 calls, first call {began[0]}" in str(tape.explain("input", 0))


def test_references_to_calls_have_one_order() -> None:
    """That of time, whichever way they are compared; ids are random."""
    early, late = CallRef(b"\x02", 7, (1, 0)), CallRef(b"\x01", 3, (2, 0))
    assert early < late
    assert early <= late
    assert late > early
    assert late >= early
    assert (min(late, early), max(early, late)) == (early, late)
    assert early == CallRef(b"\x02", 7)
    assert len({early, CallRef(b"\x02", 7), late}) == 2
