"""What all commands share: how they open a tape, print, and end."""

from __future__ import annotations

import functools
import json
import math
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from calltape_analyzer.allowance import granted
from calltape_analyzer.cli.budget import Exceeded, limits, reading
from calltape_analyzer.explanation import shown_value
from calltape_analyzer.opening import files_of, open_tape
from calltape_analyzer.printable import printable
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError

__all__ = [
    "Json",
    "Paths",
    "command",
    "damage_as_json",
    "line",
    "opened",
    "print_json",
    "table",
    "write_new",
]

FAILURE, DAMAGED, INTERRUPTED = 1, 3, 130

_MAX_BITS = 256
_MAX_TEXT = 4096
_MAX_WIDTH = 100
"""Of a column: wider cells are followed by the next, and do not widen those of all other rows."""

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="TAPE", help="Files, directories of *.tape, or patterns; read as one tape."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]

F = TypeVar("F", bound=Callable[..., None])


def command(function: F) -> F:
    """Ends a command the way all end: one line for an error, and its exit code."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except TapeError as error:
            _complain(str(error))
            raise typer.Exit(FAILURE) from None
        except Exceeded as exceeded:
            _complain(str(exceeded.error))
            raise typer.Exit(FAILURE) from None
        except MemoryError:
            _complain("there is not enough memory for this, or no more than `ulimit -v` allows")
            raise typer.Exit(FAILURE) from None
        except Exception as error:
            if os.environ.get("CALLTAPE_DEBUG"):
                raise
            what = f"{type(error).__name__}: {error}"
            _complain(f"unexpected {what}. Set CALLTAPE_DEBUG=1 for the traceback, and report it.")
            raise typer.Exit(FAILURE) from None

    return run  # type: ignore[return-value]


@contextmanager
def opened(paths: Sequence[str], *, runs: bool = False) -> Iterator[Tape]:
    """The tape of a command's arguments; afterwards its damage is told, and decides the exit
    code.

    Args:
        runs: whether the command runs a model, whose time and memory are its own: only opening the
            tape is bounded then.
    """
    given = paths if len(paths) > 1 else paths[0]
    with ExitStack() as stack:
        with ExitStack() as opening:
            (opening if runs else stack).enter_context(reading(files_of(given)))
            tape = stack.enter_context(open_tape(given))
        if limits.nbytes is not None:
            stack.enter_context(granted(limits.nbytes))
        yield tape
        sys.stdout.flush()
        for error in tape.damage:
            _complain(str(error))
        if tape.damage:
            raise typer.Exit(DAMAGED)


def _complain(text: str) -> None:
    sys.stdout.flush()
    print(f"calltape: {printable(' '.join(text.split()))}", file=sys.stderr)


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


def line(*parts: str) -> None:
    """Prints parts on one line, made printable: what a tape says is not for terminals to obey."""
    print(" ".join(printable(part) for part in parts).rstrip())


def print_json(document: Any, *, whole: bool = False) -> None:
    """Prints valid JSON: what JSON has no form for (bytes, complex, NaN and infinities) as text.
    Ints of more than 256 bits are described, texts of more than 4,096 characters cut.

    Args:
        document: dicts, lists, tuples and scalars.
        whole: no text is cut.
    """
    # ensure_ascii also keeps a tape's control characters and lone surrogates away from terminals.
    encoder = json.JSONEncoder(indent=2, ensure_ascii=True, allow_nan=False)
    plain = _plain(document, sys.maxsize if whole else _MAX_TEXT)
    for part in encoder.iterencode(plain):  # in one piece it is many times the tape
        sys.stdout.write(part)
    print()


def _plain(value: Any, most: int) -> Any:
    if isinstance(value, dict):
        return {_name(name): _plain(item, most) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, most) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):  # in decimal a wide one takes quadratic time
        return value if value.bit_length() <= _MAX_BITS else shown_value(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (bytes, bytearray)):
        value = value[:most]  # as text it is longer than that, and cut
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}…"


def _name(name: Any) -> Any:
    """A key that JSON has: those of a tape may be bytes, tuples and NaN."""
    is_finite = not isinstance(name, float) or math.isfinite(name)
    known = name is None or isinstance(name, (str, bool, int, float))
    return name if known and is_finite else str(name)


def write_new(path: Path, text: str, *, force: bool = False) -> None:
    """Writes an ASCII file that was not there, or, with ``force``, in place of one.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    try:
        if force:
            beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            try:
                _write_exclusively(beside, text)
                os.replace(beside, path)
            finally:
                beside.unlink(missing_ok=True)
        else:
            _write_exclusively(path, text)
    except FileExistsError:
        advice = "name another file, or pass --force to replace it"
        raise TapeError("exists", "it is there already", path=str(path), advice=advice) from None
    except OSError as error:
        raise TapeError("io", f"cannot write it: {error.strerror}", path=str(path)) from None


def _write_exclusively(path: Path, text: str) -> None:
    with path.open("x", encoding="ascii") as file:
        file.write(text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns side by side: fitted to a terminal, in full where the output goes elsewhere."""
    shown = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _fitted(head, shown)
        return
    columns = zip(head, *shown, strict=True)
    widths = [min(max(map(len, column)), _MAX_WIDTH) for column in columns]
    for row in (head, *shown):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _fitted(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        made.add_column(name, overflow="fold")
    for row in rows:
        # Text, not str: brackets in a shape are not markup.
        made.add_row(*(Text(cell) for cell in row))
    Console(width=shutil.get_terminal_size().columns, highlight=False).print(made)
