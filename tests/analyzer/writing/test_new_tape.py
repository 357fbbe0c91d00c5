"""The writer of sealed tapes: what it copies is what was there, and a file is whole or absent."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, UsageError, open_tape
from calltape_analyzer.writing.lineage import derived_manifest
from calltape_analyzer.writing.new_tape import NewTape
from calltape_analyzer.writing.synthetic import build_call
from calltape_schema.records import Manifest, Producer
from calltape_schema.storage import BytesSink
from calltape_schema.tar import blob_name
from calltape_schema.writer import TapeWriter
from tests.analyzer.editing.recordings import as_copied
from tests.analyzer.tapes import Recorded, facts_of, new_call, write_tape
from tests.fixture_files import WITH_CALLS, expected_of

MANIFEST = Manifest(
    format="calltape", version=1, tape=bytes(16), created_ns=1, producer=Producer(calltape="0")
)


def copied(source: Path, target: Path, **how: Any) -> list[TapeError]:
    """Copies all whole calls of a tape, and returns what was wrong with the others."""
    wrong = []
    with (
        open_tape(source) as tape,
        NewTape(target, tape.manifest, inputs=tape.paths) as writer,
    ):
        for call in tape.calls:
            try:
                number = call.number + how.get("shift", 0)
                writer.copy(call, number=number)
            except TapeError as error:
                wrong.append(error)
        writer.seal()
    return wrong


@pytest.mark.parametrize("source", WITH_CALLS, ids=lambda path: path.stem)
def test_a_copy_has_the_same_bytes_of_each_call(source: Path, tmp_path: Path) -> None:
    wrong = copied(source, tmp_path / "copy.tape")
    with open_tape(source) as tape, open_tape(tmp_path / "copy.tape", verify=True) as copy:
        whole = [call["number"] for call in expected_of(source)["calls"] if call["values"] == "ok"]
        assert len(wrong) == len(list(tape.calls)) - len(whole)
        assert copy.sealed
        assert copy.damage == []
        assert [str(call.number) for call in copy.calls] == whole
        for call in copy.calls:
            original = tape.calls.at(call.ref)
            assert as_copied(call) == as_copied(original)
            blob = original.record.blob
            if blob is not None:
                parts = [b"".join(one.raw_blob()) for one in (call, original)]
                assert parts[0] == parts[1]


@pytest.mark.parametrize("source", WITH_CALLS, ids=lambda path: path.stem)
def test_a_renumbered_copy_says_the_same(source: Path, tmp_path: Path) -> None:
    copied(source, tmp_path / "copy.tape", shift=2**40)
    with open_tape(source) as tape, open_tape(tmp_path / "copy.tape", verify=True) as copy:
        assert copy.damage == []
        for call in copy.calls:
            original = tape.find(call.number - 2**40)
            records = [
                facts_of(one).model_copy(update={"call": 0, "tape": bytes(16)})
                for one in (call, original)
            ]
            # NaN is not equal to itself
            assert repr(records[0]) == repr(records[1])


def test_a_written_record_reads_as_the_copied_one(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    calls = [
        Recorded(args=(x, x), kwargs={"n": 2**70, "t": "\ud800"}, outputs=[x.bfloat16(), 1j]),
        Recorded(args=(torch.ones(3, 1).expand(3, 4), torch.zeros(0)), outputs=None),
        Recorded(args=(None,), error=("builtins:ValueError", "bad \ud800")),
    ]
    source = write_tape(tmp_path / "a.tape", calls)
    with open_tape(source) as tape, NewTape(tmp_path / "b.tape", tape.manifest) as writer:
        for call in tape.calls:
            sides = [("inputs", call.record.inputs), ("outputs", call.record.outputs)]
            values = {
                leaf.key: call.tensor(side, place)
                for side, tree in sides if tree is not None
                for place, leaf in enumerate(tree.facts())
            }  # fmt: skip
            writer.write(call.record, values)
        writer.seal()
    with open_tape(source) as tape, open_tape(tmp_path / "b.tape", verify=True) as copy:
        assert copy.damage == []
        assert [facts_of(c) for c in copy.calls] == [facts_of(c) for c in tape.calls]
        args = copy[0].inputs.args
        assert args[0] is args[1]


def test_calls_are_built_from_values(tmp_path: Path) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    views = x[0], x.t()
    with NewTape(tmp_path / "a.tape", MANIFEST) as writer:
        writer.write(*build_call(0, (x, x, *views), {"k": [1, "a"]}, {"y": x.bfloat16()}))
        writer.write(*build_call(3, (torch.ones(1, dtype=torch.complex64).conj(),)))
        writer.write(*build_call(4, (x.to_sparse(),), error=ValueError("no")))
        writer.write(*build_call(5, (x,), values="none"))
        writer.seal()
    with open_tape(tmp_path / "a.tape", verify=True) as tape:
        assert tape.damage == []
        args, kwargs = tape[0].inputs
        assert args[0] is args[1]
        assert all(map(torch.equal, args, (x, x, *views)))
        assert args[3].stride() == x.t().stride()
        assert kwargs == {"k": [1, "a"]}
        assert torch.equal(tape[0].outputs["y"], x.bfloat16())
        storages = [leaf.storage for leaf in tape[0].record.inputs.facts()]
        assert storages == [0, 0, 0]
        assert tape[2].error is not None
        assert tape[2].error.message == "no"
        assert tape[3].inputs.args[0].is_meta
        assert (tape.coverage.seen, tape.coverage.dropped) == (6, {"not extracted": 2})


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    record, values = build_call(0, (torch.zeros(2),))
    with NewTape(tmp_path / "a.tape", MANIFEST) as writer:
        for wrong in ({}, {"args.0": torch.zeros(3)}, {"args.0": b"123"}, {"args.0": [1, 2]}):
            with pytest.raises(UsageError):
                writer.write(record, wrong)
        writer.write(record, values)
        with pytest.raises(UsageError, match="a call 0"):
            writer.write(record, values)
        writer.seal()
        with pytest.raises(UsageError, match="sealed"):
            writer.write(record, values)
    with open_tape(tmp_path / "a.tape", verify=True) as tape:
        assert (len(tape), tape.damage) == (1, [])


def test_numbers_may_come_in_any_order(tmp_path: Path) -> None:
    with NewTape(tmp_path / "a.tape", MANIFEST) as writer:
        for number in (5, 2, 9):
            writer.write(*build_call(number))
        for number in (2, 5, 9):
            with pytest.raises(UsageError):
                writer.write(*build_call(number))
        writer.seal()
    with open_tape(tmp_path / "a.tape") as tape:
        assert [call.number for call in tape.calls] == [2, 5, 9]


def test_a_damaged_call_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_tape(tmp_path / "a.tape", [((torch.arange(5000.0) + n,), {}) for n in range(3)])
    data = bytearray(source.read_bytes())
    data[data.rindex(blob_name(1).encode()) + 9000] ^= 1
    source.write_bytes(data)
    wrong = copied(source, tmp_path / "b.tape")
    assert [error.kind for error in wrong] == ["damaged"]
    assert "call 1" in str(wrong[0])
    with open_tape(tmp_path / "b.tape", verify=True) as tape:
        assert [call.number for call in tape.calls] == [0, 2]
        assert tape.damage == []
    assert blob_name(1).encode() not in (tmp_path / "b.tape").read_bytes()


def interrupt(path: Path) -> None:
    with NewTape(path, MANIFEST) as writer:
        writer.seal()
        raise KeyboardInterrupt


def write_while_another_does(path: Path) -> None:
    with NewTape(path, MANIFEST) as writer:
        path.write_text("mine")
        writer.seal()


def test_a_tape_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.tape"
    with NewTape(path, MANIFEST) as writer:
        writer.write(*build_call(0))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        interrupt(path)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from calltape_analyzer import open_tape
from calltape_analyzer.writing.new_tape import NewTape
source, out, when = sys.argv[1:]
with open_tape(source) as tape, NewTape(out, tape.manifest, overwrite=True) as writer:
    writer.copy(tape[0])
    if when == "between":
        os.kill(os.getpid(), signal.SIGKILL)
    writer.seal()
    if when == "sealed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.integration
@pytest.mark.parametrize("when", ["between", "sealed", "never"])
def test_a_process_that_is_killed_leaves_what_was_there(tmp_path: Path, when: str) -> None:
    source = write_tape(tmp_path / "a.tape", [((torch.zeros(9),), {}), ((1,), {})])
    out = tmp_path / "out.tape"
    out.write_text("before")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(source), str(out), when], check=False, timeout=250
    )
    if when == "never":
        assert done.returncode == 0
        with open_tape(out, verify=True) as tape:
            assert (len(tape), tape.damage) == (1, [])
        return
    assert done.returncode == -signal.SIGKILL
    assert out.read_text() == "before"


def test_no_other_file_is_replaced(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((1,), {})])
    before = path.read_bytes()
    link = tmp_path / "link.tape"
    os.link(path, link)
    with pytest.raises(TapeError, match="there already"):
        NewTape(path, MANIFEST)
    for one in (path, link):
        with pytest.raises(UsageError, match="in place"):
            NewTape(one, MANIFEST, inputs=[str(path)], overwrite=True)
    other = tmp_path / "other.tape"
    with pytest.raises(TapeError, match="there already"):
        write_while_another_does(other)
    assert other.read_text() == "mine"
    assert path.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {"a.tape", "link.tape", "other.tape"}
    with NewTape(other, MANIFEST, overwrite=True) as writer:
        writer.seal()
    with open_tape(other) as tape:
        assert len(tape) == 0
    assert stat.S_IMODE(other.stat().st_mode) == 0o600


def test_errors_of_the_disk_are_tape_errors(tmp_path: Path) -> None:
    with pytest.raises(TapeError, match="No such file") as caught:
        NewTape(tmp_path / "no" / "a.tape", MANIFEST)
    assert caught.value.kind == "io"


def test_a_new_tape_says_what_it_was_made_of(tmp_path: Path) -> None:
    source = write_tape(tmp_path / "a.tape", [((n,), {}) for n in range(3)])
    with open_tape(source) as tape:
        manifest = derived_manifest(tape.segments, "test", {"calls": "0..1", "more": [1, "\ud800"]})
        with NewTape(tmp_path / "b.tape", manifest) as writer:
            writer.copy(tape[1])
            writer.seal()
    with open_tape(tmp_path / "b.tape") as tape:
        (step,) = tape.manifest.history or ()
        assert (step.verb, step.tool) == ("test", "calltape")
        assert dict(step.options) == {"calls": "0..1", "more": '[1,"\\\\ud800"]'}
        assert [(one.files, one.calls, one.first) for one in step.sources] == [(("a.tape",), 3, 0)]
        assert derived_manifest(tape.segments, "again").history[0] == step  # type: ignore[index]


def test_fields_that_are_nil_are_absent_on_a_copy(tmp_path: Path) -> None:
    """No writer writes nil, and a reader takes it for a field that is absent."""
    source = write_tape(tmp_path / "a.tape", [Recorded((3,)), Recorded((4,))])
    nil: dict[str, Any] = {"duration_ns": None, "outputs_missing": None}
    sink = BytesSink()
    with open_tape(source) as tape:
        writer = TapeWriter(sink, tape.manifest)
        plan = writer.plan([new_call(one.number, one.document() | nil) for one in tape.calls])
    sink.write_at(writer.end, plan.parts)  # the writer itself would not take them
    (tmp_path / "b.tape").write_bytes(sink.data)
    assert copied(tmp_path / "b.tape", tmp_path / "c.tape") == []
    with open_tape(tmp_path / "b.tape") as tape, open_tape(tmp_path / "c.tape") as copy:
        assert copy.verify() == []
        assert [call.raw_record() for call in copy.calls] == [one.raw_record() for one in tape]
        assert not any(set(nil) & set(call.document()) for call in copy.calls)
