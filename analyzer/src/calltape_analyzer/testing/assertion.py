"""``assert_replays``: an assertion that a model reproduces a tape, and updates of its outputs.

With ``--calltape-update``, a call with a new outcome is first written to a small tape of its own,
in a folder that all processes of a test run share. After the tests, one process rewrites the tapes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.comparison.judging import Expect
from calltape_analyzer.comparison.reports import Report, ReportRow
from calltape_analyzer.errors import TapeError, UsageError
from calltape_analyzer.foreign_errors import text_of
from calltape_analyzer.opening import open_tape
from calltape_analyzer.programs.untrusted_files import check_trusted
from calltape_analyzer.pytree.classes import class_name
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.replaying.replaying import replay
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, listed, printable
from calltape_analyzer.writing.lineage import derived_manifest, unkept_of
from calltape_analyzer.writing.new_tape import NewTape
from calltape_analyzer.writing.output_file import TemporaryFolder
from calltape_analyzer.writing.synthetic import BuiltCall, build_tree
from calltape_schema.records import ModelError, Tree

__all__ = ["NewOutcomes", "Updates", "assert_replays", "rerun_with", "set_updates", "updates"]


def assert_replays(
    tape: Tape | str | os.PathLike[str],
    model: Any,
    *,
    tolerances: Tolerances | None = None,
    expect: Expect = "recorded",
    slower_than: float | str | None = None,
    trusted: bool = False,
) -> None:
    """Fails if a model does not reproduce a tape. See :func:`calltape_analyzer.replay`.

    With ``pytest --calltape-update``, different outputs are no failure: they are written to the
    tape after all tests.

    Args:
        tape: a tape, a part of one, or a path.
        model: the model, a program or a file, as for :func:`~calltape_analyzer.replay`.
        tolerances: as for :func:`~calltape_analyzer.replay`.
        expect: as for :func:`~calltape_analyzer.replay`.
        slower_than: as for :func:`~calltape_analyzer.replay`.
        trusted: as for :func:`~calltape_analyzer.replay`.

    Raises:
        AssertionError: names the call, the leaf, the first elements that differ, and the command
            that reproduces the failure; or says why the tape cannot be replayed.
    """
    __tracebackhide__ = True
    check_trusted(trusted)
    if not isinstance(tape, Tape):
        try:
            opened = open_tape(tape)
        except TapeError as error:
            raise AssertionError(f"the tape cannot be read: {error}") from None
        with opened:
            assert_replays(opened, model, tolerances=tolerances, expect=expect,
                           slower_than=slower_than, trusted=trusted)  # fmt: skip
        return
    current = updates()
    run = replay if current is None else current.replay
    try:
        report = run(
            tape, model, tolerances=tolerances, expect=expect, slower_than=slower_than,
            trusted=trusted,
        )  # fmt: skip
    except TapeError as error:
        raise AssertionError(f"the tape cannot be replayed: {error}") from None
    if not report.ok:
        raise AssertionError(failure_text(tape, report))


_MAX_CALLS = 3
_MAX_LINE = 500

_command: ContextVar[str | None] = ContextVar("command", default=None)


def failure_text(tape: Tape, report: Report) -> str:
    """The message for a report that is not ok, in several lines."""
    lines: list[str] = []
    for row in report.failing[:_MAX_CALLS]:
        lines += difference_lines(call_of(tape, row), row)
    more = len(report.failing) - _MAX_CALLS
    lines += (
        [f"{counted(more, 'more call')} {'fails' if more == 1 else 'fail'}"] if more > 0 else []
    )
    lines += [*map(str, report.notes), report.summary]
    if report.failing:
        call = call_of(tape, report.failing[0])
        path = shlex.quote(relative_path(call))
        command, current = _command.get(), os.environ.get("PYTEST_CURRENT_TEST")
        if command is None and current is not None:
            command = f"python -m pytest {shlex.quote(current.rpartition(' (')[0])}"
        elif command is None:
            model = "--model PACKAGE.MODULE:FACTORY"
            command = f"calltape replay {path} --calls {call.number} {model}"
        lines += [f"to see it again: {command}"]
        lines += [f"to see the call: calltape show {path} {call.number}"]
    return "\n".join(printable(line[:_MAX_LINE]) for line in lines)


def difference_lines(call: Call, row: ReportRow) -> list[str]:
    """How a call differs, in the lines of a message."""
    lines = [f"call {row.address or row.call} of {relative_path(call)}: {row.error}"]
    for leaf in row.differences:
        if leaf.elements:
            cells = [
                (
                    f"{leaf.path}[{', '.join(map(str, element.index))}]",
                    element.recorded,
                    element.got,
                )
                for element in leaf.elements
            ]
            first, second, third = (max(map(len, column)) for column in zip(*cells, strict=True))
            lines += [
                f"  {place:{first}}  recorded {recorded:>{second}}  got {got:>{third}}"
                for place, recorded, got in cells
            ]
        elif leaf != row.error:
            lines.append(f"  {leaf}")
    return lines


def call_of(tape: Tape, row: ReportRow) -> Call:
    return tape.find(row.address or row.call)


def relative_path(call: Call) -> str:
    """The path of a call's file, relative to the current directory if it is below."""
    relative = os.path.relpath(call.path)
    return call.path if relative.startswith("..") else relative


@contextmanager
def rerun_with(command: str) -> Iterator[None]:
    """Within the block, failures name this command to run the test again."""
    token = _command.set(command)
    try:
        yield
    finally:
        _command.reset(token)


_VERB = "update"
_SOURCE = "source.txt"
_FULLY_COMPARED = ("tape", "exception")
"""What rows of fully compared calls have as ``against``. Other calls keep their outcomes."""


class Updates:
    """The new outcomes of one test run.

    Args:
        folder: the folder with them, if another process created it.

    Attributes:
        folder: the folder with them.
        lines: after :meth:`finish`, what changed, for people.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._temporary: TemporaryFolder | None = None
        if folder is None:
            self._temporary = TemporaryFolder()
            folder = str(self._temporary.path)
        self.folder = folder
        self.lines: list[str] = []

    def close(self) -> None:
        """Removes the folder, if this object created it."""
        if self._temporary is not None:
            self._temporary.close()

    def replay(self, tape: Tape, model: Any, **options: Any) -> Report:
        """Like :func:`~calltape_analyzer.replay`, but a call with a new outcome is stored, and does
        not fail.

        Raises:
            TapeError: as for :func:`~calltape_analyzer.replay`; ``usage`` if another test of this
                run has a different outcome for the same call.
        """
        outcomes = NewOutcomes()
        report = replay(tape, model, outcomes=outcomes.add, **options)
        updated: list[ReportRow] = []
        for row in () if report.is_unsteady else report.failing:
            call = call_of(tape, row)
            new = outcomes.of(call, row)
            if new is not None:
                self._store(call, row, new)
                updated.append(row)
        if not updated:
            return report
        unchanged = [row for row in report.rows if row not in updated]
        passing = [row.model_copy(update={"error": None, "against": "success"}) for row in updated]
        return report.model_copy(update={"rows": [*unchanged, *passing]})

    def _store(self, call: Call, row: ReportRow, new: BuiltCall) -> None:
        source = os.path.realpath(call.path)
        name = hashlib.sha256(os.fsencode(source)).hexdigest()[:32]
        folder = Path(self.folder, name)
        folder.mkdir(exist_ok=True)
        (folder / _SOURCE).write_bytes(os.fsencode(source))
        path = folder / f"{call.number:020}.tape"
        try:
            _write_call(path, call, new)
        except TapeError as error:
            if error.kind != "exists":
                raise
        else:
            text = "\n".join(difference_lines(call, row))
            path.with_suffix(".txt").write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        # Another test has stored an outcome of this call.
        second = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            _write_call(second, call, new, overwrite=True)
            is_same = second.read_bytes() == path.read_bytes()
        finally:
            second.unlink(missing_ok=True)
        if not is_same:
            raise UsageError(
                f"two tests give other outputs for call {call.number} of {relative_path(call)}",
                advice="run one of them with --calltape-update",
            )

    def finish(self, *, write: bool) -> None:
        """Rewrites the tapes, unless ``write`` is false, and lists what changed in
        :attr:`lines`."""
        for folder in sorted(path for path in Path(self.folder).iterdir() if path.is_dir()):
            source = os.fsdecode((folder / _SOURCE).read_bytes())
            for difference in sorted(folder.glob("*.txt")):
                if difference.name != _SOURCE:
                    text = difference.read_text(encoding="utf-8").split("\n")
                    self.lines += map(printable, text)
            changed = sorted(folder.glob("*.tape"))
            if not changed:
                continue
            path, calls = os.path.relpath(source), counted(len(changed), "call")
            if not write:
                self.lines.append(f"{path}: {calls} would get new outputs; nothing was written")
                continue
            try:
                _rewrite(source, changed)
            except (TapeError, OSError) as error:
                self.lines.append(f"{path}: NOT written: {error}")
            else:
                self.lines.append(f"{path}: {calls} got new outputs, and the tape was rewritten")
        if not self.lines:
            self.lines.append("every call gives what is on its tape: nothing was written")


_current: list[Updates] = []


def updates() -> Updates | None:
    """The updates of this test run; None without ``--calltape-update``."""
    return _current[-1] if _current else None


def set_updates(current: Updates | None) -> None:
    """Sets the updates of this test run, for this process."""
    _current[:] = [] if current is None else [current]


class NewOutcomes:
    """The outcomes of replayed calls, as trees and copies, because a later call may change the
    same tensors."""

    def __init__(self) -> None:
        self._outcomes: dict[CallRef, tuple[Tree | ModelError, dict[str, Any]]] = {}

    def add(self, call: Call, result: Any, error: BaseException | None) -> None:
        """Adds what a call returned or raised."""
        values: dict[str, Any] = {}
        try:
            for number, leaf in enumerate(call.record.inputs.facts()):
                if leaf.key is None:
                    return  # the outcome of synthetic arguments is not that of the call
                values[leaf.key] = call.tensor("inputs", number)
        except TapeError:
            return
        if any(isinstance(value, Placeholder) for value in values.values()):
            return
        if error is not None:
            if (
                call.record.error is not None
            ):  # otherwise the exception is a failure, not an outcome
                raised = ModelError(type=class_name(type(error)), message=text_of(error))
                self._outcomes[call.ref] = raised, values
            return
        inputs = set(values)
        tree = build_tree(result, "outputs", values)
        for key in values.keys() - inputs:
            values[key] = values[key].detach().clone()
        self._outcomes[call.ref] = tree, values

    def of(self, call: Call, row: ReportRow) -> BuiltCall | None:
        """The call with its new outcome; None if it keeps the recorded one, because it was not
        fully compared, or raised although it must return, or has values that cannot be stored."""
        new = self._outcomes.get(call.ref)
        if new is None or row.against not in _FULLY_COMPARED:
            return None
        outcome, values = new
        outputs = outcome if isinstance(outcome, Tree) else None
        error = outcome if isinstance(outcome, ModelError) else None
        changes = {"outputs": outputs, "error": error, "outputs_missing": None, "blob": None}
        return BuiltCall(call.record.model_copy(update=changes), values)


def _write_call(path: Path, call: Call, new: BuiltCall, *, overwrite: bool = False) -> None:
    with NewTape(path, call.manifest, overwrite=overwrite) as writer:
        writer.write(new.record, new.values)
        writer.seal()


def _rewrite(source: str, changed: Sequence[Path]) -> None:
    """Replaces a tape by one with new calls.

    Raises:
        TapeError: the old tape is corrupted, is one of several files, or cannot be replaced.
    """
    with open_tape(source) as old, open_tape([str(path) for path in changed]) as new:
        (segment,) = old.segments
        if old.verify() or segment.end is None or segment.end.continues:
            raise UsageError(
                "it is corrupted, not sealed, or one of several files of a recording",
                path=source,
                advice="record it again",
            )
        updated = {call.number: call for call in new.calls}
        numbers = listed([str(number) for number in sorted(updated)], 20)
        manifest = derived_manifest(old.segments, _VERB, {"calls": numbers})
        steps = manifest.history or ()
        if len(steps) > 1 and steps[-2].verb == _VERB:
            # A fixture may be updated any number of times, so consecutive updates are one step.
            manifest = manifest.model_copy(update={"history": (*steps[:-2], steps[-1])})
        mode = os.stat(source).st_mode & 0o777
        with NewTape(source, manifest, overwrite=True, mode=mode) as writer:
            for call in old.calls:
                writer.copy(updated.pop(call.number, call))
            if updated:
                raise UsageError("the tape changed while the tests ran", path=source)
            end = segment.end
            writer.seal(
                end.coverage,
                unkept=unkept_of([segment]),
                dumps=end.dumps,
                closed_ns=end.closed_ns,
            )
