"""Lines and tables on a terminal of some width, and in a pipe."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len

from calltape_analyzer import text as words
from calltape_analyzer.cli import output, recordings
from calltape_analyzer.cli.calls import cut_to
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape
from tests.fuzz.program import onnx_model

WIDTHS = (40, 80, 200)
EVERY = (
    "ls", "info", "show 0", "variants", "explain *", "explain args.0 0",
    "diff wide.tape", "diff evil.tape", "survey",
    "replay model.onnx --dry-run", "redact -o {out}.r.tape", "filter -o {out}.f.tape --first 1",
    "merge -o {out}.m.tape", "recover -o {out}.c.tape", "table -o {out}.csv",
    "bundle -o {out}.zip", "view -o {out}.html", "bundle -o {out}.py",
    "convert -o {out}.folder",
)  # fmt: skip
"""Verbs that print for people, and need no model; those that do print the same tables."""
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
NAMES = {
    "\x1b[31mred": 1,
    "\u202eevil": torch.zeros(3),
    "new\nline": 3,
    "漢字漢字😀": torch.zeros(2),
    "[bold]": torch.zeros(7),
}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    calls = [((torch.zeros(2 + i, 8),), NAMES) for i in range(5)]
    return write_tape(tmp_path / "evil.tape", calls)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A call of 400 arguments, and one of a list of 2,000 tensors."""
    many = {f"argument_number_{k}": torch.zeros(2) for k in range(400)}
    calls = [((), many), (([torch.zeros(1 + k % 7) for k in range(2000)],), {})]
    return write_tape(tmp_path / "wide.tape", calls)


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the terminal that stdout seems to be."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(words, "is_terminal", lambda stream: True)
    return int(request.param)


@pytest.mark.integration
@pytest.mark.parametrize("command", EVERY)
def test_lines_fit_the_terminal(
    command: str, width: int, hostile: Path, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile.parent)
    (hostile.parent / "model.onnx").write_bytes(onnx_model().SerializeToString())
    for path in (hostile, wide):
        verb, *words = command.format(out=f"of_{path.stem}").split()
        ran = run(verb, path.name, *words)
        out = ESCAPE.sub("", ran.out + ran.err)
        assert out
        for line in out.splitlines():
            # A path is one word, to be copied.
            assert cell_len(line.rstrip()) <= width or "/" in line
            assert line.isprintable()


@pytest.mark.parametrize("verb", ["ls", "info", "variants", "show"])
def test_a_pipe_gets_whole_lines_without_escapes(verb: str, hostile: Path) -> None:
    out = run(verb, hostile, *(["0"] if verb == "show" else [])).out
    assert "\x1b" not in out
    assert all(line.isprintable() for line in out.splitlines())
    assert not set("│─┃━╭┌…") & set(out)
    if verb != "info":
        assert r"\x1b[31mred" in out


def test_a_call_is_one_line_on_a_terminal_and_its_result_is_seen(width: int, wide: Path) -> None:
    lines = run("ls", wide).out.splitlines()
    assert len(lines) == 3
    assert all(" -> " in line for line in lines[1:])


@pytest.mark.parametrize("width", [90], indirect=True)
def test_the_sizes_of_plain_tensors_are_seen_beside_objects(width: int, tmp_path: Path) -> None:
    state = State([torch.ones(2, 5)] * 3, torch.ones(2, 7))
    outputs = {"logits": torch.ones(2, 1, 50), "state": state}
    given = {"x": torch.ones(2, 1), "s": state, "p": 0.5}
    calls = [Recorded((), given, outputs=outputs), Recorded((), {"s": state})]
    path = write_tape(tmp_path / "a.tape", calls)
    (_, beside, alone) = (ESCAPE.sub("", line) for line in run("ls", path).out.splitlines())
    assert beside.endswith("(x=float32[2,1], s=State of 4, p=0.5) -> {logits: float32…"), beside
    assert "(s=State(layers=[float32[2,5] ×3" in alone  # there is nothing else to see


@pytest.mark.parametrize(("width", "result"), [(60, "D…"), (76, "Decoded")], indirect=["width"])
def test_a_shape_is_whole_or_not_there(width: int, result: str, tmp_path: Path) -> None:
    calls = []
    for length in (11, 12):
        ids = torch.zeros(3, length, dtype=torch.int64)
        given = {"input_ids": ids, "position_ids": ids, "attention_mask": ids}
        calls.append(Recorded((), given, outputs=Decoded(torch.ones(3, length, 50))))
    shown = run("ls", write_tape(tmp_path / "a.tape", calls)).out.splitlines()
    for length, line in zip((11, 12), shown[1:], strict=True):
        assert f"(input_ids=int64[3,{length}], … -> {result}" in line


@pytest.mark.parametrize(
    ("text", "width", "cut"),
    [
        ("float32[2,1,50]", 15, "float32[2,1,50]"),
        ("float32[2,1,50]", 14, "float32…"),
        ("[float32[2,5] ×3, None]", 20, "[float32[2,5] ×3, …"),
        ("Output(logits=float32[2,5])", 14, "Output(…"),
        ("Output(logits=float32[2,5])", 6, "Output"),
        ("Output(logits=float32[2,5])", 5, "Outp…"),
    ],
)
def test_a_result_is_cut_between_its_parts(text: str, width: int, cut: str) -> None:
    assert cut_to(text, width) == cut


def test_a_pipe_gets_objects_whole(tmp_path: Path) -> None:
    state = State([torch.ones(2, 5)] * 3, torch.ones(2, 7))
    out = run("ls", write_tape(tmp_path / "a.tape", [((torch.ones(2, 1), state), {})])).out
    assert "args.1=State(layers=[float32[2,5] ×3], memory=float32[2,7]))" in out


@dataclasses.dataclass
class State:
    layers: list[torch.Tensor]
    memory: torch.Tensor


@dataclasses.dataclass
class Decoded:
    logits: torch.Tensor


def test_wide_characters_count_twice(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("name", "n"), [("漢字", "1"), ("abcdef", "2")])
    assert capsys.readouterr().out.splitlines() == ["name    n", "漢字    1", "abcdef  2"]


def test_a_line_breaks_between_words_and_keeps_its_indent() -> None:
    text = "  warning: " + "word " * 10
    found = list(words.wrapped(text.rstrip(), 30, 2, paths=True))
    assert found[0] == "  warning: word word word word"
    assert all(line.startswith("    word") and len(line) <= 30 for line in found[1:])
    assert list(words.wrapped("see /a/very/long/path/of/a.tape", 10, 2, paths=True)) == [
        "see",
        "  /a/very/long/path/of/a.tape",
    ]


SEEN = "0: 2, 3, 4; 2: 5, 6, 7, 8, 9, 10, 11, 12..22 (9 sizes)"


def table_of(
    capsys: pytest.CaptureFixture[str], head: tuple[str, ...], row: tuple[str, ...]
) -> list[str]:
    output.table(head, [row])
    return [line.rstrip() for line in ESCAPE.sub("", capsys.readouterr().out).splitlines()]


@pytest.mark.parametrize("width", [80], indirect=True)
def test_a_table_makes_room_for_its_words(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    head = ("argument", "dtype", "shape", "calls", "sizes seen")
    row = ("cache.layers.0.values", "float32", "[dynamic, 2, dynamic, 16]", "6/9", SEEN)
    assert table_of(capsys, head, row) == [
        "argument               dtype    shape                calls  sizes seen",
        "cache.layers.0.values  float32  [dynamic, 2,         6/9    0: 2, 3, 4; 2: 5, 6,",
        "                                dynamic, 16]                7, 8, 9, 10, 11,",
        "                                                            12..22 (9 sizes)",
    ]


@pytest.mark.parametrize("width", [40], indirect=True)
def test_a_long_word_in_a_table_breaks_between_its_parts(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ("cache.layers.0.values", "float32", "[batch_size, past_sequence_length]")
    assert table_of(capsys, ("argument", "dtype", "shape"), row) == [
        "argument        dtype    shape",
        "cache.layers.   float32  [batch_size,",
        "0.values                 past_sequence_",
        "                         length]",
    ]


@pytest.mark.parametrize("columns", [1, 3, 5, 7])
@pytest.mark.parametrize("text", ["x" * 300, "漢" * 90, " a  b.c[d] " * 20, "", "_" * 70])
def test_a_table_shows_all_of_each_cell(
    width: int, columns: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_of(capsys, ("n",) * columns, (text,) * columns)
    assert all(cell_len(line) <= width for line in table)
    shown = [char for char in "".join("".join(table).split()) if char not in "n:;"]
    assert sorted(shown) == sorted("".join(text.split()) * columns)


LONG = "transformers.models.mistral.modeling_mistral:MistralForCausalLM.forward"


@pytest.mark.parametrize("width", [80], indirect=True)
def test_a_row_without_room_for_words_and_dates_is_a_block(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    row = (LONG, "1", "1 folder", "1", "10", "2026-11-26", "2026-11-26", "yes", "")
    assert table_of(capsys, recordings.HEAD, row) == [
        LONG,
        "  recordings: 1; hosts: 1 folder; files: 1; calls: 10; first day: 2026-11-26;",
        "  last day: 2026-11-26; sealed: yes",
    ]


def test_a_table_without_rows_shows_its_head(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    output.table(("one", "two"), [])
    assert ESCAPE.sub("", capsys.readouterr().out).split() == ["one", "two"]


def test_a_long_name_breaks_between_its_parts_on_the_line_of_its_label() -> None:
    assert list(words.wrapped(f"target     {LONG} (seen by hook)", 60, 11)) == [
        "target     transformers.models.mistral.modeling_mistral:",
        "           MistralForCausalLM.forward (seen by hook)",
    ]


def test_a_text_is_shortened_to_columns() -> None:
    assert words.shortened("abcdef", 6) == "abcdef"
    assert words.shortened("abcdef", 4) == "abc…"
    assert cell_len(words.shortened("漢字漢字", 6)) <= 6


def test_no_color_has_no_escapes(
    width: int, hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in run("variants", hostile).out


def test_a_dumb_terminal_has_no_escapes(
    width: int, hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in run("variants", hostile).out


@pytest.mark.integration
def test_ranges_end_at_any_width(width: int, tmp_path: Path) -> None:
    calls = [((torch.zeros(3 + 199 * i, 8),), {}) for i in range(9)]
    path = write_tape(tmp_path / "a.tape", calls)
    for verb in ("variants", "info"):
        assert not re.search(r"\d\.\.(?!\d)", run(verb, path).out)
