"""The verbs of the command, and where each of them is.

A verb is imported when it runs: so ``calltape --help`` and a mistyped verb answer at once, and no
verb waits for the imports of another one.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from calltape_analyzer.interruption import code_of

__all__ = ["VERBS", "Verb", "VerbGroup"]


class Verb(NamedTuple):
    """A verb.

    Attributes:
        name: at the prompt.
        module: in this folder. The function of the verb has its name there, with an underscore
            where Python has the name; its docstring is the help.
        summary: the first line of this docstring.
        settings: of its context.
    """

    name: str
    module: str
    summary: str
    settings: Mapping[str, Any] = MappingProxyType({})

    def load(self) -> Any:
        """The command, imported now."""
        module = importlib.import_module(f"calltape_analyzer.cli.{self.module}")
        function = getattr(module, f"{self.name}_" if self.name == "filter" else self.name)
        app = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        app.command(self.name, context_settings=dict(self.settings))(function)
        return typer.main.get_command(app)


# A dimension may be counted from the end: -1 is no option.
_DIMENSIONS = MappingProxyType({"ignore_unknown_options": True})

VERBS = (
    Verb("info", "info", "What a tape has, what is wrong with it, and what it may tell."),
    Verb("ls", "calls", "The calls, one per line."),
    Verb("show", "calls", "One call as a tree."),
    Verb("view", "viewing", "Look at tapes in a browser."),
    Verb("variants", "variants", "The programs that the calls need."),
    Verb("explain", "variants", "Why a dimension is dynamic or constant.", _DIMENSIONS),
    Verb("diff", "variants", "What calls on tape NOW show that those on BEFORE do not."),
    Verb("survey", "surveys", "Many tapes as one: calls, coverage and damage."),
    Verb("export", "exports", "Programs for the calls on a tape, verified."),
    Verb("replay", "replays", "Runs the recorded calls, and compares."),
    Verb("filter", "edits", "A part of a tape as a new tape."),
    Verb("merge", "edits", "Several tapes of one target as one tape."),
    Verb("recover", "edits", "The sound calls of a damaged or unsealed tape, sealed."),
    Verb("minimise", "edits", "The smallest tape that fails for the same reason."),
    Verb("redact", "edits", "A tape without what may tell of a person or a machine."),
    Verb("bundle", "handing_on", "A redacted tape, a script and versions in one zip file."),
    Verb(
        "convert", "handing_on", "A tape as a folder of .safetensors, or a tape of such a folder."
    ),
    Verb("table", "handing_on", "The calls as a table in a file."),
)


_OVERVIEW = Verb("overview", "overview", "What a tape is, and the variants of its calls.")
"""Of ``calltape TAPE``: not a word at the prompt."""


class VerbGroup(TyperGroup):
    """The group of all verbs. Words that begin with a tape, and with no verb, ask what it is."""

    def __init__(self, **settings: Any) -> None:
        settings["commands"] = {verb.name: _Unloaded(verb) for verb in VERBS}
        super().__init__(**settings)

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Reads the words before a verb."""
        with _signals_end():
            return super().make_context(*args, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb of these words, and what is left of them."""
        if args and args[0] not in self.commands and _is_tape(args[0]):
            return "", _Unloaded(_OVERVIEW), args
        return super().resolve_command(ctx, args)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        super().format_usage(ctx, formatter)
        formatter.write_usage(ctx.command_path, "TAPE...", prefix=" " * len("Usage: "))

    def invoke(self, ctx: Any) -> Any:
        """Runs a verb. A signal that comes while it is imported ends it as one that comes later."""
        with _signals_end():
            return super().invoke(ctx)


@contextlib.contextmanager
def _signals_end() -> Iterator[None]:
    """Typer takes each KeyboardInterrupt for Ctrl-C; it may be another signal."""
    try:
        yield
    except KeyboardInterrupt as end:
        raise typer.Exit(code_of(end)) from None


def _is_tape(word: str) -> bool:
    """Whether a word names something that can be opened: a file, a directory, a pattern, a URL."""
    from calltape_analyzer.reading.urls import is_url

    return os.path.lexists(word) or glob.has_magic(word) or is_url(word)


def _in_words(error: typer.BadParameter) -> str:
    """The message of an error, without the prefix of pydantic, which some versions of typer use;
    of an argument that is missing beside others, which ones are wanted."""
    is_argument = getattr(error.param, "param_type_name", None) == "argument"
    if error.message or error.ctx is None or not is_argument:
        return error.message.removeprefix("Value error, ")
    wanted = [
        str(one.metavar or one.name)
        for one in error.ctx.command.params
        if one.param_type_name == "argument" and one.required
    ]
    return f"{' and '.join(wanted)} are wanted." if len(wanted) > 1 else ""


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
