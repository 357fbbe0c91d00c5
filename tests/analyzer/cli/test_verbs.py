"""Each verb is where the table says, and none is imported before it runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from calltape_analyzer.cli import options
from calltape_analyzer.cli.verbs import VERBS, Verb, app
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
from calltape_analyzer.cli.verbs import app
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


@pytest.mark.parametrize("name", ["filter", "merge", "minimise", "redact", "survey"])
def test_no_example_writes_the_file_of_an_earlier_one(name: str) -> None:
    (verb,) = (verb for verb in VERBS if verb.name == name)
    written = [words[words.index("-o") + 1] for words in examples_of(verb)]
    assert len(written) == len(set(written))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_examples_work_when_they_are_pasted(verb: Verb) -> None:
    """What runs programs of a folder trusts it, and a shell does not look for files that match."""
    for words in examples_of(verb):
        runs = verb.name == "replay" and "--dry-run" not in words
        assert "--trust" in words or not (runs and "exported/" in words)
    for text in (verb.load().help or "").partition("\b\n")[2].splitlines():
        assert "*" not in re.sub("'[^']*'", "", text)


def options_of(verb: Verb) -> list[Any]:
    return [parameter for parameter in verb.load().params if parameter.param_type_name == "option"]


def test_there_are_few_verbs_and_options() -> None:
    """Each is something to learn: what one more is worth is decided here."""
    own = [
        parameter
        for parameter in typer.main.get_command(app).params
        if "completion" not in parameter.name
    ]
    assert len(VERBS) <= 18
    assert len(own) + sum(len(options_of(verb)) for verb in VERBS) <= 130


def test_an_option_is_the_same_in_each_verb() -> None:
    known: dict[str, tuple[object, str]] = {}
    for verb in VERBS:
        for one in options_of(verb):
            form = (one.opts, one.secondary_opts, one.metavar, one.help, one.is_flag, one.multiple)
            found, first = known.setdefault(one.opts[0], (form, verb.name))
            assert found == form, f"{one.opts[0]} of {verb.name} is not that of {first}"


def test_what_several_verbs_ask_stands_in_one_module() -> None:
    asked = [one.opts[0] for verb in VERBS for one in options_of(verb)]
    shared = {name for name in asked if asked.count(name) > 1}
    source = Path(options.__file__).read_text()
    assert {name for name in shared if f'"{name}"' not in source} == set()


def test_no_help_imports_torch() -> None:
    shown = without_torch([[verb.name, "--help"] for verb in VERBS])
    assert all("Usage: " in text for text in shown)
