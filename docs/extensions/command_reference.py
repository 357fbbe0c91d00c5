"""The verbs of ``calltape`` as Markdown: what ``--help`` says, from the same commands."""

from __future__ import annotations

import inspect
import re
from typing import Any

from calltape_analyzer.cli.verbs import VERBS, Verb

__all__ = ["verbs_as_markdown"]


def verbs_as_markdown() -> str:
    """A section per verb: what it does, examples, arguments and options."""
    return "\n\n".join(_section(verb) for verb in VERBS)


def _section(verb: Verb) -> str:
    command = verb.load()
    context = command.make_context(f"calltape {verb.name}", [], resilient_parsing=True)
    text, *examples = re.split(r"^\x08$", inspect.cleandoc(command.help or ""), flags=re.MULTILINE)
    parts = [f"## calltape {verb.name}", _text(text)]
    usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
    parts.append(f"```text\n{usage}\n```")
    parts.extend(f"```sh\n{example.strip()}\n```" for example in examples)
    records = [p.get_help_record(context) for p in command.get_params(context)]
    rows = [f"| {_code(name)} | {_cell(what)} |" for name, what in filter(None, records)]
    if rows:
        parts.append("\n".join(["| option | what it does |", "| --- | --- |", *rows]))
    return "\n\n".join(parts)


def _text(text: str) -> str:
    return text.strip().replace("<", r"\<")


def _code(names: Any) -> str:
    return f"`{names}`".replace("|", r"\|")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("<", r"\<").replace("*", r"\*")
