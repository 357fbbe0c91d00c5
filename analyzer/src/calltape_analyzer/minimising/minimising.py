"""``minimise``: the smallest tape that fails for the same reason."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calltape_analyzer.errors import InferenceError, TapeError, UsageError
from calltape_analyzer.minimising.reductions import (
    drop_arguments,
    drop_calls,
    drop_outcomes,
    drop_parts,
    shrink_sizes,
    simplify_values,
)
from calltape_analyzer.minimising.search import (
    Check,
    CommandCheck,
    FunctionCheck,
    Search,
    TimeUpError,
)
from calltape_analyzer.plain_data import PlainData, Text, Texts
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, printable
from calltape_analyzer.writing.lineage import (
    count_intact,
    coverage_for,
    derived_manifest,
    numbering_of,
)
from calltape_analyzer.writing.new_tape import NewTape
from calltape_analyzer.writing.output_file import (
    TemporaryFolder,
    compressor_of,
    copy_tape,
    reject_inputs,
)
from calltape_schema.records import Manifest

__all__ = ["MinimiseReport", "minimise"]

_MAX_ROUNDS = 3
"""Sizes may shrink further once values are simple."""


class MinimiseReport(PlainData):
    """The result of shrinking a tape. ``str()`` of it is text for people.

    Attributes:
        path: the new file.
        reason: why both tapes fail. Numbers in it are replaced by ``#``.
        calls_before, calls: how many calls the tapes have.
        bytes_read, bytes_written: sizes of the files.
        steps: how many tapes were tried.
        seconds: how long it took.
        command: runs the check on the new tape; None if the check is a function.
        notes: other things that you should know.
    """

    path: Text
    reason: Text
    calls_before: int
    calls: int
    bytes_read: int
    bytes_written: int
    steps: int
    seconds: float
    command: Text | None = None
    notes: Texts = ()

    def __str__(self) -> str:
        size = f"{self.bytes_written:,} of {self.bytes_read:,} bytes"
        calls = f"{self.calls} of {counted(self.calls_before, 'call')}"
        parts = [
            f"{printable(self.path)}: {calls}, {size}",
            f"fails: {printable(self.reason)}",
            f"{counted(self.steps, 'step')}, {self.seconds:.1f} s",
        ]
        if self.command is not None:
            parts.append(f"see it fail: {printable(self.command)}")
        parts += [f"note: {printable(text)}" for text in self.notes]
        return "\n".join(parts)


def minimise(
    tape: Tape,
    path: str | os.PathLike[str],
    check: str | Callable[[Tape], Any],
    *,
    max_seconds: float | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
) -> MinimiseReport:
    """Writes the smallest tape that fails for the same reason: fewest calls, fewest arguments,
    smallest sizes, fewest cache layers and list elements, simplest values.

    Each try runs in another process, so a crash counts as a failure. A try is stopped, and its tape
    discarded, if it takes more than ten seconds and three times as long as the first try.

    Nobody knows what a call would have returned for arguments other than the recorded ones, so a
    call with changed arguments has no outputs on the new tape. If a failure depends on the recorded
    outputs, arguments are not changed; compare with a correct model in the check instead.

    Args:
        tape: the tape, or a part of one. It does not change.
        path: the path of the new file.
        check: a command for a shell, with ``{}`` for the path of a tape: the tape fails if the exit
            code is not 0, nor 125 to 128 (which mean that it cannot be tested). Or a function of
            an open tape: the tape fails if the function returns something true (its text is
            the reason) or raises. A function is faster, because it runs in forks of this process.
        max_seconds: how long all tries together may take. When the time is up, the smallest tape so
            far is written.
        overwrite: whether to replace an existing file.
        progress: is called with a line of text after each try.

    Raises:
        InferenceError: the whole tape does not fail, or not every time.
        UsageError: the command cannot be run, takes more than an hour, or fails without any call.
        TapeError: ``exists`` or ``io``.
    """
    check_tape(tape, "minimise")
    began = time.monotonic()
    if max_seconds is not None and not max_seconds > 0:
        raise UsageError(f"{max_seconds!r} is not a limit", advice="pass a number above 0, or None")
    target = Path(path)
    tape.calls.scan()  # rejects a survey
    calls_before = len(tape)
    if not calls_before:
        raise UsageError(
            "the tape has no calls",
            advice="give one that has the call that fails; `calltape info` says what is wrong",
        )
    _check_target(target, tape, overwrite=overwrite)
    to_run: Check
    if isinstance(check, str):
        to_run = CommandCheck(check)
    elif callable(check):
        to_run = FunctionCheck(check, tape.class_index)
    else:
        raise UsageError(f"{check!r:.100} is no check", advice="pass a command or a function")
    with TemporaryFolder() as folder:
        search = Search(
            to_run, folder, _manifest(tape, {}), classes=tape.class_index, progress=progress,
            deadline=None if max_seconds is None else began + max_seconds,
        )  # fmt: skip
        with contextlib.closing(search):
            notes = [*_begin(tape, search), *_reduce(tape, search)]
            if passed := search.confirm():
                tapes = counted(passed, "smaller tape")
                notes.append(f"{tapes} failed at first and not again: it is not steady")
            smallest = str(folder / "smallest.tape")
            with NewTape(smallest, _manifest(tape, {"check": to_run.name})) as writer:
                for call in search.tape.calls:
                    writer.copy(call)
                left_out = count_intact(tape.segments) - writer.calls
                writer.seal(coverage_for(tape.segments, writer.calls, left_out))
            copy_tape(smallest, target, overwrite=overwrite, inputs=tape.paths)
            command = None
            if isinstance(to_run, CommandCheck):
                command = to_run.command(os.fspath(path))
            return MinimiseReport(
                path=os.fspath(path), reason=search.reason, calls_before=calls_before,
                calls=len(search.tape), bytes_read=tape.nbytes,
                bytes_written=target.stat().st_size, steps=search.tried,
                seconds=time.monotonic() - began, notes=tuple(notes),
                command=command,
            )  # fmt: skip


def _check_target(target: Path, tape: Tape, *, overwrite: bool) -> None:
    """Raises early, before hours of work, if the new tape cannot be written."""
    compressor_of(str(target))
    if os.path.lexists(target) and not overwrite:
        raise TapeError("exists", "it is there already", path=str(target))
    reject_inputs(str(target), tape.paths)
    if target.is_dir() or not target.parent.is_dir():
        what = "it is a directory" if target.is_dir() else "no such directory"
        raise TapeError("io", f"cannot write it: {what}", path=str(target))


def _begin(tape: Tape, search: Search) -> list[str]:
    """Begins the search with the intact calls of a tape. Returns notes about the others."""
    intact: list[Call] = []
    for call in tape.calls:
        with contextlib.suppress(TapeError):
            call.check()
            intact.append(call)
    lost = len(tape) - len(intact)
    notes = [f"{counted(lost, 'call')} could not be read: left out"] if lost else []
    if not intact:
        raise UsageError("no call of the tape can be read", advice="run `calltape info`")
    try:
        search.begin(intact, numbering_of(tape.segments))
    except InferenceError as error:
        if not lost:
            raise
        what = f"{error.reason}; but {notes[0]}"
        raise InferenceError(what, advice="run `calltape info` on the tape") from None
    return notes


def _reduce(tape: Tape, search: Search) -> list[str]:
    """Applies all reductions, the cheapest first. Returns notes."""
    try:
        drop_calls(search)
        if not drop_outcomes(search):
            return [
                "the failure shows only with the recorded outcome, so that arguments, sizes and "
                "values stay as they are; compare with a correct model in the check to change them"
            ]
        drop_arguments(search)
        last_size = ""
        for _ in range(_MAX_ROUNDS):
            size = str(search)
            if size == last_size:
                break
            last_size = size
            shrink_sizes(search, tape)
            drop_parts(search)
            simplify_values(search)
    except TimeUpError:
        return ["the time was up: minimise the new tape, to go on from here"]
    return []


def _manifest(tape: Tape, options: dict[str, Any]) -> Manifest:
    manifest = derived_manifest(tape.segments, "minimise", options)
    # The new tape is no segment of the recording: its calls have other sizes and values.
    return manifest.model_copy(update={"segment": None})
