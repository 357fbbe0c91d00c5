"""The pages of docs/reference are what the help texts, signatures and docstrings say."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
from docs.extensions.api_reference import PAGES, _Context, _markdown
from docs.extensions.reference import FOLDER, pages

from calltape_analyzer.cli.verbs import VERBS

MADE = pages()
HEADING = re.compile(r"^#{1,3} (.+)$", re.MULTILINE)


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_page_is_what_the_script_writes(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == MADE[name], "run `python -m docs.extensions.reference`"


def test_there_is_no_other_page() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(MADE)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_has_usage_options_examples_and_exit_codes(verb: object) -> None:
    name = verb.name  # type: ignore[attr-defined]
    section = MADE["command.md"].partition(f"\n## calltape {name}\n")[2].partition("\n## ")[0]
    assert f"```text\ncalltape {name} [OPTIONS] " in section
    assert "```sh\n" in section
    assert f"calltape {name} " in section.partition("```sh")[2]
    assert "\n| option | what it does |\n" in section
    assert "\n| exit code | meaning |\n" in section


@pytest.mark.parametrize("module", PAGES)
def test_each_public_name_is_described(module: str) -> None:
    found = importlib.import_module(module)
    headings = {name for text in MADE.values() for name in HEADING.findall(text)}
    for name in found.__all__:
        value = getattr(found, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert name in headings
            assert f"| [`{name}`](" in MADE[PAGES[module]]


HERE = _Context("analyzer.md", "calltape_analyzer")


@pytest.mark.parametrize(
    ("docstring", "markdown"),
    [
        ("Opens a :class:`Tape`.", "Opens a [`Tape`](#tape)."),
        ("As :meth:`~calltape_recorder.Recorder.seal`.", "As [`seal`](recorder.md#recorderseal)."),
        ("Takes ``a | b`` and *that* [1] <x>.", "Takes `a | b` and *that* \\[1\\] \\<x>."),
        ("See :func:`print`.", "See `print`."),
        ("So::\n\n    x = 1\n\nThen.", "So:\n\n```python\nx = 1\n```\n\nThen."),
        (
            "Adds.\n\nArgs:\n    a, b: two numbers,\n        both whole.\n    *rest: more.\n\n"
            "Raises:\n    TapeError: ``usage``.\n    OSError: no.",
            "Adds.\n\n**Arguments**\n\n- `a`, `b`: two numbers,\n  both whole.\n"
            "- `*rest`: more.\n\n"
            "**Raises**\n\n- [`TapeError`](schema.md#tapeerror): `usage`.\n- `OSError`: no.",
        ),
    ],
)  # fmt: skip
def test_a_docstring_becomes_markdown(docstring: str, markdown: str) -> None:
    assert _markdown(docstring, HERE) == markdown


def test_a_role_that_names_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"names 'Tape\.nothing', which is not there"):
        _markdown("See :meth:`Tape.nothing`.", HERE)
