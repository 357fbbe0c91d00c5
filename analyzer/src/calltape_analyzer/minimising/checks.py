"""The checks that a tape can fail (a predicate, an export, a replay), and why one failed.

In come functions of the user, or their names, and a tape. Out go reasons, in words that outlive
other sizes: a smaller tape that fails for another reason is another failure. Code of the user runs
here, so that this runs in a process of its own.
"""

from __future__ import annotations

import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from calltape_analyzer.errors import ExportError, TapeError, UsageError
from calltape_analyzer.facts import Fact
from calltape_analyzer.foreign_errors import text_of
from calltape_analyzer.minimising.changed_calls import is_changed, settle
from calltape_analyzer.model.factories import UnfitNameError, imported, made_by
from calltape_analyzer.opening import open_tape
from calltape_analyzer.plain_data import PlainData
from calltape_analyzer.pytree.placeholder import unmade_advice, unmade_in
from calltape_analyzer.scripting import is_factory
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import listed

__all__ = ["Check", "Kind", "Named", "Outcome", "check_of", "normalised"]

Kind = Literal["predicate", "export", "replay"]
Named = str | Callable[..., Any]

_MAX_TEXT = 400
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"(?<![A-Za-z_])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NUMBERS = re.compile(r"#(?:[\s,x]+#)+")


class Outcome(PlainData):
    """What came of one run.

    Attributes:
        end: ``failed`` or ``passed``; ``time`` or ``memory`` if the run took more than it may;
            ``unusable`` if the check could not be made at all.
        reasons: why it failed, one text for each failure that was found.
        calls: the numbers of the calls that failed, if the check tells.
        seconds: how long it took.
    """

    end: Literal["failed", "passed", "time", "memory", "unusable"]
    reasons: tuple[str, ...] = ()
    calls: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """It as a short text."""
        return f"{self.end}: {self.reasons[0]}" if self.reasons else self.end


class Check(PlainData):
    """What a tape is tried with.

    Attributes:
        kind: what it is.
        name: ``package.module:function`` of the predicate, or of what makes the model.
        reference: what makes the model that gives the outputs of calls whose arguments are new.
        to: the kind of export.
        classes: by their name on the tape, the classes that objects may be rebuilt from.
    """

    kind: Kind
    name: str
    reference: str | None = None
    to: Literal["torch", "onnx"] = "torch"
    classes: dict[str, str] = Field(default_factory=dict)

    def load(self) -> None:
        """Imports what the check needs, once for all runs.

        Raises:
            UnfitNameError: a name means nothing, or nothing that can be called.
            UsageError: it cannot be imported.
        """
        names = [self.name, *([self.reference] if self.reference else [])]
        for name in (*names, *self.classes.values()):
            _check_callable(name, imported(name))
        if self.kind == "predicate":
            _check_takes_tape(self.name, imported(self.name))

    def run(self, path: str, settled: str) -> Outcome:
        """Runs the check on a tape.

        Args:
            path: of the tape.
            settled: where the tape is written with the outputs of the reference, if there is one
                and any call needs them.
        """
        classes = {name: imported(where) for name, where in self.classes.items()}
        if self.reference is not None:
            with open_tape(path, classes=classes) as tape:
                if any(map(is_changed, tape.calls)):
                    model = made_by(self.reference)
                    if not settle(tape, model, settled):
                        return Outcome(end="passed")
                    path = settled
        tape = open_tape(path, classes=classes)
        try:
            return self._outcome(tape)
        finally:
            with suppress(OSError):  # the user's code may have closed any file
                tape.close()

    def _outcome(self, tape: Tape) -> Outcome:
        if self.kind == "predicate":
            return _of_predicate(tape, imported(self.name))
        try:
            model = made_by(self.name)
        except TapeError as error:
            return Outcome(end="unusable", reasons=(str(error),))
        return (
            _of_export(tape, model, self.to) if self.kind == "export" else _of_replay(tape, model)
        )


def check_of(
    tape: Tape,
    fails: Named | None,
    fails_export: Named | None,
    fails_replay: Named | None,
    reference: Named | None,
    to: Literal["torch", "onnx"],
) -> Check:
    """The one check that was given.

    Raises:
        UsageError: none was given, or several; or one that cannot be imported by its name.
    """
    asked: dict[Kind, Named | None] = {
        "predicate": fails, "export": fails_export, "replay": fails_replay
    }  # fmt: skip
    given: list[tuple[Kind, Named]] = [(k, one) for k, one in asked.items() if one is not None]
    if len(given) != 1:
        raise UsageError(
            f"{len(given)} checks were given",
            advice="pass one of fails, fails_export, fails_replay",
        )
    if to not in ("torch", "onnx"):
        raise UsageError(f"to={to!r:.100}", advice="pass 'torch' or 'onnx'")
    ((kind, function),) = given
    classes = {name: f"{cls.__module__}:{cls.__qualname__}" for name, cls in _classes(tape).items()}
    return Check(
        kind=kind, name=_name_of(function), to=to, classes=classes,
        reference=None if reference is None else _name_of(reference),
    )  # fmt: skip


def _classes(tape: Tape) -> dict[str, type]:
    """The classes that the user gave, by their name on the tape."""
    return dict(tape.class_index.by_name)


def _name_of(function: Named) -> str:
    if isinstance(function, str):
        name = function
    else:
        module = getattr(function, "__module__", None)
        name = f"{module}:{getattr(function, '__qualname__', None)}"
    if not is_factory(name) or name.startswith("__main__:"):
        raise UsageError(
            f"{name!r:.200} is not of the form package.module:function",
            advice="each try runs in another process, which imports it by its name",
        )
    return name


def _check_callable(name: str, found: Any) -> None:
    if not callable(found):
        what = f"{name} is a {type(found).__qualname__}, which cannot be called"
        raise UnfitNameError(what, advice="name a function")


def _check_takes_tape(name: str, predicate: Any) -> None:
    """Raises if the call itself would raise, which would look like a failure of the tape."""
    try:
        parameters = inspect.signature(predicate)
    except (TypeError, ValueError):  # some functions in C have none
        return
    try:
        parameters.bind(None)
    except TypeError as error:
        what = f"{name} does not take an open tape: {error}"
        raise UnfitNameError(what, advice="let it take one argument") from None


def _of_predicate(tape: Tape, predicate: Any) -> Outcome:
    try:
        found = predicate(tape)
        fails = bool(found)
    except BaseException as error:  # also SystemExit: all of it is an answer
        return Outcome(end="failed", reasons=(_reason_of(error),))
    if not fails:
        return Outcome(end="passed")
    said = str(found) if isinstance(found, str | Fact) else "the predicate returned true"
    return Outcome(end="failed", reasons=(normalised(said),))


def _of_export(tape: Tape, model: Any, to: Literal["torch", "onnx"]) -> Outcome:
    from calltape_analyzer.exporting.export import export
    from calltape_analyzer.exporting.options import ExportOptions

    if unmade := _unmade(tape, model):
        return _of_unmade(unmade)
    try:
        programs = export(tape, model, to=to, options=ExportOptions(probe="none"))
        missing, attempts = programs.missing, programs.attempts
    except ExportError as error:
        found: Any = error.attempts
        reasons = [normalised(str(one.summary)) for one in found if one.summary]
        return _failed(reasons or [normalised(error.reason)])
    except TapeError as error:
        return Outcome(end="unusable", reasons=(str(error),))
    except Exception as error:
        return _failed([_reason_of(error)])
    if missing:
        tried = [
            normalised(str(one.summary))
            for one in attempts
            if one.summary and one.variant in missing
        ]
        return _failed(tried or [normalised(str(reason)) for reason in missing.values()])
    return _of_report(programs.verify())


def _of_replay(tape: Tape, model: Any) -> Outcome:
    from calltape_analyzer.replaying.replaying import replay

    # Calls whose arguments are new have no outcome: all that is known is that the model returned.
    without = [call for call in tape.calls if is_changed(call)]
    try:
        report = replay(tape, model, expect="success" if without else "recorded")
    except TapeError as error:
        return Outcome(end="unusable", reasons=(str(error),))
    return _of_unmade(report.unmade) if report.unmade else _of_report(report)


def _unmade(tape: Tape, model: Any) -> dict[str, str]:
    """The classes of arguments that cannot be made here, each with the reason."""
    from calltape_analyzer.arguments.complete_inputs import complete_inputs
    from calltape_analyzer.model.calls import wanted_classes

    classes = wanted_classes(model, tape.class_index)
    found: dict[str, str] = {}
    known: set[bytes] = set()
    for call in tape.calls:
        with suppress(TapeError):  # the export says of such a call what it thinks
            structure = call.record.inputs.structure
            if structure not in known:
                known.add(structure)
                found |= unmade_in(complete_inputs(call.rebuilt_from(classes)))
    return found


def _of_unmade(classes: Mapping[str, str]) -> Outcome:
    """That is not the model's failure: no smaller tape would tell anything."""
    some = listed([f"{name} ({reason})" for name, reason in classes.items()])
    reasons = (f"arguments hold objects that cannot be rebuilt: {some}", unmade_advice(classes))
    return Outcome(end="unusable", reasons=reasons)


def _of_report(report: Any) -> Outcome:
    failing = [row for row in report.failing if row.is_tested]
    if not failing:
        return Outcome(end="passed")
    reasons = [reason for row in failing for reason in _reasons_of_row(row)]
    return _failed(reasons, tuple(row.call for row in failing))


def _reasons_of_row(row: Any) -> Iterator[str]:
    from calltape_analyzer.comparison.verdicts import Doubted

    for one in row.differences:
        yield f"{one.path} differs"
    if not row.differences:
        # The smallest tape may lack values that the failure has nothing to do with.
        yield normalised(str(row.error.why if isinstance(row.error, Doubted) else row.error))


def _failed(reasons: list[str], calls: tuple[int, ...] = ()) -> Outcome:
    # A tape of very many calls may fail in as many ways; the first ones say enough.
    return Outcome(end="failed", reasons=tuple(dict.fromkeys(reasons))[:100], calls=calls[:100])


def normalised(text: str) -> str:
    """A message without what depends on sizes, values and memory: each number, and each row of
    numbers, is ``#``."""
    valid = text[: 20 * _MAX_TEXT].encode("utf-8", "backslashreplace").decode()
    plain = _ADDRESS.sub("0x", _COLOURS.sub("", valid))
    plain = _NUMBERS.sub("#", _NUMBER.sub("#", " ".join(plain.split())))
    return plain[:_MAX_TEXT]


def _reason_of(error: BaseException) -> str:
    """Class, message and place of an exception. The place is the innermost line that belongs
    neither to an installed package nor to Python."""
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    )
    message = normalised(text_of(error))
    place = _place_of(error)
    return f"{name}: {message}{place}" if message else f"{name}{place}"


def _place_of(error: BaseException) -> str:
    others = [str(Path(path)) for path in set(sysconfig.get_paths().values())]
    others.append(str(Path(__file__).parents[1]))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *others)):
            return f" (at {Path(frame.filename).name}:{frame.lineno}, in {frame.name})"
    return ""
