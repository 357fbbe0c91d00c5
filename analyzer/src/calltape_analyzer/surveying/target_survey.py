"""What was recorded of one target, on many files. Files are added one by one, and surveys of one
target add up; each call counts once, and the order does not matter.

A sealed file is final: what it says is added to what the others say. Of a file that is not sealed a
later state may follow, which has its calls too. So its rows are kept by themselves until the
survey is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from calltape_analyzer.errors import UsageError
from calltape_analyzer.surveying.bounds import digest_of
from calltape_analyzer.surveying.counted_kinds import KindTable
from calltape_analyzer.surveying.file_facts import FileFacts, FileKey
from calltape_analyzer.surveying.file_survey import OTHER_KINDS, FileCounts, FileSurvey, Listed
from calltape_analyzer.surveying.file_table import FileTable
from calltape_analyzer.surveying.inputs_table import InputsTable
from calltape_analyzer.text import counted, some_of
from calltape_schema.framing import TRAILER

__all__ = ["MAX_LISTED", "TargetSurvey"]

MAX_LISTED = 1000
_MOST_NAMED = 3


class TargetSurvey:
    """The files that record one target.

    Attributes:
        heads: the shared parts of their manifests, by digest.
        files: the facts of each file whose calls count.
        copies: files whose calls are in another file too, by path, with the key of the state that
            was read.
        final: the inputs of all calls on sealed files.
        unsealed: the inputs of each other file.
        kinds: the traffic counters of all files that have some.
        doubtful: counters of files that have calls which are not counted there, nor, when
            :meth:`settle` was called last, in another file that is known.
        spare: per sealed file of a recording, the calls that are counted there and are not on it.
    """

    def __init__(self) -> None:
        self.heads: dict[bytes, bytes] = {}
        self.files = FileTable()
        self.copies: dict[str, FileKey] = {}
        self.final = InputsTable()
        self.unsealed: dict[FileKey, InputsTable] = {}
        self.kinds = KindTable()
        self.doubtful: dict[FileKey, FileCounts] = {}
        self.spare: dict[tuple[bytes, int], Mapping[bytes, int]] = {}
        self._read: set[bytes] = set()
        self._damage: set[Listed] = set()

    # --- adding -----------------------------------------------------------------------------------

    def add(self, one: FileSurvey) -> None:
        """Adds a file. If it is a copy of another one, its calls count once."""
        self.add_damage(one.damage)
        if not self.place(one.facts):
            return
        self.heads.setdefault(one.facts.head, one.head)
        if not one.facts.sealed:
            self.unsealed[one.facts.key] = InputsTable(one.rows, one.limit)
            return
        self.final.add_rows(one.rows, one.limit)
        if one.counts is not None:
            self._count(one.facts.key, one.counts)

    def merge(self, other: TargetSurvey) -> None:
        """Adds the files of another survey of this target.

        Raises:
            UsageError: some sealed files are in both surveys, and each has others too: nobody can
                take the calls of a file out of a survey.
        """
        mine = {key for key, facts in self.files.items() if facts.sealed}
        theirs = {key for key, facts in other.files.items() if facts.sealed}
        has_all = bool(theirs) and theirs <= mine
        if mine & theirs and not has_all:
            if not mine < theirs:
                raise _overlap([self.files[key].path for key in sorted(mine & theirs)])
            self.final, self.kinds = InputsTable(), KindTable()
        self.add_damage(other._damage)
        self.heads = other.heads | self.heads
        for key in sorted(other.files):
            facts = other.files[key]
            if self.place(facts) and not facts.sealed:
                self.unsealed[key] = InputsTable(other.unsealed[key], other.unsealed[key].limit)
        for path, key in other.copies.items():
            self._note_copy(path, key)
        if not has_all:
            self.final.add_all(other.final)
            self.kinds.add_all(other.kinds)
        for place, spare in other.spare.items():
            self.spare.setdefault(place, spare)
        for key, counts in other.doubtful.items():
            if not self.files[key].counted:
                self.doubtful.setdefault(key, counts)
        self.settle()

    def add_damage(self, damage: Iterable[Listed]) -> None:
        """Adds places of damage."""
        self._damage.update(damage)
        if len(self._damage) > 2 * MAX_LISTED:
            self._damage = set(sorted(self._damage)[:MAX_LISTED])

    def place(self, facts: FileFacts) -> bool:
        """Whether this file counts. If it is an earlier state or a copy of another file, it does
        not; if it is a later state, the other one does not any more."""
        self._read.add(_mark_of(facts.path))
        known = self.files.get(facts.key)
        if known is not None:
            first, other = sorted((known.path, facts.path))
            if known.sealed is facts.sealed:  # otherwise one of them lies
                kept, is_counted = (
                    min(known, facts, key=_preference),
                    known.counted or facts.counted,
                )
                self.files[facts.key] = kept._replace(counted=is_counted)
            if first != other:
                self._note_copy(other, facts.key)
            return False
        for key in self.files.at(facts.key.tape, facts.key.part):
            if self.files[key].has_all_of(facts):
                self._note_copy(facts.path, facts.key)
                return False
            if facts.has_all_of(self.files[key]):
                self._note_copy(self.files.pop(key).path, key)
                self.unsealed.pop(key, None)
        self.files[facts.key] = facts
        return True

    def has_read(self, path: str) -> bool:
        """Whether a file of this path was added, also as a copy."""
        return _mark_of(path) in self._read

    def _note_copy(self, path: str, key: FileKey) -> None:
        self.copies[path] = min(self.copies.get(path, key), key)

    # --- counters ---------------------------------------------------------------------------------

    def _count(self, key: FileKey, counts: FileCounts) -> None:
        if counts.spare:
            self.spare.setdefault(key[:2], counts.spare)
        if counts.short:
            self.doubtful[key] = counts
        else:
            self._add_counts(counts)

    def settle(self) -> None:
        """Uses counters whose missing calls are counted in other files of the recording: in one
        before, because a call is counted when it begins; or in a later one, which has the counters
        of files that were deleted. Whoever asks does this first."""
        recordings = {key.tape for key in self.doubtful}
        spare: dict[bytes, Counter[bytes]] = {tape: Counter() for tape in recordings}
        for (tape, _), calls in self.spare.items():
            if tape in recordings:
                spare[tape].update(calls)
        for key in sorted(self.doubtful):
            counts, others = self.doubtful[key], Counter(spare[key.tape])
            others.subtract(self.spare.get((key.tape, key.part), {}))
            if _covers(others, counts.short):
                del self.doubtful[key]
                self._add_counts(counts)
                self.files[key] = self.files[key]._replace(counted=True)

    def _add_counts(self, counts: FileCounts) -> None:
        for group in counts.groups:
            self.kinds.add(group)
        self.kinds.other_calls += counts.other_calls

    # --- asking -----------------------------------------------------------------------------------

    def inputs(self) -> InputsTable:
        """The distinct inputs of all calls."""
        found = InputsTable()
        found.add_all(self.final)
        for key in sorted(self.unsealed):
            found.add_all(self.unsealed[key])
        found.bound()
        return found

    def in_order(self) -> list[FileKey]:
        """The keys of the files: by recording, and in the order of their calls."""
        return [
            key
            for *_, key in sorted(
                (one.key.tape, one.is_ahead, one.key.part, one.first_call or 0, one.key)
                for one in self.files.values()
            )
        ]

    @property
    def listed_damage(self) -> list[Listed]:
        """The places of damage that were found, the first 1,000 by path."""
        return sorted(self._damage)[:MAX_LISTED]

    def told_copies(self) -> list[str]:
        """The paths of files whose calls are counted in another file. A file that was read twice,
        and has grown between, is none."""
        paths = {facts.path for facts in self.files.values()}
        return sorted(self.copies.keys() - paths)

    def damage(self) -> list[Listed]:
        """What is wrong, by path: at most 1,000 places, and how many more there are."""
        found = sorted({*self.listed_damage, *self._contradictions()})
        told = found[:MAX_LISTED]
        every = sum(facts.damaged for facts in self.files.values())
        more = max(every - len(self.listed_damage), 0) + len(found) - len(told)
        if more:
            reason = f"{counted(more, 'more place')} of the files of a survey are damaged"
            told.append(Listed("", -1, "", "damaged", reason, "survey fewer files to see them"))
        return told

    def _contradictions(self) -> Iterator[Listed]:
        for key in self.doubtful:
            before = (self.files.at(key.tape, part) for part in range(key.part))
            if all(any(self.files[one].counted for one in files) for files in before):
                reason = "the counters contradict the calls on the tape, and are not used"
                path = self.files[key].path
                yield Listed(path, -1, TRAILER, "damaged", reason, "do not trust this file")
        for files in self.files.groups():
            for one, other in _overlapping(files):
                reason = f"the file and {other.path} have calls of the same numbers: each counts"
                advice = "open both with open_tape, which compares the calls"
                yield Listed(one.path, -1, "", "damaged", reason, advice)


def _mark_of(path: str) -> bytes:
    """A path in few bytes."""
    return digest_of(path.encode("utf-8", "surrogatepass"))


def _preference(facts: FileFacts) -> tuple[str, bool, int, int]:
    """Of copies, the one with the smallest is kept."""
    return facts.path, not facts.scanned, facts.nbytes, facts.damaged


def _overlapping(files: list[FileFacts]) -> Iterator[tuple[FileFacts, FileFacts]]:
    """Files of one place in a recording that follow each other by their first calls and overlap."""
    order = sorted(files, key=lambda one: (one.first_call or 0, one.key))
    for one, other in pairwise(order):
        if one.overlaps(other) and not one.is_ahead and not other.is_ahead:
            yield one, other


def _covers(spare: Mapping[bytes, int], short: Mapping[bytes, int]) -> bool:
    """Whether calls that are counted in one file can be the calls that another one lacks."""
    rest = sum(max(calls - spare.get(kind, 0), 0) for kind, calls in short.items())
    return rest <= spare.get(OTHER_KINDS, 0)


def _overlap(paths: list[str]) -> UsageError:
    return UsageError(
        f"both surveys have {counted(len(paths), 'file')} in common, such as "
        f"{some_of(paths, _MOST_NAMED)}, and each has others too: their calls would count twice",
        advice="survey the files of one of them anew, together with the other survey: calltape "
        "survey PATH... SURVEY",
    )
