"""``minimise_tape``: from a tape that fails to the smallest one that fails for the same reason."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from calltape_analyzer.editing.numbering import numbering_of
from calltape_analyzer.errors import InferenceError, TapeError, UsageError
from calltape_analyzer.exporting.free_memory import half_of_free
from calltape_analyzer.minimising.asked_check import Named, check_of
from calltape_analyzer.minimising.checks import Check
from calltape_analyzer.minimising.fewer_arguments import drop_arguments, drop_parts
from calltape_analyzer.minimising.fewer_calls import drop_calls, drop_outcomes
from calltape_analyzer.minimising.judge import Judge
from calltape_analyzer.minimising.minimise_report import MinimiseReport
from calltape_analyzer.minimising.redacted_tape import (
    Choices,
    RedactedTape,
    Redacting,
    choices_of,
)
from calltape_analyzer.minimising.search import Search, TimeUpError
from calltape_analyzer.minimising.shared_values import share_values
from calltape_analyzer.minimising.simpler_values import simplify_values
from calltape_analyzer.minimising.smaller_sizes import shrink_sizes
from calltape_analyzer.minimising.trial_log import TrialLog
from calltape_analyzer.opening import open_tape
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted
from calltape_analyzer.writing.lineage import derived
from calltape_analyzer.writing.output_file import OutputFile
from calltape_analyzer.writing.tape_writer import TapeWriter
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
    train: bool = False,
    max_seconds: float | None = None,
    step_seconds: float | None = None,
    max_memory: int | None = None,
    redact: bool | Mapping[str, Any] = False,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
) -> MinimiseReport:
    """Writes the smallest tape that fails for the same reason: fewest calls, fewest arguments,
    smallest sizes, fewest layers of a cache and elements of lists, simplest values.

    Each try runs in a process of its own, so that one which exits, crashes, hangs or takes all
    memory is an answer. What was tried is kept in ``PATH.tried.jsonl``; a second run with the same
    tape and check takes its answers from there.

    Nobody knows what a call would have done with other arguments than the recorded ones: a call
    whose arguments are changed has no outputs on the new tape, unless a ``reference`` gives them.
    If a failure shows only with the recorded outputs, the arguments stay as they are without one.

    Args:
        tape: the tape, or a part of one. It stays as it is.
        path: of the new file.
        fails: ``"package.module:predicate"``, or a function that can be imported so. It gets an
            open tape, which fails if it returns something true (a text is the reason) or raises.
        fails_export: what makes a model, whose export (:func:`export`) fails.
        fails_replay: what makes a model, whose :func:`replay` fails.
        reference: what makes a model that is right: it gives the outputs of changed calls.
        to: the kind of export.
        train: leaves models in the mode in which they are made; else they are put in evaluation
            mode.
        max_seconds: how long all of it may take. When the time is up, the smallest tape so far is
            written.
        step_seconds: how long one try may take; by default three times as long as the first one,
            and at least ten seconds.
        max_memory: the bytes that one try may take; by default half of what is free.
        redact: whether the smallest tape is redacted at last: ``True``, or options of
            :func:`redact` (``{"keep": ["mode"], "permute": "input_ids"}``). If it does not fail
            without some values, these stay, as few as possible, and the report names them; values
            that an option names are treated as it says. The result was tried.
        overwrite: whether a file that is there already is replaced.
        progress: is called with a line of text after each try.

    Raises:
        InferenceError: nothing fails with the whole tape, or not each time; or no redacted tape
            fails for the same reason.
        UsageError: the check cannot be imported or made, or the whole tape takes more than a try
            may.
        TapeError: ``exists`` or ``io``.
    """
    check_tape(tape, "minimise_tape")
    began = time.monotonic()
    choices = choices_of(redact)
    check = check_of(tape, fails, fails_export, fails_replay, reference, to, train)
    _check_numbers(max_seconds, step_seconds, max_memory)
    target = Path(path)
    if not len(tape):
        raise UsageError("the tape has no calls")
    if os.path.lexists(target) and not overwrite:
        raise TapeError("exists", "it is there already", path=str(target))
    if any(os.path.exists(target) and os.path.samefile(target, one) for one in tape.paths):
        raise UsageError(
            "it is one of the tapes that are read, and none is changed in place",
            path=str(target),
            advice="name another file for the result",
        )
    if target.is_dir() or not target.parent.is_dir():
        what = "it is a directory" if target.is_dir() else "there is no such directory"
        raise TapeError("io", f"cannot write it: {what}", path=str(target))
    nbytes = half_of_free() if max_memory is None else max_memory
    manifest = _manifest(tape, {})
    log_path = target.with_name(f"{target.name}.tried.jsonl")
    with (
        tempfile.TemporaryDirectory(prefix="calltape-") as folder,
        Judge(check, nbytes, step_seconds) as judge,
    ):
        question = {**check.model_dump(), "code": judge.code, "memory": max_memory,
                    "step_seconds": step_seconds}  # fmt: skip
        log = TrialLog(log_path, question)
        search = Search(
            judge, log, Path(folder), manifest, classes=tape.class_index.by_name,
            step_seconds=step_seconds, progress=progress, has_reference=reference is not None,
            deadline=None if max_seconds is None else began + max_seconds,
        )  # fmt: skip
        try:
            begun = _Begun(tape, search)
            notes = [*begun.notes, *_reduced(tape, search), *_confirmed(search)]
            result = _written(tape, search, check, Path(folder))
            ended = RedactedTape(result, search.reason, [], [])
            if choices is not None:
                ended = _redacted(search, log, result, choices, Path(folder))
            _copy(ended.path, target, overwrite, tape.paths)
            return MinimiseReport(
                path=os.fspath(path), reason=ended.reason, calls_before=begun.calls,
                calls=len(search.tape), bytes_read=tape.nbytes,
                bytes_written=target.stat().st_size, steps=search.tried,
                answered=search.answered, seconds=time.monotonic() - began,
                log=str(log_path), notes=(*notes, *ended.notes),
                redacted=choices is not None, kept=tuple(ended.kept),
            )  # fmt: skip
        finally:
            search.close()
            log.close()


class _Begun:
    """The tape that all others are compared with, and what it lacks."""

    def __init__(self, tape: Tape, search: Search) -> None:
        sound = list(_sound(tape))
        self.calls = len(tape)
        lost = self.calls - len(sound)
        self.notes = [f"{counted(lost, 'call')} could not be read: left out"] if lost else []
        if not sound:
            raise UsageError("no call of the tape can be read", advice="run `calltape doctor`")
        try:
            search.begin((tape.calls[place] for place in sound), numbering_of(tape.segments))
        except InferenceError as error:
            if not lost:
                raise
            what = f"{error.reason}; but {self.notes[0]}"
            raise InferenceError(what, advice="run `calltape doctor` on the tape") from None


def _sound(tape: Tape) -> Any:
    for place, call in enumerate(tape.calls):
        try:
            call.check()
        except TapeError:
            continue
        yield place


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
        return ["the time was up: run it again with more, and it goes on from here"]
    return []


def _confirmed(search: Search) -> list[str]:
    doubted = search.confirm()
    if not doubted:
        return []
    return [f"{counted(doubted, 'smaller tape')} failed at first and not again: it is not steady"]


def _written(tape: Tape, search: Search, check: Check, folder: Path) -> str:
    """The path of the smallest tape, with a manifest that says what was done."""
    options: dict[str, Any] = {f"fails_{check.kind}": check.name}
    if check.reference is not None:
        options["reference"] = check.reference
    path = str(folder / "smallest.tape")
    with TapeWriter(path, _manifest(tape, options)) as writer:
        for call in search.tape.calls:
            writer.copy(call)
        writer.seal()
    return path


def _redacted(
    search: Search, log: TrialLog, path: str, choices: Choices, folder: Path
) -> RedactedTape:
    with open_tape(path, classes=search.classes) as tape:
        return Redacting(search, log, tape, choices, folder).result()


def _copy(source: str, target: Path, overwrite: bool, inputs: Sequence[str]) -> None:
    """Gives a tape of another folder its final name, when all of it is there."""
    out = OutputFile(target, overwrite=overwrite, inputs=inputs)
    try:
        with open(source, "rb") as file:
            while part := file.read(2**20):
                out.append([part])
        out.finish()
    except BaseException:
        out.discard()
        raise


def _manifest(tape: Tape, options: dict[str, Any]) -> Manifest:
    numbering = numbering_of(tape.segments)
    manifest = derived(
        tape.segments, "minimise", options, tape=numbering.tape, firsts=numbering.firsts
    )
    # Calls have other sizes and values now: what it says of its segment is not so any more.
    return manifest.model_copy(update={"segment": None})


def _check_numbers(*numbers: float | None) -> None:
    for number in numbers:
        if number is not None and not number > 0:
            raise UsageError(f"{number!r} is no limit", advice="pass a number above 0, or None")
