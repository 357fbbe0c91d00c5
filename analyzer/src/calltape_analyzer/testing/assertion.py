"""``assert_replays``: a test that a model does what is on a tape; what it says if not; new outputs.

With ``--calltape-update`` new outputs are kept while tests run, and written when all are done. Each
call with a new outcome goes to a small tape of its own in a folder that all processes of a test run
share. At the end one process writes each tape anew, beside the old one, and puts it in its place.
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
from calltape_analyzer.pytree.classes import name_of
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.replaying.replaying import replay, replay_with
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, listed, printable
from calltape_analyzer.writing.built_calls import BuiltCall, build_tree
from calltape_analyzer.writing.lineage import derived, unkept_of
from calltape_analyzer.writing.new_tape import NewTape
from calltape_analyzer.writing.output_file import TemporaryFolder
from calltape_schema.records import Manifest, ModelError, Tree

__all__ = ["NewOutcomes", "Updates", "assert_replays", "named", "set_updates", "updates"]


def assert_replays(
    tape: Tape | str | os.PathLike[str],
    model: Any,
    *,
    tolerances: Tolerances | None = None,
    expect: Expect = "recorded",
    slower_than: float | str | None = None,
    trusted: bool = False,
) -> None:
    """Fails if a model does not do what is on a tape. See :func:`calltape_analyzer.replay`.

    With ``pytest --calltape-update`` outputs that differ are no failure: they are written to the
    tape when all tests are done.

    Args:
        tape: a tape, a part of one, or a path.
        model: the model, a program or a file, as for :func:`~calltape_analyzer.replay`.
        tolerances: as for :func:`~calltape_analyzer.replay`.
        expect: as for :func:`~calltape_analyzer.replay`.
        slower_than: as for :func:`~calltape_analyzer.replay`.
        trusted: as for :func:`~calltape_analyzer.replay`.

    Raises:
        AssertionError: says which call, which leaf, the first elements that differ, and the command
            that shows it again; or why the tape cannot be replayed.
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
    update = updates()
    replayed = replay if update is None else update.replayed
    try:
        report = replayed(
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
    """The message for a report that is not ok: text of several lines."""
    lines: list[str] = []
    for row in report.failing[:_MAX_CALLS]:
        lines += difference_lines(call_of(tape, row), row)
    more = len(report.failing) - _MAX_CALLS
    lines += (
        [f"{counted(more, 'more call')} {'fails' if more == 1 else 'fail'}"] if more > 0 else []
    )
    lines += [*map(str, report.notes), report.summary]
    if report.failing:
        lines += _commands(call_of(tape, report.failing[0]))
    return "\n".join(printable(line[:_MAX_LINE]) for line in lines)


def difference_lines(call: Call, row: ReportRow) -> list[str]:
    """What is wrong about one call, in the lines of a message."""
    lines = [f"call {row.address or row.call} of {place_of(call)}: {row.error}"]
    for leaf in row.differences:
        if leaf.elements:
            cells = [
                (f"{leaf.path}[{', '.join(map(str, one.index))}]", one.recorded, one.got)
                for one in leaf.elements
            ]
            first, second, third = (max(len(row[i]) for row in cells) for i in range(3))
            lines += [
                f"  {at:{first}}  recorded {one:>{second}}  got {other:>{third}}"
                for at, one, other in cells
            ]
        elif leaf != row.error:
            lines.append(f"  {leaf}")
    return lines


def call_of(tape: Tape, row: ReportRow) -> Call:
    return tape.find(row.address or row.call)


def place_of(call: Call) -> str:
    """The file of a call, as it is written from the current directory."""
    relative = os.path.relpath(call.path)
    return call.path if relative.startswith("..") else relative


def _commands(call: Call) -> list[str]:
    place = shlex.quote(place_of(call))
    again = _command_of_test()
    if again is None:
        again = f"calltape replay {place} --calls {call.number} --model PACKAGE.MODULE:FACTORY"
    return [f"to see it again: {again}", f"to see the call: calltape show {place} {call.number}"]


def _command_of_test() -> str | None:
    """The command that runs the test again; None if no test of pytest runs."""
    given = _command.get()
    current = os.environ.get("PYTEST_CURRENT_TEST")
    if given is not None or current is None:
        return given
    return f"python -m pytest {shlex.quote(current.rpartition(' (')[0])}"


@contextmanager
def named(command: str) -> Iterator[None]:
    """Sets the command within the ``with`` block."""
    token = _command.set(command)
    try:
        yield
    finally:
        _command.reset(token)


_VERB = "update"
_SOURCE = "source.txt"
_WHOLE = ("tape", "exception")
"""Only what was compared as a whole is replaced. Of a call without values nobody knows what it
would give."""


class Updates:
    """The new outputs of one test run.

    Args:
        folder: where they are kept, if another process made it.

    Attributes:
        folder: where they are kept.
        lines: after :meth:`finish`, what changed, for people.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._own: TemporaryFolder | None = None
        if folder is None:
            self._own = TemporaryFolder()
            folder = str(self._own.path)
        self.folder = folder
        self.lines: list[str] = []

    def close(self) -> None:
        """Removes what was kept."""
        if self._own is not None:
            self._own.close()

    def replayed(self, tape: Tape, model: Any, **options: Any) -> Report:
        """The report of a replay. A call whose new outcome was kept is left out of it, and the
        others are as in :func:`~calltape_analyzer.replay`.

        Raises:
            TapeError: as :func:`~calltape_analyzer.replay`; ``usage`` if another test of this run
                has another outcome for the same call.
        """
        outcomes = NewOutcomes()
        report = replay_with(tape, model, outcomes=outcomes.keep, **options)
        steady = not report.is_unsteady
        kept: list[ReportRow] = []
        for row in report.failing if steady else ():
            call = call_of(tape, row)
            built = outcomes.of(call, row)
            if built is not None:
                self._keep(call, row, built)
                kept.append(row)
        if not kept:
            return report
        rest = [row for row in report.rows if row not in kept]
        fine = [row.model_copy(update={"error": None, "against": "success"}) for row in kept]
        return report.model_copy(update={"rows": [*rest, *fine]})

    def _keep(self, call: Call, row: ReportRow, built: BuiltCall) -> None:
        source = os.path.realpath(call.path)
        name = hashlib.sha256(os.fsencode(source)).hexdigest()[:32]
        folder = Path(self.folder, name)
        folder.mkdir(exist_ok=True)
        (folder / _SOURCE).write_bytes(os.fsencode(source))
        path = folder / f"{call.number:020}.tape"
        try:
            _write_one(path, call, built)
        except TapeError as error:
            if error.kind != "exists":
                raise
            self._expect_same(call, path, built)
            return
        text = "\n".join(difference_lines(call, row))
        path.with_suffix(".txt").write_text(text, encoding="utf-8", errors="backslashreplace")

    def _expect_same(self, call: Call, path: Path, built: BuiltCall) -> None:
        """Raises UsageError if the outcome that is kept is another one."""
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            _write_one(beside, call, built, overwrite=True)
            same = beside.read_bytes() == path.read_bytes()
        finally:
            beside.unlink(missing_ok=True)
        if not same:
            raise UsageError(
                f"two tests give other outputs for call {call.number} of {place_of(call)}",
                advice="run one of them with --calltape-update",
            )

    def finish(self, *, write: bool) -> None:
        """Writes the tapes, if that is wanted, and notes what changed in :attr:`lines`."""
        for folder in sorted(path for path in Path(self.folder).iterdir() if path.is_dir()):
            source = os.fsdecode((folder / _SOURCE).read_bytes())
            for said in sorted(folder.glob("*.txt")):
                if said.name != _SOURCE:
                    text = said.read_text(encoding="utf-8").split("\n")
                    self.lines += map(printable, text)
            changed = sorted(folder.glob("*.tape"))
            if changed:
                self.lines.append(self._finished(source, changed, write))
        if not self.lines:
            self.lines.append("every call gives what is on its tape: nothing was written")

    def _finished(self, source: str, changed: Sequence[Path], write: bool) -> str:
        shown = os.path.relpath(source)
        many = counted(len(changed), "call")
        if not write:
            return f"{shown}: {many} would get new outputs; nothing was written"
        try:
            _rewrite(source, changed)
        except (TapeError, OSError) as error:
            return f"{shown}: NOT written: {error}"
        return f"{shown}: {many} got new outputs, and the tape was rewritten"


_current: list[Updates] = []


def updates() -> Updates | None:
    """Where new outputs go instead of a failure; None if tests are to fail."""
    return _current[-1] if _current else None


def set_updates(given: Updates | None) -> None:
    """Sets what :func:`updates` gives, for this process."""
    _current[:] = [] if given is None else [given]


class NewOutcomes:
    """Keeps what calls gave: as trees, because a later call may change the same tensors."""

    def __init__(self) -> None:
        self._kept: dict[CallRef, tuple[Tree | ModelError, dict[str, Any]]] = {}

    def keep(self, call: Call, result: Any, error: BaseException | None) -> None:
        """Takes the outcome of a call: what it returned, or what it raised."""
        values = _input_values(call)
        if values is None:
            return
        if error is not None:
            if call.record.error is not None:  # else it is no outcome that anybody wants
                raised = ModelError(type=name_of(type(error)), message=text_of(error))
                self._kept[call.ref] = raised, values
            return
        own = set(values)
        tree = build_tree(result, "outputs", values)
        for key in values.keys() - own:
            values[key] = values[key].detach().clone()
        self._kept[call.ref] = tree, values

    def of(self, call: Call, row: ReportRow) -> BuiltCall | None:
        """The call with its new outcome; None if it keeps the recorded one: it was not compared as
        a whole, or failed where it is to return, or what it gave is not a value."""
        kept = self._kept.get(call.ref)
        if kept is None or row.against not in _WHOLE:
            return None
        outcome, values = kept
        returned = outcome if isinstance(outcome, Tree) else None
        raised = outcome if isinstance(outcome, ModelError) else None
        changed = {"outputs": returned, "error": raised, "outputs_missing": None, "blob": None}
        return BuiltCall(call.record.model_copy(update=changed), values)


def _input_values(call: Call) -> dict[str, Any] | None:
    """The tensors of a call's arguments by their keys; None if one is not on the tape (what a model
    gives for made-up ones is no outcome of the call), or cannot be made here."""
    found: dict[str, Any] = {}
    try:
        for i, leaf in enumerate(call.record.inputs.facts()):
            if leaf.key is None:
                return None
            found[leaf.key] = call.tensor("inputs", i)
    except TapeError:
        return None
    if any(isinstance(value, Placeholder) for value in found.values()):
        return None
    return found


def _write_one(path: Path, call: Call, built: BuiltCall, *, overwrite: bool = False) -> None:
    with NewTape(path, call.manifest, overwrite=overwrite) as writer:
        writer.write(built.record, built.values)
        writer.seal()


def _rewrite(source: str, changed: Sequence[Path]) -> None:
    """Puts a tape with new calls in the place of an old one.

    Raises:
        TapeError: the old tape is damaged, is one of several files, or cannot be replaced.
    """
    with open_tape(source) as old, open_tape([str(path) for path in changed]) as new:
        (segment,) = old.segments
        if old.verify() or segment.end is None or segment.end.continues:
            raise UsageError(
                "it is corrupted, not sealed, or one of several files of a recording",
                path=source,
                advice="record it again",
            )
        known = {call.number: call for call in new.calls}
        numbers = listed([str(number) for number in sorted(known)], 20)
        manifest = _manifest(old, numbers)
        mode = os.stat(source).st_mode & 0o777
        with NewTape(source, manifest, overwrite=True, mode=mode) as writer:
            for call in old.calls:
                writer.copy(known.pop(call.number, call))
            if known:
                raise UsageError("the tape changed while the tests ran", path=source)
            end = segment.end
            writer.seal(
                end.coverage,
                unkept=unkept_of([segment]),
                dumps=end.dumps,
                closed_ns=end.closed_ns,
            )


def _manifest(old: Tape, numbers: str) -> Manifest:
    """The manifest, in whose history all updates in a row are one step: a fixture may be updated
    any number of times."""
    manifest = derived(old.segments, _VERB, {"calls": numbers})
    steps = manifest.history or ()
    if len(steps) > 1 and steps[-2].verb == _VERB:
        steps = (*steps[:-2], steps[-1])
    return manifest.model_copy(update={"history": steps})
