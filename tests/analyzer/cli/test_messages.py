"""The ``calltape`` command when something is wrong: exit codes, messages, and text that a terminal
must not obey."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import calltape_analyzer
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape
from tests.forging.changes import flip, member_list


def test_damage_is_told_and_is_exit_code_3(tape_file: Path) -> None:
    blob, record = member_list(tape_file)[1], member_list(tape_file)[4]
    flip(tape_file, record.start + 30)
    code, out, err = run("ls", tape_file)
    assert code == 3
    assert len(out.splitlines()) == 3
    assert err.count("\n") == 1
    assert "records/00000001.msgpack at byte" in err
    flip(tape_file, blob.start + blob.size - 1)
    code, out, err = run("info", tape_file)
    assert code == 3
    assert "2 corrupted places" in out
    assert err.count("\n") == 2
    code, out, err = run("info", tape_file, "--json")
    assert code == 3
    assert [error["offset"] for error in json.loads(out)["damage"]] == [record.offset, blob.offset]
    assert run("info", tape_file, "--quick", "--scan").err.count("\n") == 1
    assert run("variants", tape_file, "--scan").code == 3


@pytest.mark.parametrize("verb", ["info", "ls", "variants"])
def test_what_cannot_be_read_is_one_line_and_exit_code_1(tmp_path: Path, verb: str) -> None:
    for make in (lambda path: None, lambda path: path.write_bytes(b"")):
        path = tmp_path / "a.tape"
        make(path)
        code, out, err = run(verb, path)
        assert (code, out) == (1, "")
        assert err.startswith("calltape: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err


def test_show_without_a_call_says_that_the_call_is_missing(tape_file: Path) -> None:
    for words in ((tape_file,), (tape_file, tape_file)):
        code, _, err = run("show", *words)
        assert code == 2
        assert "the call is missing: the last word is" in " ".join(err.split())
        assert "TAPE..." not in err.partition("Error")[2]
    assert "Missing argument 'TAPE...'" in run("show", "12").err
    assert run("show", tape_file, "-h").code == 0


def test_wrong_and_missing_words_are_told_in_words(tape_file: Path) -> None:
    wrong = run("export", tape_file, "--to", "tflite").err
    assert "Invalid value for '--to': 'tflite' is not one of " in wrong
    missing = run("diff", tape_file).err
    assert "Missing argument 'BEFORE...'. Pass BEFORE... and NOW." in missing
    assert "Missing argument 'TAPE...'.\n" in run("ls").err
    assert "Missing option '--out' / '-o'.\n" in run("table", tape_file).err


@pytest.mark.parametrize(
    "arguments",
    [("ls",), ("no-such-verb",), ("ls", "x", "--no-such-option"), ("show", "x", "one"),
     ("show", "x", "--", "-1"), ("variants", "x", "--python", "--json"), ("ls", "x", "-n", "-1")],
)  # fmt: skip
def test_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


def test_inference_that_has_no_answer(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [])
    code, out, err = run("variants", path, "--python")
    assert (code, out) == (1, "")
    assert err.startswith("calltape: the tape has no calls")
    assert run("variants", path) == (0, "no calls\n", "")


def test_unexpected_errors_are_one_line(tape_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("bug\nhere")

    monkeypatch.setattr("calltape_analyzer.tape.Tape.find", fail)
    code, out, err = run("show", tape_file, 0)
    assert (code, out) == (1, "")
    assert err.startswith("calltape: unexpected ZeroDivisionError: bug here.")
    monkeypatch.setenv("CALLTAPE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run("show", tape_file, 0)


def test_an_interrupted_command_exits_with_130_and_prints_nothing(
    tape_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("calltape_analyzer.tape.Tape.find", interrupted)
    assert run("show", tape_file, 0) == (130, "", "")


def test_help_shows_examples_for_every_verb() -> None:
    top = run("--help")
    assert top.code == 0
    assert "Exit codes: 0 success, 1 failure, 2 wrong usage, 3 success on a corrupted" in top.out
    for verb in ("info", "ls", "show", "variants"):
        assert f"  {verb} " in top.out
        text = run(verb, "--help").out
        assert f"  calltape {verb} runs/" in text
        assert "--json" in text


def test_the_version_says_where_the_package_comes_from() -> None:
    code, out, _ = run("--version")
    assert code == 0
    version, _, origin = out.removeprefix("calltape ").partition(" ")
    assert version == calltape_analyzer.__version__
    assert re.fullmatch(r"\(from (a wheel|/.+/analyzer)\)\n", origin)


def test_hostile_text_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    text = "\x1b]0;owned\x07\x1b[2J[bold red]\u202e"
    given = Recorded(
        args=(text, {text: [text]}),
        kwargs={text: torch.ones(2)},
        error=("builtins:ValueError", text),
    )
    calls = [given, Recorded(args=given.args, kwargs={text: torch.ones(3)}, outputs=text)]
    path = write_tape(tmp_path / "a.tape", calls, producer={"platform": text}, dropped={text: 1})
    for arguments in (("info",), ("ls",), ("variants",), ("show", 0), ("show", 1)):
        for option in ((), ("--json",)):
            _, out, err = run(arguments[0], path, *arguments[1:], *option)
            for line in (*out.split("\n"), *err.split("\n")):
                assert line.isprintable(), (arguments, line)
            if not option:
                assert "[bold red]" in out
