"""The comparison finds an answer that changed, one that is missing and one that is new; what
another run says otherwise is left out; and tapes answer as their golden files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.answers import __main__ as command
from tests.answers.comparing import changes, differences, read, write
from tests.answers.normalising import FIXED, RECORDED
from tests.answers.outlines import outline, shapes_outline
from tests.answers.questions import ask

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
BEFORE = {
    "variants": ["main: 3 calls", "x  [batch, 4]", "y  [batch]"],
    "export to torch": {"model ran": 7, "programs": {"main": {"guards": ["x[1] == 4"]}}},
}


def test_the_same_answers_are_no_difference() -> None:
    assert changes(BEFORE, json.loads(json.dumps(BEFORE))) == []
    assert differences({"v1/calls": BEFORE}, {"v1/calls": BEFORE}, whole=True) == {}


def test_an_answer_that_changed_is_shown_with_its_question() -> None:
    now = {**BEFORE, "variants": ["main: 3 calls", "x  [batch_size, 4]", "y  [batch]"]}
    assert changes(BEFORE, now) == [
        "variants:",
        "   main: 3 calls",
        "  -x  [batch, 4]",
        "  +x  [batch_size, 4]",
        "   y  [batch]",
    ]


def test_a_fact_that_changed_is_shown_with_its_place() -> None:
    programs = {"main": {"guards": ["x[1] == 4"]}, "main (2)": {"guards": []}}
    now = {**BEFORE, "export to torch": {"model ran": 12, "programs": programs}}
    assert changes(BEFORE, now) == [
        "export to torch:",
        "  -model ran: 7",
        "  +model ran: 12",
        "   programs > main > guards: x[1] == 4",
        "  +programs > main (2) > guards: []",
    ]


def test_an_answer_that_is_missing_or_new_is_a_difference() -> None:
    fewer = {"variants": BEFORE["variants"]}
    assert changes(BEFORE, fewer) == ["export to torch: no longer answered"]
    assert changes(fewer, BEFORE) == ["export to torch: answered for the first time"]


def test_a_tape_that_is_missing_or_new_is_a_difference() -> None:
    found = differences({"v1/a": BEFORE}, {"v1/b": BEFORE}, whole=True)
    assert found == {
        "v1/a": ["no such tape any more"],
        "v1/b": ["no golden file: these answers are new"],
    }
    # Only some were asked: nothing is known of the others.
    assert list(differences({"v1/a": BEFORE}, {"v1/b": BEFORE}, whole=False)) == ["v1/b"]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path, {"v1/a": BEFORE, "zoo/b": {"ls": ["caf\u00e9"]}})
    assert read(tmp_path) == {"v1/a": BEFORE, "zoo/b": {"ls": ["caf\u00e9"]}}
    write(tmp_path, {}, removed=["v1/a"])
    assert list(read(tmp_path)) == ["zoo/b"]


def test_the_command_fails_until_the_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"v1/calls": {"ls": ["one"]}}
    monkeypatch.setattr(command, "asked", lambda *_: said)
    words = ["--only", "v1/calls", "--golden", str(tmp_path)]
    assert command.main(words) == 1
    assert command.main([*words, "--update"]) == 0
    assert command.main(words) == 0
    said["v1/calls"] = {"ls": ["two"]}
    capsys.readouterr()
    assert command.main(words) == 1
    assert capsys.readouterr().out.splitlines()[:4] == [
        "v1/calls.json", "  ls:", "    -one", "    +two",
    ]  # fmt: skip
    assert command.main(["--only", "v1/no such tape"]) == 2


def test_times_ids_and_sizes_of_a_recording_are_left_out() -> None:
    lines = {
        "recording  3f9a01bc": "recording  <id>",
        "time       2026-11-29T00:12:43.481Z to 2026-11-29T00:12:43.513Z": (
            "time       <time> to <time>"
        ),
        "bytes      105.5 KiB, 91 B in tensors": "bytes      <size>, <size> in tensors",
        "     1      0.007     1.097  (int64[2,1])": "     1  <began>  <took>  (int64[2,1])",
        "producer   torch 2.15.0+cu132, python 3.11.7": (
            "producer   torch <version>, python <version>"
        ),
        "in main (6 calls, first call 1): x: float 0.5": (
            "in main (6 calls, first call 1): x: float 0.5"
        ),
    }
    assert RECORDED.lines(list(lines)) == list(lines.values())
    assert FIXED.lines(list(lines)) == list(lines)  # a tape in the repository says it each time


def test_sets_of_symbols_are_in_order() -> None:
    assert RECORDED.text("symbols {u5, u10, u8} and {u3}") == "symbols {u5, u8, u10} and {u3}"


def test_cells_of_a_table_that_vary_are_left_out() -> None:
    rows = [["number", "time", "x[0]"], ["0", "2026-11-29 00:12:43.481656886Z", "3"]]
    assert RECORDED.rows(rows) == ["number,time,x[0]", "0,*,3"]


def test_arguments_and_shapes_are_plain_data() -> None:
    import torch

    given = ({"x": torch.zeros(2, 3), "y": [torch.zeros(4, 5).t(), 0.5]},)
    assert outline(given) == [{"x": "float32[2, 3]", "y": ["float32[5, 4], strides [1, 5]", "0.5"]}]
    dim = torch.export.Dim
    assert shapes_outline(({0: dim.AUTO, 1: "batch"}, None, dim.DYNAMIC)) == [
        {"0": "AUTO", "1": "batch"}, None, "DYNAMIC",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["calls", "dropped_calls", "table"])
def test_a_tape_answers_as_its_golden_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    golden = read(GOLDEN)[f"v1/{name}"]
    following = next(word.removeprefix("diff ") for word in golden if word.startswith("diff "))
    monkeypatch.chdir(ROOT / "fixtures")
    monkeypatch.setenv("COLUMNS", "100")
    now = ask(f"v1/{name}.tape", f"v1/{following}", FIXED, tmp_path)
    assert changes(golden, now) == []
