"""Each verb is where the table says, and none is imported before it runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from calltape_analyzer.cli.verbs import VERBS, Verb
from tests.analyzer.cli.commands import run


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_summary_is_the_first_line_of_the_help(verb: Verb) -> None:
    assert verb.load().help.splitlines()[0] == verb.summary


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_each_verb_has_help(verb: Verb) -> None:
    ran = run(verb.name, "--help")
    assert ran.code == 0
    assert ran.out.lower().startswith(f"usage: calltape {verb.name} ")


def test_the_help_has_every_verb() -> None:
    ran = run("--help")
    shown = [line.split()[0] for line in ran.out.partition("Commands:\n")[2].splitlines() if line]
    assert shown[: len(VERBS)] == [verb.name for verb in VERBS]


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
