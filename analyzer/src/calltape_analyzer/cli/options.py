"""The options that several verbs have, in groups, and what they choose: tapes, and the calls,
variants and arguments of them; classes, and a model.

An option has the same name, form and meaning in every verb. A verb composes the groups that it
needs; an option of a single verb is defined with that verb. Takes words of the command line;
returns plain values, or an open tape. When the tape is closed, its damage is reported, and decides
the exit code.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NoReturn

import typer

from calltape_analyzer.cli.output import DAMAGED, complain, wrong_words
from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import reading
from calltape_analyzer.opening import open_tape
from calltape_analyzer.reading.files import files_of
from calltape_analyzer.reading.selection import UnknownTargetError, ranges_of
from calltape_analyzer.scripting import is_factory
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import some_of

if TYPE_CHECKING:
    import torch

    from calltape_analyzer.variant import Variant

__all__ = [
    "FILES",
    "Address",
    "Calls",
    "ClassNames",
    "Force",
    "Ignore",
    "Json",
    "MaxSeconds",
    "ModelName",
    "OfTarget",
    "OptionalModelName",
    "OptionalOut",
    "OptionalTo",
    "Out",
    "Part",
    "Paths",
    "Scan",
    "To",
    "Variants",
    "Verbose",
    "address",
    "classes_of",
    "expect_factory",
    "imported",
    "model_of",
    "opened_tape",
    "wanted_variants",
]

FILES = "Files, patterns, or directories (searched for .tape, .tape.gz and .tape.zst files)"

_MOST_NAMED = 3
_ADDRESS = re.compile(r"([0-9a-f]{4,32}:)?\d{1,20}", re.ASCII)


def address(text: str) -> str:
    """The text, if it has the form of a call's address.

    Raises:
        BadParameter: it has another form.
    """
    if not _ADDRESS.fullmatch(text):
        raise typer.BadParameter(
            f"{text!r:.100} is not a call; write a number like 12 or an address like 3f9a01bc:12"
        )
    return text


def _last_word(text: str) -> str:
    """Checks the last word of a command in the same way: a word of another form is a tape."""
    try:
        return address(text)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"the call is missing: the last word is {text!r:.100}; name a call after the tapes, "
            "like 12 or 3f9a01bc:12"
        ) from None


# Which tapes.
Paths = Annotated[list[str], typer.Argument(metavar="TAPE...", help=f"{FILES}. Read as one tape.")]
OfTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="Read only the tapes of this model: its class and method, or part of that name. "
        "`info` lists the models.",
    ),
]
Scan = Annotated[
    bool,
    typer.Option(
        "--scan",
        help="Read every record, and compare the summary at the end of sealed tapes with the "
        "records. By default, the summary is trusted.",
    ),
]

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print what was tried or read.")
]

# Which calls, and what of them.
Address = Annotated[
    str,
    typer.Argument(
        metavar="CALL",
        parser=_last_word,
        # Before the tapes: without a call its place has the last tape, and they seem to be missing.
        is_eager=True,
        help="Number or address of the call, as `ls` prints it.",
    ),
]
Calls = Annotated[
    str | None,
    typer.Option(
        "--calls", metavar="CALLS", help="Only these calls, such as 3,10..99 or 3f9a01bc:0..5."
    ),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="NAME",
        help="Only the calls of this variant: its name, or its position in the output of "
        "`variants`, from 0. Repeatable.",
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="ARG", help="Ignore this argument. Repeatable."),
]

# Which model, and how long it may take.
_MODEL = typer.Option(
    "--model",
    "-m",
    metavar="PACKAGE.MODULE:FACTORY",
    help="The model: a module object, or a function without arguments that returns one. Imported "
    "with the current directory on the path.",
)
ModelName = Annotated[str, _MODEL]
OptionalModelName = Annotated[str | None, _MODEL]
ClassNames = Annotated[
    list[str] | None,
    typer.Option(
        "--classes",
        metavar="PACKAGE.MODULE:CLASS",
        help="A class of the arguments, such as a cache, to import. Repeatable.",
    ),
]
MaxSeconds = Annotated[
    float | None,
    typer.Option(
        "--max-seconds",
        metavar="SECONDS",
        min=0.001,
        help="Stop after this time, and keep what was found until then.",
    ),
]

# Which form, and where to.
_FORM = typer.Option("--to", help="Export to torch.export programs, or to ONNX.")
To = Annotated[Literal["torch", "onnx"], _FORM]
OptionalTo = Annotated[Literal["torch", "onnx"] | None, _FORM]
_OUT = typer.Option("--out", "-o", metavar="OUT", help="The file or directory to write.")
Out = Annotated[Path, _OUT]
OptionalOut = Annotated[Path | None, _OUT]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


_MOST_FILES = 3
_OTHER_RANKS = (
    "ignored, because another rank of the job made the same calls: {}. To see what a rank "
    "returned, name its file alone"
)
_BELIEVED = {
    "end": "answered from the summary at the end of the tape; --scan compares it with the records",
    "records": "{} of {} records were read; --scan reads and compares all of them",
}


class Part(NamedTuple):
    """The options that choose a tape of several, and a part of it."""

    calls: str | None = None
    variant: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    target: str | None = None

    def of(self, tape: Tape) -> Tape:
        """That part of a tape; the tape itself if nothing was chosen.

        Raises:
            BadParameter: the calls are not in the form that is wanted.
            WrongWordError: there is no such call, variant or argument.
        """
        if self.calls is not None:
            try:
                ranges_of(self.calls)
            except UsageError as error:
                raise typer.BadParameter(f"--calls: {error}") from None
        if self.calls is None and not self.variant and not self.ignore:
            return tape
        names = list(self.variant) if self.variant else None
        with wrong_words():
            return tape.only(calls=self.calls, variant=names, ignore=list(self.ignore or ()))


def wanted_variants(tape: Tape, names: Sequence[str] | None) -> list[Variant]:
    """The variants of these names or positions; all without names. For answers that need no single
    call: a survey gives them too, and of a sealed tape no record is read.

    Raises:
        WrongWordError: there is no such variant.
    """
    from calltape_analyzer.variant import chosen_variants

    variants = tape.variants()
    if not names:
        return variants
    with wrong_words():
        return chosen_variants(variants, list(names))[1]


@contextmanager
def opened_tape(
    paths: Sequence[str],
    part: Part = Part(),
    *,
    runs: bool = False,
    scan: bool | None = None,
    verbose: bool = False,
    reports_damage: bool = True,
    effort: int = 1,
    classes: Sequence[type] = (),
) -> Iterator[Tape]:
    """Opens the tape that the words and options of a command select. On leaving, it reports the
    tape's damage, which decides the exit code unless the command decided it.

    Args:
        paths: files, directories and patterns.
        part: what of it is meant.
        runs: whether the command runs a model, whose time and memory are its own: only opening the
            tape is bounded then.
        scan: whether the files are scanned in any case. None for a command that has no such
            option.
        verbose: whether an answer from the ends of sealed tapes says so.
        reports_damage: whether damage is reported here, and not by the command itself.
        effort: how many times as long it may take as to read the tape.
        classes: that objects on the tape may be rebuilt from.
    """
    path = paths if len(paths) > 1 else paths[0]
    with ExitStack() as stack:
        with ExitStack() as opening:
            (opening if runs else stack).enter_context(reading(files_of(path), effort))
            how: dict[str, Any] = {"target": part.target, "scan": bool(scan)}
            opening.enter_context(wrong_words(UnknownTargetError))
            tape = stack.enter_context(open_tape(path, classes=classes, **how))
            chosen = part.of(tape)
        if tape.other_ranks:
            are = (
                "a file is" if len(tape.other_ranks) == 1 else f"{len(tape.other_ranks)} files are"
            )
            complain(f"{are} {_OTHER_RANKS.format(some_of(tape.other_ranks, _MOST_FILES))}")
        verdict: typer.Exit | None = None
        try:
            yield chosen
        except typer.Exit as reached:
            verdict = reached if reached.exit_code else None
        sys.stdout.flush()
        if scan is False and tape.calls.has_single_calls:
            read = tape.records_read
            recorded = sum(len(part) + part.damaged for part in tape.segments)
            if verbose if tape.source == "end" else read < recorded:
                complain(_BELIEVED[tape.source].format(f"{read:,}", f"{recorded:,}"))
        for error in tape.damage if reports_damage else ():
            complain(str(error))
        if verdict is not None:
            raise verdict
        if reports_damage and tape.damage:
            raise typer.Exit(DAMAGED)


def classes_of(names: Sequence[str] | None, *, are_words: bool = True) -> list[type]:
    """Imports the classes of these names.

    Args:
        names: ``package.module:class``.
        are_words: whether one that is not there is a mistake in words. In a bisection it may be in
            another commit.

    Raises:
        BadParameter: a name has another form.
        UsageError: one cannot be imported, or is no class.
    """
    for name in names or ():
        expect_factory(name, "class")
    if not names:
        return []
    classes: list[type] = []
    with wrong_words() if are_words else nullcontext():
        for name in names:
            value = imported(name)
            if not isinstance(value, type):
                raise UsageError(f"{name} is not a class", advice="name a class as MODULE:CLASS")
            classes.append(value)
    return classes


def model_of(name: str) -> torch.nn.Module:
    """Imports a factory and calls it.

    Args:
        name: ``package.module:factory``, of a function without arguments, or of a module object.

    Raises:
        BadParameter: the name has another form.
        UsageError: it cannot be imported, fails, or gives something that is no module.
    """
    expect_factory(name)
    model = imported(name)
    import torch

    if not isinstance(model, torch.nn.Module):
        try:
            model = model()
        except (Exception, SystemExit) as error:
            _fail(f"{name}() failed", error)
    if not isinstance(model, torch.nn.Module):
        kind = f"{type(model).__module__}.{type(model).__qualname__}"
        raise UsageError(f"{name} gives a {kind}", advice="let it return a torch.nn.Module")
    return model


def imported(name: str) -> Any:
    """What a name means, with the current directory on the path.

    Args:
        name: ``package.module:attribute``.

    Raises:
        UsageError: there is no such module, it cannot be imported, or it has no such attribute.
    """
    module, _, attribute = name.partition(":")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as python -m does
    try:
        value: Any = importlib.import_module(module)
        parts = attribute.split(".")
        while parts and hasattr(value, parts[0]):
            value = getattr(value, parts.pop(0))
    except (Exception, SystemExit) as error:  # importing a model runs anything
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is not None and f"{module}.".startswith(f"{absent}."):
            reason = (
                f"{name} cannot be imported: no module {absent} in the current directory or on the "
                "Python path"
            )
            advice = "run it in the directory that has the module, or put that on PYTHONPATH"
            if module.endswith(".py"):
                reason = f"{module} is the name of a file, and not of a module"
                advice = f"write {module.removesuffix('.py')}:{attribute}"
            raise UsageError(reason, advice=advice) from error
        _fail(f"{name} cannot be imported", error)
    if not parts:
        return value
    # The functions and classes that are there.
    names = [
        name
        for name, member in getattr(value, "__dict__", {}).items()
        if callable(member)
        and not name.startswith("_")
        and getattr(member, "__module__", "") == module
    ]
    near = difflib.get_close_matches(parts[0], names, _MOST_NAMED) or names
    such = f", such as {some_of(near, _MOST_NAMED)}" if near else ""
    raise UsageError(f"{module} has no {attribute}", advice=f"name one that is there{such}")


def _fail(what: str, error: BaseException) -> NoReturn:
    if os.environ.get("CALLTAPE_DEBUG"):
        raise error
    text = " ".join(str(error).split())
    raise UsageError(
        f"{what}: {type(error).__name__}: {text}", advice="CALLTAPE_DEBUG=1 shows the traceback"
    ) from error


def expect_factory(name: str, what: str = "factory") -> None:
    """Raises BadParameter for a name that is not of the form ``package.module:factory``."""
    if not is_factory(name):
        raise typer.BadParameter(f"{name!r:.100} is not of the form package.module:{what}")
