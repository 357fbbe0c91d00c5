"""Tables as files: whole or not there, and for their owner only."""

from __future__ import annotations

import csv
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.tables import rows as table_rows
from calltape_analyzer.tables.table_file import write_batches
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape


@pytest.fixture
def made(tmp_path: Path) -> Path:
    calls = [Recorded((torch.zeros(n, 3),)) for n in (2, 3, 4)]
    calls[1].error = ("builtins:ValueError", "no")
    return write_tape(tmp_path / "a.tape", calls)


READERS = {
    ".parquet": lambda path: pa.parquet.read_table(path),
    ".arrow": lambda path: pa.ipc.open_file(path).read_all(),
    ".csv": lambda path: pa.csv.read_csv(path),
}


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("suffix", READERS)
def test_a_table_in_a_file_has_what_to_arrow_returns(
    made: Path, suffix: str, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "MOST_ROWS", 1)
    monkeypatch.setattr(table_rows, "FEWEST_ROWS", 1)
    out = made.with_name(f"calls{suffix}")
    shown = run("table", made, "-o", out, *["--leaves"] * leaves)
    assert (shown.code, shown.err) == (0, "")
    assert f"{out}: 3 rows" in shown.out
    table = READERS[suffix](str(out))
    assert table.column("number").to_pylist() == [0, 1, 2]
    if suffix != ".csv":
        field = table.schema.field("number")
        assert b"Number of the call" in field.metadata[b"description"]
        with open_tape(made) as tape:
            assert table.to_pylist() == tape.to_arrow(leaves=leaves).read_all().to_pylist()
    elif leaves:
        assert table.column("shape").to_pylist() == ["[2, 3]", "[3, 3]", "[4, 3]"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert sorted(path.name for path in made.parent.iterdir()) == ["a.tape", out.name]


def test_a_file_that_is_there_stays(made: Path) -> None:
    out = made.with_name("t.parquet")
    out.write_text("mine")
    assert run("table", made, "-o", out).code == 1
    assert out.read_text() == "mine"
    assert run("table", made, "-o", out, "--force").code == 0
    assert out.read_bytes()[:4] == b"PAR1"


def test_no_input_is_replaced(made: Path) -> None:
    link = made.with_name("t.parquet")
    link.symlink_to(made)
    before = made.read_bytes()
    shown = run("table", made, "-o", link, "--force")
    assert shown.code == 1
    assert "one of the tapes" in shown.err
    assert made.read_bytes() == before


@pytest.mark.parametrize("name", ["t.xlsx", "t", "t.parquet.tmp"])
def test_other_suffixes_are_refused(made: Path, name: str) -> None:
    shown = run("table", made, "-o", made.with_name(name))
    assert shown.code == 1
    assert ".parquet, .arrow, .csv" in shown.err


def test_a_failure_leaves_nothing(made: Path) -> None:
    def fails() -> Any:
        yield from ()
        raise RuntimeError("stopped")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), fails())
    with pytest.raises(RuntimeError, match="stopped"):
        write_batches(reader, made.with_name("t.parquet"))
    assert [path.name for path in made.parent.iterdir()] == ["a.tape"]


def test_a_disk_that_is_full_is_an_error_of_the_file(made: Path) -> None:
    shown = run("table", made, "-o", made.with_name("nowhere") / "t.parquet")
    assert shown.code == 1
    assert "cannot write it" in shown.err


def test_damage_is_told(made: Path) -> None:
    data = bytearray(made.read_bytes())
    data[data.index(b"builtins:ValueError") + 3] ^= 1
    made.write_bytes(data)
    shown = run("table", made, "-o", made.with_name("t.parquet"))
    assert shown.code == 3
    assert "2 rows" in shown.out


def test_left_out_columns_are_said(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "MOST_COLUMNS", 1)
    shown = run("table", made, "-o", made.with_name("t.parquet"))
    assert "symbols and axes have no column" in shown.err


@pytest.mark.parametrize("begin", list("=+-@\t\r＝＋－＠"))
def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path, begin: str) -> None:
    """Spreadsheets run them. Numbers stay numbers."""
    key = f"{begin}cmd|' /C calc'!A0"
    given = [Recorded((), {key: torch.full((n,), -3), "n": {key: -n}}) for n in (2, 3)]
    path = write_tape(tmp_path / "a.tape", given)
    for options in ([], ["--leaves"]):
        out = tmp_path / "t.csv"
        assert run("table", path, "-o", out, "--force", *options).code == 0
        with out.open(newline="") as file:
            rows = list(csv.reader(file))
        assert len(rows) == 3
        cells = [cell for row in rows for cell in row]
        assert any("calc" in cell for cell in cells)
        for cell in cells:
            assert not cell.startswith(tuple("=+-@\t\r＝＋－＠")) or int(cell) < 0, cell
        assert "-3" in cells


def test_a_csv_file_keeps_commas_quotes_and_null(tmp_path: Path) -> None:
    """A csv is read back with what a record says, also null."""
    path = write_tape(
        tmp_path / "a.tape", [Recorded((torch.zeros(2, 3),), {'a,"b': torch.ones(1)})]
    )
    assert run("table", path, "-o", tmp_path / "t.csv", "--leaves").code == 0
    table = pa.csv.read_csv(str(tmp_path / "t.csv"))
    assert table.column("path").to_pylist()[-1].endswith('a,"b')
    assert table.column("min").to_pylist() == [None, None]
