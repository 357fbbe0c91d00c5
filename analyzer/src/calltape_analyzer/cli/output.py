"""What all commands share: how they print, and end.

Takes rows, models and errors, which may hold anything that is on a tape; returns text for people
that is safe to show, JSON for programs, and exit codes. A terminal has a width, and a pipe gets
everything; elsewhere than on a terminal, nothing has a colour or a frame.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

import typer
from pydantic import BaseModel

from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import Exceeded, spent
from calltape_analyzer.plain_data import plain
from calltape_analyzer.progress import shown_progress
from calltape_analyzer.text import fitted, table_lines, terminal_width
from calltape_schema.errors import TapeError
from calltape_schema.remedies import told_to

__all__ = [
    "WrongWordError",
    "command",
    "complain",
    "damage_as_json",
    "json_of",
    "line",
    "lines",
    "print_facts",
    "print_json",
    "print_list",
    "table",
    "wrong_words",
]


def line(*parts: str, indent: int = 2, stream: TextIO | None = None) -> None:
    """Prints parts on one line, made printable: what a tape says is not for terminals to obey.

    Args:
        parts: with a space between them.
        indent: of the further lines, beyond that of the first, if a terminal is not wide enough.
        stream: where to; stdout by default.
    """
    for text_line in fitted(" ".join(parts), terminal_width(stream), indent):
        print(text_line, file=stream)


def print_facts(rows: Iterable[tuple[str, str | None]]) -> None:
    """Prints facts, each behind its name; those that are None are left out."""
    for name, text in rows:
        if text is not None:
            line(name.ljust(10), text, indent=11)


def lines(text: str) -> None:
    """Prints a text of several lines, each as :func:`line` does."""
    for text_line in text.splitlines():
        line(text_line)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns side by side: fitted to a terminal, in full if the output goes elsewhere."""
    width = terminal_width()
    above, below = table_lines(head, rows, width)
    if above:
        (print if width is None else _print_bold)("\n".join(above))
    if below:
        print(*below, sep="\n")


def _print_bold(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    # https://no-color.org speaks of colour; a bold head is an escape all the same.
    style = "" if os.environ.get("NO_COLOR") else "bold"
    Console(highlight=False, soft_wrap=True).print(Text(text, style))


FAILURE, USAGE, DAMAGED = 1, 2, 3

F = TypeVar("F", bound=Callable[..., None])


class WrongWordError(UsageError):
    """A word of the command line names something that is not there, or is no condition, number or
    path. The command ends with 2, as it does for an option that is not there."""


@contextmanager
def wrong_words(kind: type[UsageError] = UsageError) -> Iterator[None]:
    """Takes errors of a block that does what the command line asks for as errors in that.

    Args:
        kind: which errors. Those of a subclass stay what they are: they are no mistakes in words.
    """
    try:
        yield
    except kind as error:
        if type(error) is not kind:
            raise
        raise WrongWordError(error.reason, path=error.path, advice=error.advice) from None


def command(function: F) -> F:
    """Ends a command the way all end: one line for an error, and its exit code."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        with told_to("command"):
            try:
                with shown_progress():
                    return function(*args, **kwargs)
            except (typer.Exit, typer.Abort, typer.BadParameter):
                raise
            except TapeError as error:
                complain(str(error))
                raise typer.Exit(USAGE if isinstance(error, WrongWordError) else FAILURE) from None
            except Exceeded as exceeded:
                complain(str(exceeded.error))
            except MemoryError:
                complain(
                    "not enough memory: use a larger machine, or raise the limit of `ulimit -v`"
                )
            except Exception as error:
                if os.environ.get("CALLTAPE_DEBUG"):
                    raise
                what = f"unexpected {type(error).__name__}: {error}"
                what = (
                    f"{what}. Please report this, with the traceback that CALLTAPE_DEBUG=1 shows."
                )
                complain(str(spent() or what))
            raise typer.Exit(FAILURE)

    return run  # type: ignore[return-value]


def complain(text: str) -> None:
    """Prints one line to stderr, or as many as a terminal needs for it."""
    sys.stdout.flush()
    line(f"calltape: {' '.join(text.split())}", stream=sys.stderr)


def damage_as_json(errors: Iterable[TapeError]) -> list[dict[str, Any]]:
    return [
        {
            "kind": error.kind,
            "reason": error.reason,
            "path": error.path,
            "member": error.member,
            "offset": error.offset,
        }
        for error in errors
    ]


def print_json(document: Any, *, uncut: bool = False) -> None:
    """Prints valid JSON; see :func:`~calltape_analyzer.plain_data.plain` for what JSON has no form
    for.

    Args:
        document: dicts, lists, tuples and scalars, or a model.
        uncut: no text is cut.
    """
    if isinstance(document, BaseModel):
        print(json_of(document))
        return
    # ensure_ascii also keeps a tape's control characters and lone surrogates away from terminals.
    encoder = json.JSONEncoder(indent=2, ensure_ascii=True, allow_nan=False)
    jsonable = plain(document, sys.maxsize) if uncut else plain(document)
    for part in encoder.iterencode(jsonable):  # in one piece it is many times the tape
        sys.stdout.write(part)
    print()


def print_list(items: Iterable[str]) -> None:
    """Prints a JSON list of what is JSON already, as it comes: tapes can be long."""
    before = "[\n"
    for item in items:
        print(before + item, end="")
        before = ",\n"
    print("[]" if before == "[\n" else "\n]")


def json_of(model: BaseModel) -> str:
    """The ``model_dump_json`` of a model, with escapes for what is not ASCII."""
    text = model.model_dump_json(indent=2)
    return text if text.isascii() else json.dumps(json.loads(text), indent=2)
