"""``--markdown`` of five verbs: nothing private unless asked, nothing that breaks out."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import check, diff, open_tape, replay
from calltape_analyzer.comparison.reports import Report, ReportRow
from calltape_analyzer.markdown.disclosure import Disclosure
from calltape_analyzer.markdown.findings import difference_in_markdown, explanation_in_markdown
from calltape_analyzer.markdown.reports import check_in_markdown, replay_in_markdown
from calltape_analyzer.markdown.tape_summary import tape_summary
from calltape_analyzer.replaying.check_report import CheckReport, CheckRow
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape

SECRET = "SECRETprompt"
TOKEN = 31337
ATTACK = f"{SECRET} `x` ```\n| a | </details> <img src=x> \x1b[31m @octocat #1 \u202e"


class Model(torch.nn.Module):
    def forward(self, x: Any, prompt: str = f"{SECRET} default", n: int = 0, **more: Any) -> Any:
        if "bad" in prompt:
            raise ValueError(f"{SECRET}: {prompt}")
        return x + 1


def calls(sizes: tuple[int, ...], text: str = ATTACK) -> list[Any]:
    found: list[Any] = [
        Recorded(
            (torch.full((size, 3), float(TOKEN)),),
            {"prompt": f"{text}{size}", "n": TOKEN, text: torch.zeros(size)},
            outputs={"y": torch.zeros(size, 3), text: torch.zeros(2)},
        )
        for size in sizes
    ]
    found.append(
        Recorded((torch.zeros(2, 3),), {"prompt": "bad"}, error=("builtins:ValueError", text))
    )
    return found


@pytest.fixture
def tape_path(tmp_path: Path) -> Path:
    folder = tmp_path / f"{SECRET}folder"
    folder.mkdir()
    return write_tape(
        folder / "a.tape", calls((2, 5)), target=Model(),
        producer={"host": f"{SECRET}host", "torch": "2.15.0", "platform": ATTACK},
        dropped={ATTACK: 2},
    )  # fmt: skip


@pytest.fixture
def texts(tape_path: Path, tmp_path: Path) -> dict[str, str]:
    other = write_tape(
        tmp_path / "b.tape", calls((2, 9), ATTACK + "other"), target=Model(), tape_id=b"b" * 16
    )
    code, info, _ = run("info", tape_path, "--markdown")
    assert code == 0
    code, explained, _ = run("explain", tape_path, "x", "--markdown")
    assert code == 0
    code, changes, _ = run("diff", tape_path, other, "--markdown")
    assert code == 4
    return {"info": info, "explain": explained, "diff": changes} | reports(tape_path, False)


def reports(path: Path, private: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    with open_tape(path) as tape, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = (torch.zeros(4, 3), "a", 3)
        rows = torch.export.Dim("rows", min=2)
        program = torch.export.export(
            Model(), example, dynamic_shapes={"x": {0: rows}, "prompt": None, "n": None}
        )
        found["replay"] = replay_in_markdown(replay(tape, Model()), tape, private=private)
        found["check"] = check_in_markdown(check(tape, program), tape, private=private)
    return found


def test_nothing_private_is_told(texts: dict[str, str], tmp_path: Path) -> None:
    for verb, text in texts.items():
        for secret in (SECRET, SECRET.lower(), str(TOKEN), "octocat", str(tmp_path), "<img"):
            assert secret not in text, (verb, secret, text)
        assert "torch" in text, verb
        assert "recorded with" in text, verb


def test_what_is_of_use_is_told(texts: dict[str, str]) -> None:
    assert "float32" in texts["info"]
    assert "ValueError" in texts["info"]
    assert "`2..5`" in texts["info"]
    assert "2 of 5 kept" not in texts["info"]
    assert "3 of 5 kept" in texts["info"]
    assert "dimension 0" in texts["explain"]
    assert "2 values in 2 calls" in texts["explain"]
    assert "now 9" in texts["diff"]
    assert "3 failing" in texts["replay"]
    assert "refused" in texts["check"]


def test_nothing_breaks_out(texts: dict[str, str], tape_path: Path) -> None:
    private = {
        "info": run("info", tape_path, "--markdown", "--private").out,
        "explain": run("explain", tape_path, "prompt", "--markdown", "--private").out,
    } | reports(tape_path, True)
    assert SECRET in private["info"]
    assert f"{SECRET}host" in private["info"]
    assert SECRET in private["replay"]
    for text in (*texts.values(), *private.values()):
        assert all(line.isprintable() for line in text.split("\n"))
        assert len(text) <= 60_000
        outside = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
        for mark in ("<", "@", "#1", "http", "[", "\\"):
            assert mark not in outside, (mark, outside)
        for line in outside.split("\n"):
            if line.startswith("|"):
                assert set(line) <= set("| -,abcdefghijklmnopqrstuvwxyz"), line


@pytest.mark.integration
def test_many_calls_are_bounded(tape_path: Path) -> None:
    rows = [
        ReportRow(call=i, variant=ATTACK, ok=False, error=f"ValueError: {ATTACK * 50}")
        for i in range(5000)
    ]
    checked = [CheckRow(call=i, accepted=False, reason=ATTACK * 50) for i in range(5000)]
    with open_tape(tape_path) as tape:
        for private in (False, True):
            told = replay_in_markdown(Report(rows=rows), tape, private=private)
            refused = check_in_markdown(CheckReport(rows=checked), tape, private=private)
            for text in (told, refused):
                assert len(text) <= 60_000
                assert "of 5,000 calls" in text
                assert "recorded with" in text
                assert (SECRET in text) is private


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("y: 3 of 12 elements differ by up to 0.5 (relative 1)", True),
        ("y is float32[2, 3] instead of int64[2]", True),
        ("returned, instead of raising builtins:ValueError", True),
        (f"y is '{SECRET}' instead of 'b'", "`?`"),
        (f"{SECRET} text: 3 of 12 elements differ by up to 0.5 (relative 1)", "`?: 3 of 12"),
        (f"ValueError: {SECRET}", "`ValueError: ?`"),
        (f"KeyError: {SECRET}, instead of builtins:ValueError",
         "`KeyError: ?, instead of builtins:ValueError`"),
        (f"ValueError with the message '{SECRET}', instead of 'x'", "`ValueError: ?`"),
        (f"y is {TOKEN} instead of 4", "`?`"),
    ],
)  # fmt: skip
def test_errors_of_a_replay(tape_path: Path, error: str, shown: Any) -> None:
    report = Report(rows=[ReportRow(call=1, variant=None, ok=False, error=error, compared=1)])
    with open_tape(tape_path) as tape:
        text = replay_in_markdown(report, tape)
        assert (error if shown is True else shown) in text
        assert SECRET not in text
        assert str(TOKEN) not in text
        assert error.replace("|", "") in replay_in_markdown(report, tape, private=True)


def test_texts_keep_our_words_and_sizes(tape_path: Path) -> None:
    with open_tape(tape_path) as tape:
        told = Disclosure(tape)
    text = f"x[0] is 7, '{SECRET}' \"it's {SECRET}\" and {SECRET}; the program takes 1..5"
    assert told.text(text) == "x[0] is 7, ? ? and ?; the program takes 1..5"
    assert told.text("n is 7; the program takes 5", numbers=False) == "n is ?; the program takes ?"
    assert told.text(f"x is '{SECRET} never ends") == "x is "
    for ours in (
        "x[1] is 5; it was 4 in every recorded call of this variant",
        "x[0] is 20; the program takes at most 8 (a condition of its trace)",
        "calls of these sizes were recorded, and it was not verified with them; it serves 2 "
        "recorded sizes only: it returned wrong values at 1 of 4 sizes that were never recorded",
        "x is of layout strided, not sparse_coo",
    ):
        assert told.text(ours) == ours
    assert told.place(f"x.{SECRET} key.0") == "x.?"
    assert told.place("x.layers.*.keys[2]") == "x.layers.*.keys[2]"
    assert told.place("x.layers.*.keys (32 of them)") == "x.layers.*.keys (32 of them)"


def test_options_that_contradict(tape_path: Path) -> None:
    assert run("info", tape_path, "--markdown", "--json").code == 2
    assert run("info", tape_path, "--private").code == 2


def test_functions_and_commands_agree(tape_path: Path) -> None:
    with open_tape(tape_path) as tape:
        assert tape_summary(tape) == run("info", tape_path, "--markdown").out
        explained = tape.explain("x")
        shown = run("explain", tape_path, "x", "--markdown").out
        assert explanation_in_markdown(explained, tape) == shown
        same = difference_in_markdown(diff(tape, tape), tape, tape)
        assert "The traffic on both is the same." in same


def test_damage_is_counted_and_not_quoted(tape_path: Path) -> None:
    data = bytearray(tape_path.read_bytes())
    at = data.find(torch.full((1, 3), float(TOKEN)).numpy().tobytes())
    data[at] ^= 0xFF
    tape_path.write_bytes(data)
    code, out, err = run("info", tape_path, "--markdown")
    assert code == 3
    assert "| `damaged` | `1` |" in out
    assert SECRET not in out
    assert "checksum" in err
    assert "checksum" in run("info", tape_path, "--markdown", "--private").out
