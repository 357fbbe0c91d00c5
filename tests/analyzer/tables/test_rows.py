"""The rows of tables say what the records say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import UsageError, open_tape
from calltape_analyzer.tables import rows as table_rows
from calltape_analyzer.tables.rows import CALL_FIELDS, LEAF_FIELDS, text_column
from calltape_analyzer.tape import Tape
from calltape_recorder import record
from calltape_schema.groups import planned
from calltape_schema.inputs_table import signature_of
from calltape_schema.tree import encode_structure
from tests.analyzer.tapes import Recorded, write_tape
from tests.schema.container.tapes import TAPE, new_call, tape

TENSOR = encode_structure({"root": {"kind": "tensor", "leaf": 0}, "leaves": 1, "scalars": 0})
SECRET = "the prompt of a user"


class Model(torch.nn.Module):
    def forward(
        self, input_ids: Any, attention_mask: Any = None, n: int = 0, cache: Any = None
    ) -> Any:
        return input_ids, {"x": input_ids}


def call(batch: int, length: int, **more: Any) -> Recorded:
    return Recorded((torch.full((batch, length), batch),), more)


def rows(tape: Tape, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tape.to_arrow(**options).read_all().to_pylist()
    return found


@pytest.fixture
def made(tmp_path: Path) -> Path:
    calls = [
        call(2, 5),
        call(3, 7, attention_mask=torch.ones(3, 7)),
        call(4, 9, attention_mask=torch.ones(4, 9), n=3),
        call(2, 6),
        call(3, 8, attention_mask=torch.ones(3, 8), n=5),
    ]
    calls[3].error, calls[3].duration_ns = ("builtins:ValueError", SECRET), None
    return write_tape(tmp_path / "a.tape", calls, target=Model())


def test_each_call_has_a_row(made: Path) -> None:
    with open_tape(made) as tape:
        table = tape.to_arrow().read_all()
        found = table.to_pylist()
        assert [row["number"] for row in found] == [0, 1, 2, 3, 4]
        assert {row["tape"] for row in found} == {tape.manifest.tape.hex()}
        for row, one in zip(found, tape.calls, strict=True):
            assert row["time"].value == one.record.time_ns
            assert row["duration"] == one.duration
            assert row["thread"] == one.thread
            assert row["input_ids[0]"] == one.record.inputs.facts()[0].shape[0]
            assert row["bytes"] == (one.record.blob.size if one.record.blob else 0)
        assert [row["error"] for row in found] == [None, None, None, "builtins:ValueError", None]
        by_variant = {v.public_name: [c.number for c in v.calls] for v in tape.variants()}
        for name, numbers in by_variant.items():
            mine = [r["number"] for r in found if r["variant"] == name and r["error"] is None]
            assert mine == numbers
        assert found[3]["variant"] == found[0]["variant"]
        assert [row["batch_size"] for row in found] == [2, 3, 4, 2, 3]
        assert [row["n"] for row in found if row["n"] is not None] == [0, 3, 5]


def test_every_column_is_documented_and_typed(made: Path) -> None:
    with open_tape(made) as tape:
        for schema in (tape.to_arrow().schema, tape.to_arrow(leaves=True).schema):
            assert all(field.metadata[b"description"] for field in schema)
        schema = tape.to_arrow().schema
        assert schema.field("time").type == pa.timestamp("ns", tz="UTC")
        assert schema.field("variant").type == pa.dictionary(pa.int32(), pa.string())
        assert schema.field("batch_size").type == pa.int64()
        assert schema.metadata[b"calltape.rows"] == b"calls"


def test_texts_and_messages_are_not_in_the_table(tmp_path: Path) -> None:
    calls = [Recorded((SECRET, torch.zeros(n, 3)), error=("a:E", SECRET)) for n in (2, 3)]
    path = write_tape(tmp_path / "a.tape", calls)
    with open_tape(path) as tape:
        for leaves in (False, True):
            reader = tape.to_arrow(leaves=leaves)
            assert SECRET not in str(reader.schema)
            table = reader.read_all()
            assert table.num_rows == 2
            assert SECRET not in str(table.to_pydict())


def test_each_leaf_has_a_row(made: Path) -> None:
    with open_tape(made) as tape:
        found = rows(tape, leaves=True)
        assert [(row["number"], row["side"], row["path"], row["shape"]) for row in found[:3]] == [
            (0, "inputs", "input_ids", [2, 5]),
            (1, "inputs", "input_ids", [3, 7]),
            (1, "inputs", "attention_mask", [3, 7]),
        ]
        assert (found[0]["dtype"], found[0]["bytes"], found[0]["kept"]) == ("int64", 80, True)
        expected = sum(len(one.record.inputs.facts()) for one in tape.calls)
        assert len(found) == expected


def test_rows_of_leaves_have_ranges_also_of_outputs(tmp_path: Path) -> None:
    model = Model()
    with record(model, tmp_path / "a.tape"):
        for n in (3, 5):
            model(torch.arange(n)[None] + n, cache={"k": [torch.zeros(1, n)]})
    with open_tape(tmp_path / "a.tape") as tape:
        found = rows(tape, leaves=True)
    assert [(r["side"], r["path"], r["min"], r["max"]) for r in found[:3]] == [
        ("inputs", "input_ids", 3, 5), ("inputs", "cache.k.0", None, None),
        ("outputs", "outputs.0", 3, 5),
    ]  # fmt: skip
    assert [r["max"] for r in found if r["path"] == "input_ids"] == [5, 9]


def test_rows_of_a_part_have_only_its_calls_and_arguments(made: Path) -> None:
    other = write_tape(made.with_name("b.tape"), [call(6, 2)], target=Model(), tape_id=b"b" * 16)
    with open_tape([made, other]) as tape:
        assert [row["number"] for row in rows(tape)] == [0, 1, 2, 3, 4, 0]
        part = tape.only(calls="1..2", ignore=["attention_mask"])
        found = part.to_arrow().read_all()
        assert found.num_rows == 2
        assert not any("mask" in name for name in found.column_names)
        first = tape.variants()[0]
        shown = {row["variant"] for row in rows(tape.only(variant=first.name))}
        assert shown == {first.public_name}


def test_batches_are_small(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "MOST_ROWS", 2)
    monkeypatch.setattr(table_rows, "FEWEST_ROWS", 1)
    monkeypatch.setattr(table_rows, "ROOM", 0)
    with open_tape(made) as tape:
        assert [batch.num_rows for batch in tape.to_arrow()] == [2, 2, 1]
        assert max(batch.num_rows for batch in tape.to_arrow(leaves=True)) <= 3
        small = tape.to_arrow().read_all()
    monkeypatch.undo()
    with open_tape(made) as tape:
        assert small.to_pylist() == rows(tape)


names = st.text(min_size=1, max_size=6) | st.sampled_from(
    ["time", "TIME", "Number", "variant", 'a"b', "a\nb", "\x1b[31m", "x" * 900, "_"]
)


@given(st.lists(names, min_size=1, max_size=8, unique=True))
def test_any_names_make_columns(tmp_path_factory: pytest.TempPathFactory, keys: list[str]) -> None:
    path = tmp_path_factory.mktemp("a") / "a.tape"
    calls = [
        Recorded((), {"x": {key: torch.zeros(size, at + 2) for at, key in enumerate(keys)}})
        for size in (2, 3)
    ]
    write_tape(path, calls)
    with open_tape(path) as tape:
        table = tape.to_arrow().read_all()
        assert table.num_rows == 2
        own = table.column_names[len(CALL_FIELDS) :]
        every = [name.lower() for name in table.column_names]
        assert len(set(every)) == len(every)
        assert all(name.isprintable() and '"' not in name and len(name) <= 220 for name in own)
        assert tape.to_arrow(leaves=True).read_all().num_rows == 2 * len(keys)


def test_columns_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "MOST_COLUMNS", 20)
    calls = [
        Recorded((), {"x": [torch.zeros(size + at * size) for at in range(50)]}) for size in (2, 3)
    ]
    path = write_tape(tmp_path / "a.tape", calls)
    with open_tape(path) as tape:
        schema = tape.to_arrow().schema
        assert len(schema) == len(CALL_FIELDS) + 20
        assert int(schema.metadata[b"calltape.size_columns_left_out"]) >= 50


@pytest.mark.integration
def test_ten_thousand_symbols_make_no_ten_thousand_columns(tmp_path: Path) -> None:
    calls = [
        Recorded((), {"x": [torch.zeros(size * at) for at in range(1, 10_001)]}) for size in (2, 3)
    ]
    path = write_tape(tmp_path / "a.tape", calls, values="none")
    with open_tape(path) as tape:
        table = tape.to_arrow().read_all()
        assert table.num_columns == len(CALL_FIELDS) + table_rows.MOST_COLUMNS
        assert tape.to_arrow(leaves=True).read_all().num_rows == 20_000


def test_wide_ints_are_null(tmp_path: Path) -> None:
    calls = [Recorded((torch.zeros(2),), {"n": n}) for n in (1, 2**63, 2**80)]
    path = write_tape(tmp_path / "a.tape", calls)
    with open_tape(path) as tape:
        assert [row["n"] for row in rows(tape)] == [1, None, None]


def test_rows_of_a_tape_with_a_summary_come_from_its_records(tmp_path: Path) -> None:
    calls = [call(n, 3) for n in (2, 3, 4)]
    path = write_tape(tmp_path / "a.tape", calls, target=Model())
    with open_tape(path) as tape:
        assert tape.source == "end"
        assert [row["batch_size"] for row in rows(tape)] == [2, 3, 4]


def test_damaged_records_are_left_out_and_said(made: Path) -> None:
    data = bytearray(made.read_bytes())
    at = data.rindex(b"attention_mask", 0, data.index(b"end.msgpack")) + 2
    data[at] ^= 1
    made.write_bytes(data)
    with open_tape(made) as tape:
        assert len(rows(tape)) == 4
        assert len(rows(tape, leaves=True)) > 0
        assert tape.damage


BROKEN: dict[str, dict[str, Any]] = {
    "inputs that are a tensor": {"inputs": {"structure": TENSOR}},
    "ranges that are an int": {"inputs": {"ranges": 5}},
    "ranges that are text": {"inputs": {"ranges": "abc"}},
    "a range beyond 64 bits": {"inputs": {"ranges": [{"leaf": 0, "min": 0, "max": 2**70}]}},
    "a range of no leaf": {"inputs": {"ranges": [{"leaf": -1, "min": 0, "max": 1}]}},
    "a range without an element": {"inputs": {"ranges": [{"leaf": 0, "min": 1, "max": 0}]}},
    "other scalars": {"inputs": {"scalars": [5]}},
    "an error that is text": {"error": "x"},
    "an error of no type": {"error": {"type": 5}},
    "a thread that is negative": {"thread": -1},
    "a duration that is text": {"duration_ns": "x"},
    "a reason that is an int": {"outputs_missing": 5},
    "references that are an int": {"at": 5},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_under_a_right_checksum_has_no_row(tmp_path: Path, name: str) -> None:
    """Its inputs are those of calls before it, which are whole."""
    change = dict(BROKEN[name])
    one, two, three = (new_call(number, shape=(2,)) for number in range(3))
    inputs = {**two.record["inputs"], **change.pop("inputs", {})}
    key = two.signature
    if inputs["structure"] == TENSOR:
        key = signature_of(TENSOR, inputs["leaves"], two.scalars)
    broken = two._replace(record={**two.record, "inputs": inputs, **change}, signature=key)
    path = tmp_path / "a.tape"
    head, plan = tape(seals=False), planned(TAPE, [one, broken, three])
    plan.groups[0].place(len(head))
    path.write_bytes(head + b"".join(plan.parts))
    for options in ({}, {"leaves": True}):
        with open_tape(path) as opened:
            assert [row["number"] for row in rows(opened, **options)] == [0, 2]
            assert [error.kind for error in opened.damage] == ["invalid"]


def test_texts_that_utf8_does_not_have() -> None:
    assert text_column(["a", None, "\ud800", "a"]).to_pylist() == ["a", None, "\\ud800", "a"]


@pytest.mark.parametrize("leaves", [False, True])
def test_replicas_are_told_apart(leaves: bool, tmp_path: Path) -> None:
    for replica in ("pod-1", "pod-2"):
        model = Model()
        with record(model, tmp_path / replica / "a.tape"):
            model(torch.zeros(2, 5))
    with open_tape([tmp_path / "pod-1" / "a.tape", tmp_path / "pod-2" / "a.tape"]) as tape:
        found = rows(tape, leaves=leaves)
    own = {(row["file"], row["folder"]) for row in found}
    folders = [str(tmp_path / replica) for replica in ("pod-1", "pod-2")]
    assert own == {(f"{folder}/a.tape", folder) for folder in folders}
    assert {row["target"] for row in found} == {f"{__name__}:Model.forward"}


def test_the_folder_of_a_bare_file_name_is_the_current_one(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made.parent)
    with open_tape("a.tape") as tape:
        assert {(row["file"], row["folder"]) for row in rows(tape)} == {("a.tape", ".")}


def test_an_int_has_one_column_whatever_it_equals(tmp_path: Path) -> None:
    # In the calls without a mask it is a symbol, and in the others it equals one.
    calls = [call(2, 5, n=n) for n in (3, 4)]
    calls += [call(2, n, n=n, attention_mask=torch.ones(2, n)) for n in (6, 7)]
    with open_tape(write_tape(tmp_path / "a.tape", calls, target=Model())) as tape:
        found = rows(tape)
    assert [name for name in found[0] if name.startswith("n")] == ["number", "n"]
    assert [row["n"] for row in found] == [3, 4, 6, 7]


def test_without_pyarrow_the_error_names_what_to_install(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with open_tape(made) as tape, pytest.raises(UsageError, match=r"analyzer\[table\]"):
        tape.to_arrow()


def test_an_empty_tape_has_no_rows(tmp_path: Path) -> None:
    with open_tape(write_tape(tmp_path / "a.tape", [], target=Model())) as tape:
        assert tape.to_arrow().read_all().num_rows == 0
        assert tape.to_arrow(leaves=True).read_all().column_names == [n for n, _, _ in LEAF_FIELDS]
