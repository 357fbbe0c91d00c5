"""Which tape a command reads: files, and the calls, variants and arguments of them that are meant.

Takes the words and options that all reading commands share; returns an open tape. Afterwards its
damage is told, and decides the exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from calltape_analyzer.cli.output import DAMAGED, complain, wrong_words
from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import reading
from calltape_analyzer.opening import open_tape
from calltape_analyzer.reading.files import files_of
from calltape_analyzer.reading.selection import UnknownTargetError, ranges_of
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import some_of

if TYPE_CHECKING:
    from calltape_analyzer.variant import Variant

__all__ = ["Part", "opened", "variants_meant"]

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


def variants_meant(tape: Tape, names: Sequence[str] | None) -> list[Variant]:
    """The variants of these names or positions; all without names. For answers that need no single
    call: a survey gives them too, and of a sealed tape no record is read.

    Raises:
        WrongWordError: there is no such variant.
    """
    from calltape_analyzer.variant import chosen_variants

    found = tape.variants()
    if not names:
        return found
    with wrong_words():
        return chosen_variants(found, list(names))[1]


@contextmanager
def opened(
    paths: Sequence[str],
    part: Part = Part(),
    *,
    runs: bool = False,
    scan: bool | None = None,
    verbose: bool = False,
    tells: bool = True,
    effort: int = 1,
    classes: Sequence[type] = (),
) -> Iterator[Tape]:
    """The tape of a command's words and options; afterwards its damage is told, and decides the
    exit code, unless the command came to a verdict of its own.

    Args:
        paths: files, directories and patterns.
        part: what of it is meant.
        runs: whether the command runs a model, whose time and memory are its own: only opening the
            tape is bounded then.
        scan: whether the files are scanned in any case. None for a command that has no such
            option.
        verbose: whether an answer from the ends of sealed tapes says so.
        tells: whether damage is told here. Not by a command whose report tells what came of it.
        effort: how many times as long it may take as to read the tape.
        classes: that objects on the tape may be rebuilt from.
    """
    given = paths if len(paths) > 1 else paths[0]
    with ExitStack() as stack:
        with ExitStack() as opening:
            (opening if runs else stack).enter_context(reading(files_of(given), effort))
            how: dict[str, Any] = {"target": part.target, "scan": bool(scan)}
            opening.enter_context(wrong_words(UnknownTargetError))
            tape = stack.enter_context(open_tape(given, classes=classes, **how))
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
        if scan is False and tape.calls.are_single:
            read = tape.records_read
            every = sum(len(part) + part.damaged for part in tape.segments)
            if verbose if tape.source == "end" else read < every:
                complain(_BELIEVED[tape.source].format(f"{read:,}", f"{every:,}"))
        for error in tape.damage if tells else ():
            complain(str(error))
        if verdict is not None:
            raise verdict
        if tells and tape.damage:
            raise typer.Exit(DAMAGED)
