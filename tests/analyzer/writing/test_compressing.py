"""A new tape is compressed if its name asks for it, whoever writes it."""

from __future__ import annotations

import importlib
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, filter_tape, minimise, open_tape, redact
from calltape_analyzer.reading import compressed
from calltape_analyzer.writing.new_tape import NewTape
from calltape_analyzer.writing.output_file import OutputFile, copy_tape
from tests.analyzer.tapes import write_tape

FIRST = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd", "": b"0000"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    calls = [((torch.zeros(n, 3),), {}) for n in (2, 3, 4)]
    return write_tape(tmp_path / "a.tape", calls)


@pytest.fixture(params=FIRST)
def form(request: pytest.FixtureRequest) -> str:
    if request.param == ".zst" and compressed.zstd_module() is None:
        pytest.skip("there is no Zstandard")
    return str(request.param)


def check_form(path: Path, form: str) -> None:
    data = path.read_bytes()
    assert data[257:262] == b"ustar" if not form else data.startswith(FIRST[form])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_part_of_a_tape_is_compressed_as_its_name_says(
    source: Path, tmp_path: Path, form: str
) -> None:
    out = tmp_path / f"b.tape{form}"
    with open_tape(source) as tape:
        filter_tape(tape, out, first=1)
        filter_tape(tape, out, first=2, overwrite=True)
    check_form(out, form)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tape", out.name]
    with open_tape(out, verify=True) as tape:
        assert len(tape) == 2
        assert not tape.damage


def test_a_redacted_tape_is_compressed_as_its_name_says(
    source: Path, tmp_path: Path, form: str
) -> None:
    out = tmp_path / f"b.tape{form}"
    with open_tape(source) as tape:
        redact(tape, out)
    check_form(out, form)
    with open_tape(out) as tape:
        assert len(tape) == 3


def test_a_copy_is_the_same_file_each_time(source: Path, tmp_path: Path, form: str) -> None:
    for name in ("b", "c"):
        copy_tape(str(source), tmp_path / f"{name}.tape{form}")
    check_form(tmp_path / f"b.tape{form}", form)
    one, other = (tmp_path / f"{name}.tape{form}" for name in ("b", "c"))
    assert one.read_bytes() == other.read_bytes()


def test_without_zstandard_nothing_is_begun(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    out = tmp_path / "b.tape.zst"
    with open_tape(source) as tape:
        for write in (filter_tape, redact, lambda tape, out: minimise(tape, out, "false")):
            with pytest.raises(TapeError, match=r"analyzer\[zstd\]") as caught:
                write(tape, out)
            assert caught.value.kind == "usage"
    assert [path.name for path in tmp_path.iterdir()] == ["a.tape"]


def test_what_no_reader_would_take_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "LEAST_BYTES", 1)
    monkeypatch.setattr(compressed, "TIMES_FILE", 1)
    with pytest.raises(TapeError) as caught:
        copy_tape(str(source), tmp_path / "b.tape.gz")
    assert caught.value.kind == "limit"
    assert [path.name for path in tmp_path.iterdir()] == ["a.tape"]


def test_what_is_no_tape_is_written_as_it_is(tmp_path: Path) -> None:
    file = OutputFile(tmp_path / "a.tape.gz")
    file.append([b"data"])
    file.finish()
    assert (tmp_path / "a.tape.gz").read_bytes() == b"data"


def test_permissions_are_those_that_were_asked_for(source: Path, tmp_path: Path) -> None:
    """As an update of a fixture asks for those that it had."""
    out = tmp_path / "b.tape.gz"
    with open_tape(source) as tape, NewTape(out, tape.manifest, mode=0o640) as writer:
        writer.copy(tape.calls[0])
        writer.seal()
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
