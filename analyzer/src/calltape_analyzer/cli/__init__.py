"""The ``calltape`` command: what is on a tape, and what follows from it.

:data:`~calltape_analyzer.cli.verbs.EXITS` has the exit codes; 130 follows Ctrl-C, and 143 SIGTERM.
Only ``export`` and ``replay`` import torch.
"""

from __future__ import annotations

import io
import json
import sys
from importlib import metadata
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from calltape_analyzer.cli.verbs import VerbGroup
from calltape_analyzer.limits import Limits

__all__ = ["app", "main", "root"]

_USAGE, _GIVE_UP = 2, 128
"""A wrong command line, and what ``git bisect run`` wants in place of it (:mod:`.bisection`)."""

app = typer.Typer(
    name="calltape",
    cls=VerbGroup,
    help="Read tapes of recorded PyTorch calls.",
    epilog="Exit codes: 0 success, 1 failure, 2 wrong usage, 3 success on a corrupted tape. "
    "The help of a command lists its own.\n\n"
    "Ctrl-C ends a command with 130 and SIGTERM with 143, after removing temporary files.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from calltape_analyzer import __version__

        # https://packaging.python.org/en/latest/specifications/direct-url/
        written = metadata.distribution("calltape-analyzer").read_text("direct_url.json")
        found = json.loads(written) if written else {}
        is_clone = "dir_info" in found
        origin = unquote(urlsplit(found["url"]).path) if is_clone else "a wheel"
        typer.echo(f"calltape {__version__} (from {origin})")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            envvar="CALLTAPE_MAX_SECONDS",
            help="Limit of the processor time for reading. Default: 4, or 5 per MiB of the tape; "
            "5 times as much for redacting.",
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=1,
            envvar="CALLTAPE_MAX_MEMORY",
            help="Limit of the memory for reading. Default: 1024 plus 64 times the tape, but at "
            "most three quarters of the machine's memory.",
        ),
    ] = None,
) -> None:
    """What stands before a verb: ``calltape --max-seconds 60 info TAPE``."""
    nbytes = None if max_memory is None else max_memory * 2**20
    context.with_resource(Limits(seconds=max_seconds, nbytes=nbytes))


def main() -> None:
    """Runs the command with the arguments of the process."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its escape, not an exception.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="calltape")
    except SystemExit as end:
        if end.code == _USAGE and "--bisect" in sys.argv:
            raise SystemExit(_GIVE_UP) from None
        raise
