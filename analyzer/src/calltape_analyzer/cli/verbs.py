"""The ``calltape`` command: its verbs, and where each of them is.

A verb is imported when it runs, so that ``calltape --help`` and a mistyped verb answer at once, and
no verb waits for the imports of another one. Only ``export`` and ``replay`` import torch.
:data:`EXITS` has the exit codes; 130 follows Ctrl-C, and 143 SIGTERM.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import io
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import typer
from typer.core import TyperCommand, TyperGroup

from calltape_analyzer.interruption import exit_code_of
from calltape_analyzer.limits import Limits

__all__ = ["EXITS", "VERBS", "Verb", "VerbGroup", "app", "main", "root"]


class Verb(NamedTuple):
    """A verb.

    Attributes:
        name: at the prompt.
        module: in this folder. The function of the verb has its name there, with an underscore
            where Python has the name; its docstring is the help.
        summary: the first line of this docstring.
        exits: what its exit codes mean, where that is not what :data:`EXITS` says; empty for one
            that it does not have.
        settings: of its context.
    """

    name: str
    module: str
    summary: str
    exits: Mapping[int, str] = MappingProxyType({})
    settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def all_exits(self) -> dict[int, str]:
        """The meaning of each exit code, including those that all verbs share."""
        meanings = {**EXITS, **self.exits}
        return {code: meanings[code] for code in sorted(meanings) if meanings[code]}

    def function(self) -> Any:
        """The function, imported now."""
        module = importlib.import_module(f"calltape_analyzer.cli.{self.module}")
        return getattr(module, f"{self.name}_" if self.name == "filter" else self.name)

    def load(self) -> Any:
        """The command, imported now."""
        app = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        settings = dict(self.settings)
        app.command(self.name, epilog=_epilog(self), context_settings=settings)(self.function())
        return typer.main.get_command(app)


EXITS = MappingProxyType(
    {
        0: "success",
        1: "failure",
        2: "wrong usage",
        3: "success, but the tape is corrupted: the answer covers what could be read",
    }
)
"""What the exit codes mean, unless a verb says more."""


def _epilog(verb: Verb) -> str:
    """The exit codes for the help of a verb; empty if none has a meaning of its own."""
    if not any(verb.exits.values()):
        return ""
    rows = [textwrap.wrap(f"{code:<4} {text}", 72, subsequent_indent=" " * 5)
            for code, text in verb.all_exits.items()]  # fmt: skip
    return "\n".join(["\b", "Exit codes:", *(f"  {line}" for row in rows for line in row)])


# A dimension may be counted from the end: -1 is no option.
_DIMENSIONS = MappingProxyType({"ignore_unknown_options": True})
_LOST = MappingProxyType({3: "success, but calls were lost; the output says which"})

VERBS = (
    Verb("info", "info", "Show what a tape contains, what is wrong with it, and what it reveals."),
    Verb("ls", "calls", "List the calls, one per line."),
    Verb("show", "calls", "Show one call as a tree."),
    Verb("view", "viewing", "View tapes in a browser.", {3: ""}),
    Verb("variants", "variants", "List the variants: calls that one program can serve."),
    Verb(
        "explain",
        "variants",
        "Explain why a dimension is dynamic or constant.",
        settings=_DIMENSIONS,
    ),
    Verb(
        "diff",
        "variants",
        "Compare tapes: show what is new in NOW, and what is gone.",
        {
            0: "the tapes show the same",
            3: "no difference in what could be read of a corrupted tape",
            4: "the tapes differ",
        },
    ),
    Verb(
        "survey",
        "surveys",
        "Summarize many tapes: calls, coverage and corruption.",
        {
            1: "no tape could be read",
            3: "some tapes are corrupted or could not be read",
        },
    ),
    Verb(
        "export",
        "exports",
        "Export a program for each variant, and verify it.",
        {
            0: "every call is reproduced and every variant is general; with --allow-constants, "
            "programs for the recorded sizes are enough",
            1: "failure: a call is not reproduced, a variant lacks such a program, or an error",
        },
    ),
    Verb(
        "replay",
        "replays",
        "Run the recorded calls through a model or program, and compare.",
        {
            0: "every call gives what was recorded; with --dry-run, is accepted",
            1: "failure: a call differs, or an error",
            125: "with --bisect: this commit cannot be tested",
            128: "with --bisect: no commit can be tested",
        },
    ),
    Verb("filter", "edits", "Write part of a tape to a new tape.", _LOST),
    Verb("merge", "edits", "Merge several tapes of one target into one.", _LOST),
    Verb("recover", "edits", "Recover the intact calls of a corrupted or unsealed tape.", _LOST),
    Verb(
        "minimise",
        "edits",
        "Find the smallest tape that fails for the same reason.",
        {1: "failure: nothing fails every time, and nothing is written; or an error"},
    ),
    Verb("redact", "edits", "Remove what may identify a person or a machine.", _LOST),
    Verb("bundle", "edits", "Pack a redacted tape, a script and versions into a zip file."),
    Verb("convert", "edits", "Convert a tape to a folder of safetensors files, or back."),
    Verb("table", "edits", "Write the calls to a Parquet, Arrow or CSV file."),
)


_OVERVIEW = Verb("overview", "info", "Show what a tape is, and the variants of its calls.")
"""Of ``calltape TAPE``: not a word at the prompt."""


class VerbGroup(TyperGroup):
    """The group of all verbs. If the first word is a tape and not a verb, the command shows an
    overview of the tape."""

    def __init__(self, **settings: Any) -> None:
        settings["commands"] = {verb.name: _Unloaded(verb) for verb in VERBS}
        super().__init__(**settings)

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Reads the words before a verb."""
        with _signals_end():
            return super().make_context(*args, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that the words name, and the words after it."""
        if args and args[0] not in self.commands and _is_tape(args[0]):
            return "", _Unloaded(_OVERVIEW), args
        return super().resolve_command(ctx, args)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        super().format_usage(ctx, formatter)
        formatter.write_usage(ctx.command_path, "TAPE...", prefix=" " * len("Usage: "))

    def invoke(self, ctx: Any) -> Any:
        """Runs a verb. A signal during its import has the same effect as a later one."""
        with _signals_end():
            return super().invoke(ctx)


@contextlib.contextmanager
def _signals_end() -> Iterator[None]:
    """Typer takes each KeyboardInterrupt for Ctrl-C; it may be another signal."""
    try:
        yield
    except KeyboardInterrupt as end:
        raise typer.Exit(exit_code_of(end)) from None


def _is_tape(word: str) -> bool:
    """Whether a word names something that can be opened: a file, a directory, a pattern, a URL."""
    from calltape_analyzer.reading.urls import is_url

    return os.path.lexists(word) or glob.has_magic(word) or is_url(word)


def _in_words(error: typer.BadParameter) -> str:
    """The message of an error, without the prefix that pydantic adds under some versions of typer.
    If arguments are missing, it names all of them."""
    is_argument = getattr(error.param, "param_type_name", None) == "argument"
    if error.message or error.ctx is None or not is_argument:
        return error.message.removeprefix("Value error, ")
    arguments = [
        str(parameter.metavar or parameter.name)
        for parameter in error.ctx.command.params
        if parameter.param_type_name == "argument" and parameter.required
    ]
    return f"Pass {' and '.join(arguments)}." if len(arguments) > 1 else ""


class _Unloaded(TyperCommand):
    """A verb that is imported when it gets its arguments."""

    def __init__(self, verb: Verb) -> None:
        # A `short_help` is wrapped. The `help` would be cut in the middle of a sentence.
        super().__init__(
            verb.name, help=verb.summary, short_help=verb.summary, rich_markup_mode=None
        )
        self._verb = verb

    @functools.cached_property
    def _loaded(self) -> Any:
        """Loaded once: a process that runs many commands would describe each option anew."""
        return self._verb.load()

    def make_context(self, *args: Any, **options: Any) -> Any:
        try:
            return self._loaded.make_context(*args, **options)
        except typer.BadParameter as error:
            error.message = _in_words(error)
            raise


_USAGE, _GIVE_UP = 2, 128
"""A wrong command line, and what ``git bisect run`` wants in place of it."""

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


def _version(is_asked: bool) -> None:
    if is_asked:
        from calltape_analyzer import __version__

        # https://packaging.python.org/en/latest/specifications/direct-url/
        written = metadata.distribution("calltape-analyzer").read_text("direct_url.json")
        origin_file = json.loads(written) if written else {}
        is_clone = "dir_info" in origin_file
        origin = unquote(urlsplit(origin_file["url"]).path) if is_clone else "a wheel"
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
