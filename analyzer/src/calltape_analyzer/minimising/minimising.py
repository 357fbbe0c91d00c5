"""``minimise_tape``: from a tape that fails to the smallest one that fails for the same reason."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from calltape_analyzer.errors import InferenceError, TapeError, UsageError
from calltape_analyzer.exporting.free_memory import half_of_free
from calltape_analyzer.minimising.checks import Check, Named, check_of
from calltape_analyzer.minimising.fewer_parts import (
    drop_arguments,
    drop_calls,
    drop_outcomes,
    drop_parts,
)
from calltape_analyzer.minimising.judge import Judge
from calltape_analyzer.minimising.minimise_report import MinimiseReport, command_of, notes_of_memory
from calltape_analyzer.minimising.redacted_tape import (
    Choices,
    RedactedTape,
    Redacting,
    choices_of,
)
from calltape_analyzer.minimising.search import Search, TimeUpError
from calltape_analyzer.minimising.simpler_values import share_values, simplify_values
from calltape_analyzer.minimising.smaller_sizes import shrink_sizes
from calltape_analyzer.minimising.trial_log import TrialLog
from calltape_analyzer.opening import open_tape
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
    redact: bool | Mapping[str, Any] = False,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
) -> MinimiseReport:
    """Writes the smallest tape that fails for the same reason: fewest calls, fewest arguments,
    smallest sizes, fewest layers of a cache and elements of lists, simplest values.

    Each try runs in a process of its own, so that one which exits or crashes is an answer. One that
    hangs, or takes more time or memory than it may, is ended, and its tape is not taken. What was
    tried is kept in ``PATH.tried.jsonl``; a second run with the same tape and check takes its
    answers from there.

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
        max_seconds: how long all of it may take. When the time is up, the smallest tape so far is
            written.
        step_seconds: how long one try may take; by default three times as long as the first one,
            and at least ten seconds.
        max_memory: the bytes that one try may take; by default half of what is free.
        redact: whether the smallest tape is redacted at last: ``True``, or options of
            :func:`redact` (``{"keep": ["mode"]}``). If it does not fail
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
    deadline = None if max_seconds is None else began + max_seconds
    choices = choices_of(redact)
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
    with TemporaryFolder() as folder:
        work = _Work(tape, check, target, folder)
        with work.searching(max_memory, step_seconds, deadline, progress) as (search, log):
            try:
                notes = _begun(tape, search)
            except (InferenceError, UsageError):
                log.discard()  # it has nothing that a second run could use
                raise
            notes += (*_reduced(tape, search), *_confirmed(search))
            ended = work.ended(search, log, choices)
            copy_tape(ended.path, target, overwrite=overwrite, inputs=tape.paths)
            return MinimiseReport(
                path=os.fspath(path), reason=ended.reason, calls_before=before,
                calls=len(search.tape), bytes_read=tape.nbytes,
                bytes_written=target.stat().st_size, steps=search.tried,
                answered=search.answered, seconds=time.monotonic() - began,
                log=str(work.log_path),
                notes=(*notes, *ended.notes, *notes_of_memory(ended.reason)),
                shown_by=command_of(check, search.tape, os.fspath(path)),
                redacted=choices is not None, kept=tuple(ended.kept),
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


class _Work:
    """What all steps of one search share.

    Args:
        tape: that is made small.
        check: that it fails.
        target: the final name.
        folder: for everything else.

    Attributes:
        log_path: where it stands what was tried.
    """

    def __init__(self, tape: Tape, check: Check, target: Path, folder: Path) -> None:
        self._tape, self._check, self._folder = tape, check, folder
        self.log_path = target.with_name(f"{target.name}.tried.jsonl")

    @contextlib.contextmanager
    def searching(
        self, max_memory: int | None, step_seconds: float | None, deadline: float | None,
        progress: Callable[[str], None] | None,
    ) -> Iterator[tuple[Search, TrialLog]]:  # fmt: skip
        """A search, which ends with its process and its log."""
        check, nbytes = self._check, half_of_free() if max_memory is None else max_memory
        with Judge(check, nbytes, step_seconds) as judge:
            question = {**check.model_dump(), "code": judge.code, "memory": max_memory,
                        "step_seconds": step_seconds}  # fmt: skip
            log = TrialLog(self.log_path, question)
            search = Search(
                judge, log, self._folder, _manifest(self._tape, {}),
                classes=self._tape.class_index, step_seconds=step_seconds,
                progress=progress, has_reference=check.reference is not None, deadline=deadline,
            )  # fmt: skip
            try:
                yield search, log
            finally:
                search.close()
                log.close()

    def ended(self, search: Search, log: TrialLog, choices: Choices | None) -> RedactedTape:
        """The smallest tape, redacted if that was asked for."""
        path = self._written(search)
        if choices is None:
            return RedactedTape(path, search.reason, [], [])
        with open_tape(path, classes=search.classes) as tape:
            return Redacting(search, log, tape, choices, self._folder).result()

    def _written(self, search: Search) -> str:
        """The path of the smallest tape, with a manifest that says what was done."""
        options: dict[str, Any] = {f"fails_{self._check.kind}": self._check.name}
        if self._check.reference is not None:
            options["reference"] = self._check.reference
        if self._check.kind == "export" and self._check.to != "torch":
            options["to"] = self._check.to
        path = str(self._folder / "smallest.tape")
        with NewTape(path, _manifest(self._tape, options)) as writer:
            for call in search.tape.calls:
                writer.copy(call)
            unwanted = calls_in(self._tape.segments) - writer.calls
            writer.seal(coverage_for(self._tape.segments, writer.calls, unwanted))
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
        return ["the time was up: run it again with more, and it goes on from here"]
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
