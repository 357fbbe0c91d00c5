"""What all commands share: how they print, and end.

In come rows, models and errors. Out go text for people, JSON for programs, and exit codes.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from pydantic import BaseModel

from calltape_analyzer.cli.budget import Exceeded, spent
from calltape_analyzer.cli.terminal import line, lines, table
from calltape_analyzer.errors import UsageError
from calltape_analyzer.interruption import code_of
from calltape_analyzer.plain_data import plain
from calltape_analyzer.progress import shown_progress
from calltape_schema.errors import TapeError

__all__ = [
    "WrongWordError",
    "command",
    "complain",
    "damage_as_json",
    "forced",
    "line",
    "lines",
    "print_json",
    "print_model",
    "print_models",
    "table",
    "wrong_words",
]

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
        try:
            with shown_progress():
                function(*args, **kwargs)
        except KeyboardInterrupt as end:
            raise typer.Exit(code_of(end)) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except TapeError as error:
            complain(str(error))
            is_wrong = isinstance(error, WrongWordError)
            raise typer.Exit(USAGE if is_wrong else FAILURE) from None
        except Exceeded as exceeded:
            complain(str(exceeded.error))
            raise typer.Exit(FAILURE) from None
        except MemoryError:
            complain("there is not enough memory for this, or no more than `ulimit -v` allows")
            raise typer.Exit(FAILURE) from None
        except Exception as error:
            if os.environ.get("CALLTAPE_DEBUG"):
                raise
            if (known := spent()) is not None:
                complain(str(known))
                raise typer.Exit(FAILURE) from None
            what = f"{type(error).__name__}: {error}"
            complain(f"unexpected {what}. Set CALLTAPE_DEBUG=1 for the traceback, and report it.")
            raise typer.Exit(FAILURE) from None

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


def print_json(document: Any, *, whole: bool = False) -> None:
    """Prints valid JSON; see :func:`~calltape_analyzer.plain_data.plain` for what JSON has no form
    for.

    Args:
        document: dicts, lists, tuples and scalars.
        whole: no text is cut.
    """
    # ensure_ascii also keeps a tape's control characters and lone surrogates away from terminals.
    encoder = json.JSONEncoder(indent=2, ensure_ascii=True, allow_nan=False)
    found = plain(document, sys.maxsize) if whole else plain(document)
    for part in encoder.iterencode(found):  # in one piece it is many times the tape
        sys.stdout.write(part)
    print()


def print_model(model: BaseModel) -> None:
    """Prints the ``model_dump_json`` of a model, with escapes for what is not ASCII."""
    print(_json_of(model))


def print_models(models: Iterable[BaseModel]) -> None:
    """Prints a JSON list of the ``model_dump_json`` of each model, as they come."""
    before = "[\n"
    for model in models:
        print(before + _json_of(model), end="")
        before = ",\n"
    print("[]" if before == "[\n" else "\n]")


def _json_of(model: BaseModel) -> str:
    text = model.model_dump_json(indent=2)
    return text if text.isascii() else json.dumps(json.loads(text), indent=2)


@contextmanager
def forced(*, is_option: bool = True) -> Iterator[None]:
    """Says of a file that is there already which option replaces it."""
    try:
        yield
    except TapeError as error:
        if error.kind == "exists":
            force = ", or pass --force to replace what is there" if is_option else ""
            error.advice = f"name another place{force}"
        raise
