"""What a shell offers when somebody presses TAB."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calltape_analyzer.cli import completion
from calltape_analyzer.cli.answer import Answer
from calltape_analyzer.cli.asked_word import KINDS_OF_OPTIONS, asked_word
from calltape_analyzer.cli.candidates import FILES, VALUES
from calltape_analyzer.cli.completion import VARIABLE, answers, words_of_line
from calltape_analyzer.cli.verbs import VERBS, Verb
from tests.analyzer.cli.commands import COMMAND, run
from tests.analyzer.cli.models import Model
from tests.analyzer.tapes import TAPE_ID, write_tape

# No value: nothing of a tape and no file can stand there.
_OTHERS = {
    "ADDRESS", "CONDITION", "DURATION", "ID", "N", "NAME", "PACKAGE.MODULE:CLASS",
    "PACKAGE.MODULE:FACTORY",
    "PACKAGE.MODULE:FUNCTION", "PORT", "SECONDS", "SHELL", "SIZE", "TIME",
}  # fmt: skip

HOSTILE = {"$(touch pwned)": 1, "`touch pwned`": 2, "a b": 3, "\x1b[31mred": 4, "\u202eevil": 5,
           "-rf": 6, "new\nline": 7, "漢字": 8}  # fmt: skip


@pytest.fixture
def tapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a tape of 30 calls, a hostile one and a folder."""
    monkeypatch.chdir(tmp_path)
    calls = [
        ((torch.zeros(2 + i, 8),), {"mask": torch.ones(2 + i, 5), "cache": [torch.ones(1)] * 2})
        for i in range(30)
    ]
    write_tape(tmp_path / "llm.tape", calls, target=Model())
    write_tape(tmp_path / "evil.tape", [((torch.zeros(2),), HOSTILE)])
    (tmp_path / "with space").mkdir()
    shutil.copy(tmp_path / "llm.tape", tmp_path / "with space" / "it's.tape")
    (tmp_path / "notes.txt").write_text("no tape")
    (tmp_path / "broken.tape").write_bytes(b"no tape")
    return tmp_path


def offered(line: str) -> list[str]:
    return [answer.value for answer in completion.offered(words_of_line(line), "bash")]


def test_verbs() -> None:
    assert offered("calltape var") == ["variants"]
    assert offered("calltape --max-seconds 3 var") == ["variants"]
    assert offered("calltape ") == [verb.name for verb in VERBS]


def test_options_of_a_verb() -> None:
    assert offered("calltape variants x.tape --va") == ["--variant"]
    assert "--help" in offered("calltape ls --")
    assert offered("calltape --max-") == ["--max-seconds", "--max-memory"]


def test_choices() -> None:
    assert offered("calltape export x.tape --to o") == ["onnx"]
    assert offered("calltape convert x.tape --from=f") == ["--from=flashinfer"]


def test_tapes_and_directories(tapes: Path) -> None:
    assert offered("calltape ls ") == ["broken.tape", "evil.tape", "llm.tape", "with space/"]
    assert offered("calltape ls wi") == ["with space/"]
    assert offered("calltape ls 'with space/") == ["with space/it's.tape"]
    assert offered("calltape ls with\\ space/i") == ["with space/it's.tape"]
    assert offered("calltape bundle llm.tape -o no") == ["notes.txt"]
    assert offered(f"calltape ls {tapes}/l") == [f"{tapes}/llm.tape"]


def test_numbers_of_calls(tapes: Path) -> None:
    assert offered("calltape show llm.tape 2") == ["2", *map(str, range(20, 30))]
    assert offered("calltape ls llm.tape --calls 3,10..29") == ["3,10..29"]
    assert offered("calltape ls llm.tape --calls=29") == ["--calls=29"]
    assert offered("calltape ls llm.tape --calls 1,27..") == ["1,27..27", "1,27..28", "1,27..29"]
    assert offered("calltape ls llm.tape --calls ..1")[0] == "..1"
    recording = TAPE_ID.hex()[:8]
    assert offered(f"calltape ls llm.tape --calls {recording}:29..") == [f"{recording}:29..29"]
    assert offered("calltape ls llm.tape --calls 0..1,28..") == ["0..1,28..28", "0..1,28..29"]
    assert offered("calltape show llm.tape 2 ") == []
    # A word that is no tape yet can only be the beginning of one.
    assert "0" not in offered("calltape show ")


def test_names_of_arguments_variants_and_targets(tapes: Path) -> None:
    assert offered("calltape shapes llm.tape --ignore ma") == ["mask"]
    assert offered("calltape explain llm.tape ca") == ["cache", "cache.*"]
    assert offered("calltape explain llm.tape x ") == ["0", "1"]
    assert offered("calltape ls llm.tape --variant m") == ["main"]
    assert offered("calltape ls llm.tape --target ")[0].endswith("Model.forward")


def test_what_a_shell_would_act_on_is_not_offered(tapes: Path) -> None:
    values = offered("calltape shapes evil.tape --ignore ")
    assert "漢字" in values
    assert {*HOSTILE} & {*values} == {"漢字"}


def test_a_variant_whose_name_has_spaces_is_offered_by_its_number(tmp_path: Path) -> None:
    calls = [((torch.zeros(2 + i, 8),), {"n": i} if i % 2 else {}) for i in range(4)]
    path = write_tape(tmp_path / "a.tape", calls)
    found = list(answers(words_of_line(f"calltape ls {path} --variant ")))
    names = [answer.help for answer in found]
    assert any(" " in name for name in names)
    assert [one.value for one in found if " " in one.help] == [
        str(at) for at, name in enumerate(names) if " " in name
    ]


def test_of_a_long_sealed_tape_no_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells of the first and the last call with each of the inputs."""
    calls = [((torch.zeros(2 + i // 4),), {}) for i in range(12)]
    path = write_tape(tmp_path / "a.tape", calls, summary=True)
    monkeypatch.setattr("calltape_analyzer.cli.candidates._MOST_SCANNED", 5)
    assert offered(f"calltape show {path} ")[:6] == ["0", "3", "4", "7", "8", "11"]


def test_a_broken_tape_has_no_answers(tapes: Path) -> None:
    assert offered("calltape ls broken.tape --calls ") == []
    assert offered("calltape ls missing.tape --calls ") == []


def test_zsh_looks_for_files_itself(tapes: Path) -> None:
    assert list(answers(["ls", ""], "zsh")) == [Answer("files", "*(.tape|.tape.zst|.tape.gz)")]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_kind_of_value_of_the_help_is_known(verb: Verb) -> None:
    """A new option has answers, or is said to have none."""
    for one in verb.load().params:
        words = (one.metavar or "").split() if not getattr(one, "is_flag", False) else []
        if any(name in KINDS_OF_OPTIONS for name in one.opts):
            continue
        for word in words:
            name = word.strip("[]").removesuffix("...")
            assert name in {*VALUES, *FILES} | _OTHERS, (one.opts, word)


def test_the_kinds_of_options_are_those_of_options() -> None:
    names = {name for verb in VERBS for one in verb.load().params for name in one.opts}
    assert set(KINDS_OF_OPTIONS) <= names
    assert set(KINDS_OF_OPTIONS.values()) <= {*VALUES, *FILES, "TARGET-NAME"}


def test_a_word_of_several_kinds_has_all_of_them(tapes: Path) -> None:
    assert asked_word(["show", "llm.tape", ""]).kinds == ("TAPE", "CALL")
    assert asked_word(["explain", "llm.tape", "x", ""]).kinds == ("AXIS",)


@pytest.mark.parametrize(
    "line",
    ["", "calltape", "nonsense x ", "calltape nonsense ", "calltape ls \0", "calltape ls '\\",
     "calltape ls --calls", "calltape ls s3://bucket/", "calltape show https://x.invalid/a.tape ",
     "calltape ls -- --calls ", "calltape " + "x" * 100_000],
)  # fmt: skip
def test_no_line_raises(line: str, tapes: Path) -> None:
    assert isinstance(offered(line), list)


@pytest.mark.integration
def test_nothing_is_said_beside_the_answers(tapes: Path) -> None:
    for line in ("calltape show broken.tape ", "calltape ls s3://x/", "calltape '", ""):
        ran = subprocess.run(
            [*COMMAND, line, ":="],
            env={**os.environ, VARIABLE: "bash"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, "")


def test_a_long_directory_is_cut(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}.tape").touch()
    assert len(offered(f"calltape ls {tmp_path}/")) == 200


def test_an_answer_imports_no_torch(tapes: Path) -> None:
    code = """
import sys
from calltape_analyzer.cli.completion import answers, words_of_line
for line in sys.argv[1:]:
    assert list(answers(words_of_line(line))), line
print([name for name in ("torch", "numpy", "rich") if name in sys.modules])
"""
    lines = ["calltape ", "calltape ls --", "calltape ls ", "calltape show llm.tape ",
             "calltape explain llm.tape ", "calltape ls llm.tape --variant "]  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", code, *lines], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"


def test_the_scripts_name_the_variable_and_evaluate_nothing() -> None:
    for shell in ("bash", "zsh", "fish"):
        script = run("completion", shell).out
        assert f"{VARIABLE}={shell}" in script
        assert "eval " not in script
