"""A survey: what many tapes say together, by recorded target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from calltape_analyzer.errors import UsageError
from calltape_analyzer.notebook import Shown, Sketch
from calltape_analyzer.observing.signature import signature_text
from calltape_analyzer.reading.targets import UNKNOWN, TargetsError, target_name
from calltape_analyzer.surveying.file_facts import target_digest
from calltape_analyzer.surveying.file_survey import FileSurvey, Listed, error_of
from calltape_analyzer.surveying.target_survey import TargetSurvey
from calltape_analyzer.text import counted, some_of
from calltape_schema.errors import TapeError
from calltape_schema.records import decode_manifest

if TYPE_CHECKING:
    from calltape_analyzer.surveying.surveyed_tape import SurveyedTape

__all__ = ["MAX_UNREADABLE", "Survey"]

MAX_UNREADABLE = 65_536
_MOST_NAMED = 5


def _tell_apart(tapes: Mapping[bytes, SurveyedTape], mark: Callable[[bytes], str]) -> None:
    """Marks the targets that have the name of another one."""
    names = Counter(tape.name for tape in tapes.values())
    for digest, tape in tapes.items():
        if names[tape.name] > 1:
            tape.tell_apart(mark(digest))


class Survey(Shown):
    """What many tapes say together; :func:`survey` makes it, and :func:`read_survey` reads it.

    Surveys add up with :meth:`merge`, in any order. The calls of a file count once, also if a copy
    of it was surveyed, or if it is in both surveys. :attr:`tapes` answers for each recorded target
    what a tape answers, as far as no values are needed.
    """

    def __init__(self) -> None:
        self.targets: dict[bytes, TargetSurvey] = {}
        self._unreadable: dict[str, Listed] = {}
        self.more_unreadable = 0
        self._targets_of: dict[bytes, bytes] = {}

    def __repr__(self) -> str:
        files = sum(len(one.files) for one in self.targets.values())
        return f"<Survey of {counted(files, 'file')}, {counted(len(self.targets), 'target')}>"

    def _sketch(self) -> Sketch:
        rows = [
            (_name(one), len(one.files), sum(facts.calls for facts in one.files.values()))
            for one in self.targets.values()
        ]
        rows.sort(key=lambda row: -row[2])
        unreadable = len(self._unreadable) + self.more_unreadable
        note = f"{unreadable:,} files could not be read" if unreadable else None
        return Sketch("Survey", head=("target", "files", "calls"), rows=rows, note=note)

    def add(self, one: FileSurvey) -> None:
        """Adds a file."""
        head = one.facts.head
        if head not in self._targets_of:
            self._targets_of[head] = target_digest(one.head)
        self.targets.setdefault(self._targets_of[head], TargetSurvey()).add(one)
        self._unreadable.pop(one.facts.path, None)

    def add_unreadable(self, error: Listed) -> None:
        """Adds a file that cannot be read."""
        if any(one.has_read(error.path) for one in self.targets.values()):
            return
        known = self._unreadable.get(error.path)
        self._unreadable[error.path] = error if known is None else min(known, error)
        if len(self._unreadable) > MAX_UNREADABLE:
            self.more_unreadable += 1
            del self._unreadable[max(self._unreadable)]

    def merge(self, *others: Survey) -> Survey:
        """The survey of all files of this one and the others.

        Raises:
            UsageError: two of them have some sealed files in common, and each has others too.
        """
        made = Survey()
        for survey in (self, *others):
            for digest in sorted(survey.targets):
                target = made.targets.setdefault(digest, TargetSurvey())
                target.merge(survey.targets[digest])
            made.more_unreadable += survey.more_unreadable
        for survey in (self, *others):
            for error in survey._unreadable.values():
                made.add_unreadable(error)
        return made

    @property
    def unreadable(self) -> list[TapeError]:
        """The files that could not be read, by path. They cost their own answer only."""
        found = [error_of(one) for one in self.listed_unreadable]
        if self.more_unreadable:
            reason = f"{self.more_unreadable} more files could not be read"
            found.append(TapeError("damaged", reason))
        return found

    @property
    def listed_unreadable(self) -> list[Listed]:
        """The same as plain data."""
        return [self._unreadable[path] for path in sorted(self._unreadable)]

    @property
    def tapes(self) -> tuple[SurveyedTape, ...]:
        """What was recorded of each target, as a tape without its calls; the target with the most
        calls comes first."""
        return self._tapes(())

    def _tapes(self, unreadable: Sequence[TapeError]) -> tuple[SurveyedTape, ...]:
        from calltape_analyzer.surveying.surveyed_tape import SurveyedTape

        made = {
            digest: SurveyedTape(self.targets[digest], unreadable=unreadable)
            for digest in sorted(self.targets)
        }
        _tell_apart(made, lambda digest: signature_text(made[digest].target) or "(unknown)")
        _tell_apart(made, lambda digest: f"#{digest.hex()[:8]}")
        return tuple(sorted(made.values(), key=lambda tape: -len(tape)))

    def tape(self, target: str | None = None) -> SurveyedTape:
        """What was recorded of one target.

        Args:
            target: its name (``module:Class.method``, with the parameters if others of that name
                have other ones), or a part of it that no other one has; None if there is only one.

        Raises:
            TapeError: ``usage`` if no target or several are meant.
        """
        every = self._tapes(self.unreadable)
        found = [tape for tape in every if target is None or target in tape.name]
        exact = [tape for tape in found if tape.name == target]
        found = exact or found
        if len(found) == 1:
            return found[0]
        names = some_of([tape.name for tape in every], _MOST_NAMED)
        if not found:
            what = "the survey has no calls" if target is None else f"no target is named {target!r}"
            raise UsageError(what, advice=f"the targets are: {names}" if names else None)
        raise TargetsError(
            "usage", f"the survey has several targets: {names}",
            advice="name one of them: target=, or --target at the prompt",
        )  # fmt: skip


def _name(found: TargetSurvey) -> str:
    head = next(iter(found.heads.values()), None)
    return UNKNOWN if head is None else target_name(decode_manifest(head).target)
