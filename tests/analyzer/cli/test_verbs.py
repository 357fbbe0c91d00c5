"""Each verb is where the table says, and none is imported before it runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

from calltape_analyzer.cli.verbs import VERBS, Verb
from tests.analyzer.cli.commands import COMMAND, run, without_torch


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_summary_is_the_first_line_of_the_help(verb: Verb) -> None:
    assert verb.load().help.splitlines()[0] == verb.summary


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_each_verb_has_help(verb: Verb) -> None:
    ran = run(verb.name, "--help")
    assert ran.code == 0
    assert ran.out.lower().startswith(f"usage: calltape {verb.name} ")


@pytest.mark.parametrize(
    ("line", "offered"),
    [("calltape var", "variants"), ("calltape variants a.tape --pyt", "--python")],
)
def test_typer_completes_verbs_and_options(line: str, offered: str) -> None:
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    ran = subprocess.run(
        COMMAND, env={**os.environ, "_CALLTAPE_COMPLETE": "complete_bash", **asked},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.stdout.split(), ran.stderr) == ([offered], "")


def test_the_help_has_every_verb() -> None:
    listed = run("--help").out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    shown = [line.split()[0] for line in listed if not line.startswith("    ")]
    assert shown == [verb.name for verb in VERBS]


def test_the_help_has_each_summary_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run("--help").out
    listed = out.partition("Commands:\n")[2].splitlines()
    assert not [line for line in listed if line.endswith("...") or len(line) > 80]
    words = " ".join(out.split())
    assert all(f" {verb.name} {verb.summary} " in words for verb in VERBS)


def test_a_mistyped_verb_gets_the_nearest() -> None:
    ran = run("variantes")
    assert ran.code == 2
    assert "Did you mean 'variants'?" in ran.err


def test_no_verb_is_imported_for_the_help() -> None:
    code = """
import sys
from calltape_analyzer.cli import app
try:
    app(["--help"])
except SystemExit:
    pass
slow = ("pydantic", "rich", "torch", "calltape_analyzer.tape")
print([name for name in slow if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def examples_of(verb: Verb) -> list[list[str]]:
    """The command lines at the end of the help, as the verb gets them."""
    lines = (verb.load().help or "").partition("\b\n")[2].splitlines()
    found = []
    for text in lines:
        words = shlex.split(text)
        found.append(words[words.index("calltape") + 1 :])
    return found


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_help_has_two_examples_that_parse(verb: Verb) -> None:
    examples = examples_of(verb)
    assert len(examples) >= 2
    for name, *words in examples:
        assert name == verb.name
        ends = [at for at, word in enumerate(words) if word in ("|", ">")]
        words = words[: min(ends, default=len(words))]
        # A typing error in an option or a call raises; files need not be there.
        verb.load().make_context(name, words)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_help_fits_80_columns(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for text in run(verb.name, "--help").out.splitlines():
        assert len(text) <= 80


@pytest.mark.parametrize("name", ["filter", "merge", "minimise", "redact", "report", "survey"])
def test_no_example_writes_the_file_of_an_earlier_one(name: str) -> None:
    (verb,) = (verb for verb in VERBS if verb.name == name)
    written = [words[words.index("-o") + 1] for words in examples_of(verb)]
    assert len(written) == len(set(written))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_examples_work_when_they_are_pasted(verb: Verb) -> None:
    """What runs programs of a folder trusts it, and a shell does not look for files that match."""
    for words in examples_of(verb):
        runs = verb.name == "replay" or "--replay" in words
        assert "--trust" in words or not (runs and "exported/" in words)
    for text in (verb.load().help or "").partition("\b\n")[2].splitlines():
        assert "*" not in re.sub("'[^']*'", "", text)


def test_no_help_imports_torch() -> None:
    shown = without_torch([[verb.name, "--help"] for verb in VERBS])
    assert all("Usage: " in text for text in shown)
