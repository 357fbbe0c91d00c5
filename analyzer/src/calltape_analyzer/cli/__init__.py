"""The ``calltape`` command: what is on a tape, and what follows from it.

Exit codes: 0 clean, 1 failure, 2 usage, 3 readable but damaged; 4 if the tapes of ``diff``
differ; 130 after Ctrl-C, 143 after SIGTERM. ``replay --bisect`` has those of ``git bisect run``.
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

__all__ = ["app", "main"]

_USAGE, _GIVE_UP = 2, 128
"""A wrong command line, and what ``git bisect run`` wants in place of it (:mod:`.bisection`)."""

app = typer.Typer(
    name="calltape",
    cls=VerbGroup,
    help="Reads tapes of recorded PyTorch calls.",
    epilog="Exit codes: 0 clean, 1 failure, 2 usage, 3 readable but damaged.\n\n"
    "diff ends with 4 if the tapes differ; export and replay with 1 if a call fails; "
    "damage changes neither.\n\n"
    "Ctrl-C ends with 130 and SIGTERM with 143, after temporary files are removed.\n\n"
    "replay --bisect: 0 good, 1 bad, 125 cannot be tested, 128 give up, as git bisect run has it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from calltape_analyzer import __version__

        typer.echo(f"calltape {__version__} ({_origin()})")
        raise typer.Exit


def _origin() -> str:
    """What the package was installed from: the folder of a clone, or a wheel."""
    # https://packaging.python.org/en/latest/specifications/direct-url/
    written = metadata.distribution("calltape-analyzer").read_text("direct_url.json")
    found = json.loads(written) if written else {}
    if "dir_info" not in found:
        return "from a wheel"
    return f"from {unquote(urlsplit(found['url']).path)}"


@app.callback()
def _root(
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
            help="Processor time that reading may take; by default 4, or 5 per MiB of the tape, "
            "and 10 times as long to redact it.",
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=1,
            envvar="CALLTAPE_MAX_MEMORY",
            help="Memory that reading may take; by default 1024 and 64 times the tape, at most "
            "three quarters of the machine's.",
        ),
    ] = None,
) -> None:
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
