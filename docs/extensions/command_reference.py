"""The commands ``calltape`` and ``calltape-record`` as Markdown, from the commands themselves."""

from __future__ import annotations

import argparse
import inspect
import re
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import typer

from calltape_analyzer.cli.verbs import EXITS, VERBS, Verb, app, root
from calltape_recorder.launch.launcher import parser_of_command

__all__ = ["command_page"]

_INTRODUCTION = """\
`calltape` reads tapes. `calltape TAPE` shows what a tape is, and the verbs show and do more. The
tables below are those of `calltape VERB --help`. [calltape-record](#calltape-record) records."""
_COMMON = """\
Ctrl-C ends a command with 130 and SIGTERM with 143, after removing temporary files. Some verbs give
these codes a narrower meaning, or have others: see below."""


def command_page() -> str:
    """The page of both commands."""
    command: Any = typer.main.get_command(app)
    verbs = [(f"[`{one.name}`](#calltape-{one.name})", _text(one.summary)) for one in VERBS]
    parts = [
        "# The calltape command",
        _INTRODUCTION,
        _table(("verb", "what it does"), verbs),
        "## Global options",
        "They stand before the verb.",
        _options(command, root),
        "## Exit codes",
        _exits(EXITS.items()),
        _COMMON,
        *(part for verb in VERBS for part in _verb(verb)),
        *_recording(parser_of_command()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verb(verb: Verb) -> list[str]:
    command, function = verb.load(), verb.function()
    text, *examples = re.split(r"^\x08$", inspect.cleandoc(command.help or ""), flags=re.MULTILINE)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join(["calltape", verb.name, "[OPTIONS]", *(one.metavar for one in arguments)])
    return [
        f"## calltape {verb.name}",
        f"```text\n{usage}\n```",
        _text(text),
        *(f"```sh\n{example.strip()}\n```" for example in examples),
        _options(command, function),
        _exits(verb.all_exits.items()),
    ]


def _options(command: Any, function: Any) -> str:
    """The arguments and options of a command, the arguments first. Their types and defaults come
    from the function: typer changes what it makes of these from version to version."""
    types = typing.get_type_hints(function, include_extras=False)
    defaults = inspect.signature(function).parameters
    rows = []
    for one in sorted(command.params, key=lambda one: one.param_type_name):
        if "completion" in str(one.name) or one.name not in types:
            continue
        default = defaults[one.name].default
        rows.append((f"`{_name(one, types[one.name])}`", _help(one, default)))
    return _table(("option", "what it does"), rows)


def _name(param: Any, kind: Any) -> str:
    """``-o, --out OUT``: how people write an argument or option."""
    if param.param_type_name == "argument":
        return str(param.metavar)
    names = ", ".join(sorted(param.opts, key=len))
    if param.secondary_opts:
        return f"{names} / {', '.join(param.secondary_opts)}"
    if kind is bool:
        return names
    # Literal["torch", "onnx"] | None
    kinds = [one for one in (kind, *typing.get_args(kind)) if typing.get_origin(one) is Literal]
    choices = "|".join(typing.get_args(kinds[0])) if kinds else "NUMBER"
    return f"{names} {param.metavar or choices}"


def _help(param: Any, default: Any) -> str:
    parts = [_text(param.help)]
    if param.param_type_name == "option" and param.required:
        parts.append("Required.")
    if isinstance(default, str):
        parts.append(f"Default: `{default}`.")
    if param.envvar:
        parts.append(f"Environment variable: `{param.envvar}`.")
    return " ".join(parts)


def _exits(rows: Iterable[tuple[int, str]]) -> str:
    return _table(("exit code", "meaning"), ((str(code), _text(text)) for code, text in rows))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [" | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in row) for row in rows]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *(f"| {line} |" for line in cells)])


def _text(text: Any) -> str:
    """Text of a help: what stands between backticks is code already."""
    parts = re.split(r"(`[^`\n]+`)", str(text).strip().replace("%%", "%"))
    return "".join(
        part if at % 2 else re.sub(r"([<*\[\]]|_(?=_)|(?<=_)_)", r"\\\1", part)
        for at, part in enumerate(parts)
    )


def _recording(parser: argparse.ArgumentParser) -> list[str]:
    """The section of ``calltape-record``."""
    rows = [
        (f"`{' '.join([*one.option_strings, str(one.metavar or '')]).strip()}`", _text(one.help))
        for one in parser._actions
        if one.help not in (argparse.SUPPRESS, None) and "--help" not in one.option_strings
    ]
    return [
        "## calltape-record",
        f"```text\n{parser.usage}\n```",
        _text(str(parser.description)),
        _table(("option", "what it does"), rows),
        _text(str(parser.epilog)),
        "It exits with 2 for wrong usage, with 126 if the command cannot run and with 127 if it is "
        "not found. Otherwise the command replaces it, and its exit code is that of the command.",
    ]
