"""``calltape variants``, ``explain`` and ``diff``: what they print, their exit codes, no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import record
from tests.analyzer.chats import CHATS, calls_of, record_chats
from tests.analyzer.cli.commands import AT_END, run, without_torch
from tests.analyzer.tapes import Recorded, write_tape
from tests.forging.changes import flip, member_list

VERBS = ("variants", "explain", "diff")


@pytest.fixture
def llm(tmp_path: Path) -> Path:
    return record_chats(tmp_path / "llm.tape", CHATS)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return record_chats(tmp_path / "other.tape", ((2, 5), (8, 5)), step=2)


def test_variants_prints_the_shapes_and_symbols_of_each_variant(llm: Path) -> None:
    code, out, err = run("variants", llm)
    assert (code, err) == (0, "")
    assert run("variants", llm, "-v") == (0, out, AT_END)
    assert run("variants", llm, "--scan", "-v") == (0, out, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "prefill: 3 calls, first call 0" in lines
    assert "decode: 6 calls, first call 1" in lines
    assert "input_ids int64 [batch_size, sequence_length]" in lines
    assert "input_ids int64 [batch_size, 1]" in lines
    past = next(line for line in lines if line.startswith("past_key_values.* (2 of them)"))
    assert past.startswith("past_key_values.* (2 of them) float32 [batch_size, ")
    assert past.endswith(", 8]")
    assert "batch_size 1..3 (3 sizes)" in lines
    total = next(line for line in lines if line.startswith("total_sequence_length "))
    assert total.startswith("total_sequence_length 5..9 (5 sizes) past_")
    assert total.endswith(" + 1")


def test_variants_prints_numbers_and_texts_and_warns_of_chance(tmp_path: Path) -> None:
    calls = [{"x": torch.zeros(2 + i, 2 + i), "n": i, "k": 7, "mode": "fast"} for i in range(2)]
    out = run("variants", write_tape(tmp_path / "a.tape", calls)).out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "n int n" in lines
    assert "k int 7" in lines
    assert "mode str 'fast'" in lines
    assert any(line.startswith("warning: ") and "may be chance" in line for line in lines)


def test_calls_that_raised_are_told(tmp_path: Path) -> None:
    calls = [
        Recorded((torch.zeros(2, 2 + n),), {"mode": mode}, error=("m:E", "no") if n == 3 else None)
        for n in range(4)
        for mode in ("fast", "slow")
    ]
    path = write_tape(tmp_path / "a.tape", calls)
    note = "note: 2 calls raised and are left out"
    assert run("variants", path).out.splitlines()[-1] == note
    assert note not in run("variants", path, "--variant", "0").out
    assert "raised" not in run("variants", write_tape(tmp_path / "b.tape", calls[6:])).out


def test_variants_show_what_a_program_wants_that_is_no_default(tmp_path: Path) -> None:
    def model(
        x: torch.Tensor, flag: bool = False, other: bool = False, kind: Any = torch.float32
    ) -> None: ...

    given = {"x": torch.zeros(2), "flag": True, "other": False, "kind": torch.float16}
    out = run("variants", write_tape(tmp_path / "a.tape", [given], target=model)).out
    assert [line.split() for line in out.splitlines()[2:]] == [
        ["x", "float32", "[2]"],
        ["flag", "bool", "True"],
        ["kind", "dtype", "float16"],
    ]


def test_variants_prints_its_findings_as_json(llm: Path) -> None:
    document = json.loads(run("variants", llm, "--json").out)
    with open_tape(llm) as tape:
        assert document == [variant.findings.model_dump(mode="json") for variant in tape.variants()]
    assert [variant["name"] for variant in document] == ["prefill", "decode"]


def test_variants_json_of_values_that_json_does_not_have(tmp_path: Path) -> None:
    given = {"b": b"\xff", "c": 1j, "f": float("nan"), "n": 1 << 80, "s": "\ud800"}
    (found,) = json.loads(run("variants", write_tape(tmp_path / "a.tape", [given]), "--json").out)
    assert found["constants"] == {"b": "b'\\xff'", "c": [0.0, 1.0], "f": "nan", "s": "\\ud800"}


def test_variants_says_that_an_empty_tape_has_no_calls(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [])
    assert run("variants", path) == (0, "no calls\n", "")
    assert json.loads(run("variants", path, "--json").out) == []


def test_explain_prints_what_the_tape_explains(llm: Path) -> None:
    code, out, err = run("explain", llm, "input_ids", 1)
    assert (code, err) == (0, "")
    assert run("explain", llm, "input_ids", 1, "-v").err == AT_END
    with open_tape(llm) as tape:
        expected = tape.explain("input_ids", 1)
    assert out == f"{expected}\n"
    assert run("explain", llm, "input_ids", "-1").out == out
    assert run("explain", llm, "input_ids[1]").out == out
    shown = run("explain", llm, "input_ids", 1, "--json").out
    assert shown == f"{expected.model_dump_json(indent=2)}\n"
    assert "dimension 2 is constant" in run("explain", llm, "past_key_values.1").out


def test_explain_without_an_argument_lists_symbols(llm: Path) -> None:
    code, out, err = run("explain", llm)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "prefill: 3 calls" in lines
    assert "symbol sizes always dimensions" in lines
    assert any(line.startswith("sequence_length 4..7 (3 sizes) input_ids[1]") for line in lines), (
        lines
    )
    assert run("explain", llm, "--variant", "prefill").out == out.partition("\n\n")[0] + "\n"
    document = json.loads(run("explain", llm, "--json").out)
    assert list(document) == ["prefill", "decode"]
    with open_tape(llm) as tape:
        for variant in tape.variants():
            assert [symbol["name"] for symbol in document[variant.name]] == [
                symbol.name for symbol in variant.findings.symbols
            ]


def test_a_tape_without_a_verb_prints_info_and_variants(llm: Path, tmp_path: Path) -> None:
    code, out, err = run(llm)
    assert (code, err) == (0, "")
    assert out.startswith(f"tape       {llm}\n")
    assert "coverage   9 of 9 calls seen were kept\n" in out
    assert out.endswith("\n\n" + run("variants", llm).out)
    assert run(tmp_path).out.endswith("\n\n" + run("variants", llm).out)
    code, out, err = run(tmp_path / "no.tape")
    assert (code, out) == (2, "")
    assert "No such command" in err


def test_explain_suggests_the_name_of_an_argument(llm: Path) -> None:
    code, out, err = run("explain", llm, "input_id")
    assert (code, out) == (2, "")
    assert err.startswith("calltape: no call passes input_id.")
    assert "input_ids" in err
    assert err.count("\n") == 1
    assert run("explain", llm, "input_ids", 5).code == 2


def test_diff_prints_what_changed_and_exits_with_4(llm: Path, other: Path) -> None:
    same = "the traffic on both is the same\n"
    assert run("diff", llm, llm) == (0, same, "")
    assert run("diff", llm, llm, "-v") == (0, same, AT_END * 2)
    assert run("diff", llm, llm, "--scan") == (0, same, "")
    code, out, err = run("diff", llm, other)
    assert (code, err) == (4, "")
    assert "+ dimension: input_ids[1]: now 2; always 1 before, in decode" in out
    code, out, _ = run("diff", llm, other, "--json")
    assert code == 4
    document = json.loads(out)
    assert document["same"] is False
    assert (document["a"], document["b"]) == ([str(llm)], [str(other)])


def test_wrong_command_lines_exit_with_2(llm: Path) -> None:
    for arguments in (
        ("variants",), ("explain",), ("diff", llm), ("explain", llm, "x", "one"),
        ("explain", llm, "x", "--no-such-option"),
    ):  # fmt: skip
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert "Traceback" not in err


def test_damage_is_exit_code_3(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", calls_of((2,), (3,), (4,)))
    whole = write_tape(tmp_path / "b.tape", calls_of((9,)))
    flip(path, member_list(path)[4].start + 30)
    for arguments, found in (
        (("variants", path), 3),
        (("explain", path, "x"), 3),
        (("diff", path, path), 3),
        (("diff", path, whole), 4),  # what it found stays its verdict
    ):
        code, out, err = run(*arguments, "--scan")
        assert code == found
        assert out
        assert "records/00000001.msgpack at byte" in err
        code, out, err = run(*arguments, "--verbose")
        assert code == (4 if found == 4 else 0)
        assert AT_END in err, "nothing was read that is damaged"


def test_what_cannot_be_read_is_exit_code_1(tmp_path: Path) -> None:
    missing = tmp_path / "a.tape"
    for arguments in (("variants", missing), ("explain", missing, "x"), ("diff", missing, missing)):
        code, out, err = run(*arguments)
        assert (code, out) == (1, "")
        assert err.startswith("calltape: ")
        assert err.count("\n") == 1


def test_help_lists_each_verb_with_an_example() -> None:
    top = run("--help").out
    assert "The help of a command lists its own" in " ".join(top.split())
    for verb in VERBS:
        assert f"  {verb} " in top
        text = run(verb, "--help").out
        assert f"  calltape {verb} runs/" in text
        assert "--json" in text


def test_hostile_text_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    text = "\x1b]0;owned\x07\x1b[2J[bold red]\u202e\n\u2028"
    given = {text: torch.zeros(2), "s": text, "d": {text: text, "t": [torch.zeros(3)]}}
    calls = [
        given,
        {**given, text: torch.zeros(3)},
        Recorded(kwargs=given, error=("builtins:ValueError", text)),
    ]
    path = write_tape(tmp_path / "a.tape", calls, producer={"platform": text})
    plain = write_tape(tmp_path / "b.tape", calls_of((2,)))
    for arguments in (
        ("variants", path), ("explain", path, text), ("explain", path, "d"),
        ("explain", path, "zzz"), ("diff", path, plain), ("diff", plain, path),
    ):  # fmt: skip
        for option in ((), ("--json",)):
            _, out, err = run(*arguments, *option)
            assert out or err
            for line in (*out.split("\n"), *err.split("\n")):
                assert line.isprintable(), (arguments, line)


def test_torch_is_not_imported(llm: Path) -> None:
    path = str(llm)
    commands = [
        ["variants", path], ["explain", path, "past_key_values"], ["diff", path, path],
        ["bundle", path, "-o", str(llm.with_name("script.py"))],
    ]  # fmt: skip
    assert len(without_torch(commands)) == len(commands)


class Captioner(torch.nn.Module):
    def forward(self, ids: Any, state: Any = None, *, image: Any = None) -> Any:
        return ids


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    """One call has an image, another a state of more tensors."""
    model = Captioner()
    with record(model, tmp_path / "captions.tape"):
        for rows in (2, 3):
            model(torch.ones(rows, 4), image=torch.ones(rows, 3))
            model(torch.ones(rows, 1), [torch.ones(rows, 5), torch.ones(rows, 5)])
    return tmp_path / "captions.tape"


def test_explain_takes_the_position_of_an_argument(captions: Path) -> None:
    """``show`` calls positional arguments so."""
    assert run("explain", captions, "0", "0") == run("explain", captions, "ids", "0")
    assert run("explain", captions, "1.0[1]") == run("explain", captions, "state.0[1]")
    assert run("explain", captions, "0").code == 0
    for unknown in ("2", "7", "0x"):  # image is passed by name only
        assert run("explain", captions, unknown).code == 2


def test_a_junk_file_changes_no_verdict(llm: Path, other: Path, tmp_path: Path) -> None:
    """What diff found stays its exit code; what could not be read is told."""
    folder = tmp_path / "weeks"
    folder.mkdir()
    for number in range(2):
        record_chats(folder / f"{number}.tape", CHATS)
    (folder / "notes.tape").write_text("no tape")
    told = "notes.tape: the file does not start with the manifest of a tape"
    for words in ((other, folder), (folder, other)):
        shown = run("diff", *words)
        assert (shown.code, told in shown.err) == (4, True)
    shown = run("diff", llm, folder)
    assert (shown.code, told in shown.err) == (3, True)
    assert run("diff", llm, llm).code == 0
