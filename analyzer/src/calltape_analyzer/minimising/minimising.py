"""``minimise_tape``: from a tape that fails to the smallest one that fails for the same reason."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from calltape_analyzer.errors import InferenceError, TapeError, UsageError
from calltape_analyzer.exporting.session.free_memory import half_of_free
from calltape_analyzer.minimising.checks import Check, Named, check_of
from calltape_analyzer.minimising.fewer_parts import (
    drop_arguments,
    drop_calls,
    drop_outcomes,
    drop_parts,
)
from calltape_analyzer.minimising.judge import Judge
from calltape_analyzer.minimising.minimise_report import MinimiseReport, command_of, notes_of_memory
from calltape_analyzer.minimising.search import Search, TimeUpError
from calltape_analyzer.minimising.simpler_values import share_values, simplify_values
from calltape_analyzer.minimising.smaller_sizes import shrink_sizes
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted
from calltape_analyzer.writing.coverage import calls_in, coverage_for
from calltape_analyzer.writing.lineage import derived, numbering_of
from calltape_analyzer.writing.new_tape import NewTape
from calltape_analyzer.writing.output_file import compressor_of, copy_tape, refuse_inputs
from calltape_analyzer.writing.temporary import TemporaryFolder
from calltape_schema.records import Manifest

__all__ = ["minimise_tape"]

_MAX_ROUNDS = 3
"""With simple values, sizes may get smaller than before."""


def minimise_tape(
    tape: Tape,
    path: str | os.PathLike[str],
    *,
    fails: Named | None = None,
    fails_export: Named | None = None,
    fails_replay: Named | None = None,
    reference: Named | None = None,
    to: Literal["torch", "onnx"] = "torch",
    max_seconds: float | None = None,
    step_seconds: float | None = None,
    max_memory: int | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
) -> MinimiseReport:
    """Writes the smallest tape that fails for the same reason: fewest calls, fewest arguments,
    smallest sizes, fewest cache layers and list elements, simplest values.

    Each try runs in a process of its own, so one that exits or crashes counts as a failure. A try
    that hangs, or exceeds its limits on time or memory, is stopped, and its tape is discarded.

    Nobody knows what a call would have returned for arguments other than the recorded ones. So a
    call with changed arguments has no outputs on the new tape, unless a ``reference`` computes
    them. If a failure depends on the recorded outputs, arguments are changed only with a
    ``reference``.

    Args:
        tape: the tape, or a part of one. It is not changed.
        path: the path of the new file.
        fails: ``"package.module:predicate"``, or an importable function. It gets an open tape,
            which fails if the function returns something true (a text is the reason) or raises.
        fails_export: a function that makes a model; the tape fails if :func:`export` of it does.
        fails_replay: a function that makes a model; the tape fails if :func:`replay` with it does.
        reference: a function that makes a correct model, which computes the outputs of changed
            calls.
        to: the kind of export.
        max_seconds: how long all tries together may take. When the time is up, the smallest tape so
            far is written.
        step_seconds: how long one try may take; by default, three times as long as the first one,
            and at least ten seconds.
        max_memory: how many bytes one try may take; by default, half of the free memory.
        overwrite: whether to replace an existing file.
        progress: is called with a line of text after each try.

    Raises:
        InferenceError: the whole tape does not fail, or not every time.
        UsageError: the check cannot be imported or made, or the whole tape exceeds the limits of a
            try.
        TapeError: ``exists`` or ``io``.
    """
    check_tape(tape, "minimise_tape")
    began = time.monotonic()
    deadline = None if max_seconds is None else began + max_seconds
    check = check_of(tape, fails, fails_export, fails_replay, reference, to)
    _check_numbers(max_seconds, step_seconds, max_memory)
    target = Path(path)
    tape.calls.scan()  # a survey has none
    before = len(tape)
    if not before:
        raise UsageError(
            "the tape has no calls",
            advice="give one that has the call that fails; `calltape info` says what is wrong",
        )
    _check_target(target, tape, overwrite=overwrite)
    nbytes = half_of_free() if max_memory is None else max_memory
    with TemporaryFolder() as folder, Judge(check, nbytes, step_seconds) as judge:
        search = Search(
            judge, folder, _manifest(tape, {}), classes=tape.class_index,
            step_seconds=step_seconds, deadline=deadline, progress=progress,
            has_reference=check.reference is not None,
        )  # fmt: skip
        with contextlib.closing(search):
            notes = [*_begun(tape, search), *_reduced(tape, search), *_confirmed(search)]
            smallest = _written(tape, check, search, folder)
            copy_tape(smallest, target, overwrite=overwrite, inputs=tape.paths)
            return MinimiseReport(
                path=os.fspath(path), reason=search.reason, calls_before=before,
                calls=len(search.tape), bytes_read=tape.nbytes,
                bytes_written=target.stat().st_size, steps=search.tried,
                seconds=time.monotonic() - began,
                notes=(*notes, *notes_of_memory(search.reason)),
                shown_by=command_of(check, search.tape, os.fspath(path)),
            )  # fmt: skip


def _check_target(target: Path, tape: Tape, *, overwrite: bool) -> None:
    """Raises before hours of work if nothing can be written there."""
    compressor_of(str(target))
    if os.path.lexists(target) and not overwrite:
        raise TapeError("exists", "it is there already", path=str(target))
    refuse_inputs(str(target), tape.paths)
    if target.is_dir() or not target.parent.is_dir():
        what = "it is a directory" if target.is_dir() else "no such directory"
        raise TapeError("io", f"cannot write it: {what}", path=str(target))


def _written(tape: Tape, check: Check, search: Search, folder: Path) -> str:
    """The path of the smallest tape, with a manifest that says what was done."""
    options: dict[str, Any] = {f"fails_{check.kind}": check.name}
    if check.reference is not None:
        options["reference"] = check.reference
    if check.kind == "export" and check.to != "torch":
        options["to"] = check.to
    path = str(folder / "smallest.tape")
    with NewTape(path, _manifest(tape, options)) as writer:
        for call in search.tape.calls:
            writer.copy(call)
        unwanted = calls_in(tape.segments) - writer.calls
        writer.seal(coverage_for(tape.segments, writer.calls, unwanted))
    return path


def _begun(tape: Tape, search: Search) -> list[str]:
    """Begins with the sound calls of a tape, and tells what it lacks."""
    sound = list(_sound(tape))
    lost = len(tape) - len(sound)
    notes = [f"{counted(lost, 'call')} could not be read: left out"] if lost else []
    if not sound:
        raise UsageError("no call of the tape can be read", advice="run `calltape info`")
    try:
        search.begin((tape.calls[place] for place in sound), numbering_of(tape.segments))
    except InferenceError as error:
        if not lost:
            raise
        what = f"{error.reason}; but {notes[0]}"
        raise InferenceError(what, advice="run `calltape info` on the tape") from None
    return notes


def _sound(tape: Tape) -> Any:
    for call in tape.calls:
        try:
            call.check()
        except TapeError:
            continue
        yield call.index


def _reduced(tape: Tape, search: Search) -> list[str]:
    """Makes the tape smaller in every way, cheapest first."""
    try:
        drop_calls(search)
        drop_outcomes(search)
        if not search.may_change_arguments:
            return [
                "the failure shows only with the recorded outcome, so that arguments, sizes and "
                "values stay as they are; a reference (--reference) gives outcomes of others"
            ]
        drop_arguments(search)
        before = ""
        for _ in range(_MAX_ROUNDS):
            now = search.said()
            if now == before:
                break
            before = now
            shrink_sizes(search, tape)
            drop_parts(search)
            simplify_values(search)
        share_values(search)
    except TimeUpError:
        return ["the time was up: minimise the new tape, to go on from here"]
    return []


def _confirmed(search: Search) -> list[str]:
    doubted = search.confirm()
    if not doubted:
        return []
    return [f"{counted(doubted, 'smaller tape')} failed at first and not again: it is not steady"]


def _manifest(tape: Tape, options: dict[str, Any]) -> Manifest:
    manifest = derived(tape.segments, "minimise", options)
    # Calls have other sizes and values now: what it says of its segment is not so any more.
    return manifest.model_copy(update={"segment": None})


def _check_numbers(*numbers: float | None) -> None:
    for number in numbers:
        if number is not None and not number > 0:
            raise UsageError(f"{number!r} is not a limit", advice="pass a number above 0, or None")
