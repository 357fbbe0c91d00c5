"""Which word of a command line is asked for: a verb, an option, the value of one, or an argument.

In come the words before the cursor. Out go the kinds of values that can stand there, as the help
calls them (``TAPE``, ``CALL``, ``ARG``), and what was said before: the tapes, and the target.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from calltape_analyzer.cli.verbs import VERBS

__all__ = ["KINDS_OF_OPTIONS", "AskedWord", "asked_word"]

KINDS_OF_OPTIONS = {
    "--variant": "VARIANT",
    "--target": "TARGET-NAME",
    "--recording": "RECORDING",
    "--model-code": "FILE.py",
    "--batch": "ARG",
}
"""Kinds of values for which the help has a more general word, such as ``NAME``."""


@dataclass
class AskedWord:
    """What is known of the word at the cursor.

    Attributes:
        text: the word as far as it is written; of ``--option=value`` the value.
        prefix: what stands before the text in the word (``--option=``).
        verb: whose words these are; None before there is one.
        options: that can come.
        option: whose value the word is; None for an argument.
        kinds: of values that can stand here, the likeliest last; empty if no file and nothing of a
            tape can.
        tapes: the tapes that are named before.
        target: the value of ``--target`` before.
        placed: the arguments before that are no tapes.
    """

    text: str
    prefix: str = ""
    verb: str | None = None
    options: list[Any] = field(default_factory=list)
    option: Any = None
    kinds: tuple[str, ...] = ()
    tapes: list[str] = field(default_factory=list)
    target: str | None = None
    placed: list[str] = field(default_factory=list)


def asked_word(words: Sequence[str]) -> AskedWord:
    """What the last word is to be.

    Args:
        words: after the name of the program; the last one is at the cursor.
    """
    from calltape_analyzer.cli import app

    *before, text = words
    asked = AskedWord(text)
    at, rest = _values(_parameters(_root(app)), before, asked, until_argument=True)
    if not rest:
        return _value_of(asked, at)
    asked.verb = rest[0]
    verb = next((verb for verb in VERBS if verb.name == rest[0]), None)
    if verb is None:
        return asked
    parameters = _parameters(verb.load())
    at, rest = _values(parameters, rest[1:], asked)
    if at is None and not text.startswith("-"):
        _place(asked, parameters, rest)
        return asked
    asked.tapes = [word for word in rest if _is_file(word)]
    return _value_of(asked, at)


def _root(app: Any) -> Any:
    import typer

    return typer.main.get_command(app)


def _parameters(command: Any) -> list[Any]:
    return [one for one in command.params if not getattr(one, "hidden", False)]


def _values(
    parameters: Sequence[Any], words: Sequence[str], asked: AskedWord, until_argument: bool = False
) -> tuple[Any, list[str]]:
    """The option that waits for its value (None if none does), and the words that are arguments."""
    asked.options = [one for one in parameters if one.param_type_name == "option"]
    taking = {name: one for one in asked.options if not _is_flag(one) for name in one.opts}
    arguments: list[str] = []
    waiting: Any = None
    only_arguments = False
    for place, word in enumerate(words):
        if waiting is not None:
            if "--target" in waiting.opts:
                asked.target = word
            waiting = None
        elif word == "--" and not only_arguments:
            only_arguments = True
        elif word in taking and not only_arguments:
            waiting = taking[word]
        elif only_arguments or not word.startswith("-") or word == "-":
            if until_argument:
                return None, list(words[place:])
            arguments.append(word)
    return waiting, arguments


def _is_flag(option: Any) -> bool:
    return bool(getattr(option, "is_flag", False) or getattr(option, "count", False))


def _value_of(asked: AskedWord, option: Any) -> AskedWord:
    """Makes the word the value of an option, also of one that it begins with: ``--calls=1``."""
    name, equals, value = asked.text.partition("=")
    if option is None and equals and name.startswith("--"):
        option = next((one for one in asked.options if name in one.opts), None)
        if option is not None:
            asked.text, asked.prefix = value, f"{name}="
    if option is not None:
        asked.option = option
        own = [KINDS_OF_OPTIONS[name] for name in option.opts if name in KINDS_OF_OPTIONS]
        asked.kinds = tuple(own[:1] or ([option.metavar] if option.metavar else []))
    return asked


def _place(asked: AskedWord, parameters: Sequence[Any], words: Sequence[str]) -> None:
    """Says which argument comes next. How many tapes there are is known by the files that exist."""
    wanted = [
        word.strip("[]")
        for one in parameters
        if one.param_type_name == "argument"
        for word in (one.metavar or "").split()
    ]
    if not wanted:
        return
    if not wanted[0].endswith("..."):
        asked.kinds = tuple(wanted[len(words) : len(words) + 1])
        return
    first, *others = (word.removesuffix("...") for word in wanted)
    while len(asked.tapes) < len(words) and _is_file(words[len(asked.tapes)]):
        asked.tapes.append(words[len(asked.tapes)])
    asked.placed = list(words[len(asked.tapes) :])
    if asked.placed:
        asked.kinds = tuple(others[len(asked.placed) : len(asked.placed) + 1])
    else:
        asked.kinds = (first, *(others[:1] if asked.tapes else ()))


def _is_file(word: str) -> bool:
    path = os.path.expanduser(word)
    return os.path.exists(path) or glob.has_magic(word)
