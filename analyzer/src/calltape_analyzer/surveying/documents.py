"""A survey as a document, and back. The document comes from anybody: it is validated, and nothing
of it is used before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from calltape_analyzer.observing.traffic_counters import CountedGroup, Values
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.surveying.bounds import digest_of
from calltape_analyzer.surveying.counted_kinds import KindCounts, KindTable, bare
from calltape_analyzer.surveying.document_models import (
    AxisDocument,
    DoubtfulDocument,
    FileDocument,
    KindDocument,
    ListedDocument,
    RowDocument,
    SurveyDocument,
    TableDocument,
    TargetDocument,
)
from calltape_analyzer.surveying.file_facts import FileKey, target_digest
from calltape_analyzer.surveying.file_survey import FileCounts, Listed
from calltape_analyzer.surveying.inputs_table import InputsTable
from calltape_analyzer.surveying.survey import Survey
from calltape_analyzer.surveying.surveyed_row import SurveyedRow, sound_row
from calltape_analyzer.surveying.target_survey import TargetSurvey
from calltape_schema.errors import TapeError
from calltape_schema.traffic import Axis, Group

__all__ = ["document_of", "survey_of_document"]


def document_of(survey: Survey) -> SurveyDocument:
    """The document of a survey, to be written once: equal for equal surveys, however they came
    about."""
    return SurveyDocument.model_construct(
        format="calltape-survey",
        version=1,
        targets=tuple(_written(survey.targets[digest]) for digest in sorted(survey.targets)),
        unreadable=tuple(map(_listed, survey.listed_unreadable)),
        more_unreadable=survey.more_unreadable,
    )


def survey_of_document(document: SurveyDocument) -> Survey:
    """The survey of a document.

    Raises:
        TapeError: ``invalid``, ``damaged`` or ``limit`` if it contradicts the format or itself.
    """
    survey = Survey()
    for one in document.targets:
        target = _read(one)
        digests = {target_digest(head) for head in target.heads.values()}
        if len(digests) != 1:
            raise _wrong("the files of one target record several")
        digest = digests.pop()
        if digest in survey.targets:
            raise _wrong("two targets are one")
        survey.targets[digest] = target
    survey.more_unreadable = document.more_unreadable
    for listed in document.unreadable:
        survey.add_unreadable(Listed(*listed))
    return survey


def _wrong(reason: str) -> TapeError:
    return TapeError("invalid", reason)


# --- writing --------------------------------------------------------------------------------------


def _listed(one: Listed) -> ListedDocument:
    return one.path, one.offset, one.member, one.kind, one.reason, one.advice


class _Places:
    """Numbers for things that stand in a list once."""

    def __init__(self, things: Iterable[bytes]) -> None:
        self.things = tuple(sorted(set(things)))
        self.number = {thing: number for number, thing in enumerate(self.things)}


def _written(target: TargetSurvey) -> TargetDocument:
    target.settle()
    tables = [target.final, *target.unsealed.values()]
    rows = [row for table in tables for row in table]
    doubtful = [group for counts in target.doubtful.values() for group in counts.groups]
    kinds = list(target.kinds)
    parts = _Places(
        [part for row in rows for part in (row.structure, row.leaves)]
        + [kind.structure for kind, *_ in (*kinds, *doubtful)]
    )
    tapes = _Places(ref.tape for row in rows for ref in (row.first, row.last))
    used = {facts.head for facts in target.files.values()}
    # Made one by one while they are written: together they take 5 KB each.
    files: Any = (FileDocument.of(target.files[key]) for key in sorted(target.files))
    return TargetDocument.model_construct(
        heads=tuple(target.heads[digest] for digest in sorted(used)),
        files=files,
        copies=tuple((path, *target.copies[path]) for path in sorted(target.copies)),
        parts=parts.things,
        recordings=tapes.things,
        final=_table(target.final, parts, tapes),
        unsealed=tuple(
            (*key, _table(target.unsealed[key], parts, tapes)) for key in sorted(target.unsealed)
        ),
        kinds=tuple(_kind(one, parts) for one in kinds),
        kinds_limit=target.kinds.limit,
        other_calls=target.kinds.other_calls,
        doubtful=tuple(_doubt(key, target.doubtful[key], parts) for key in sorted(target.doubtful)),
        spare=tuple((*place, _calls(target.spare[place])) for place in sorted(target.spare)),
        damage=tuple(map(_listed, target.listed_damage)),
    )


def _table(table: InputsTable, parts: _Places, tapes: _Places) -> TableDocument:
    return TableDocument.model_construct(
        rows=tuple(
            RowDocument.model_construct(
                structure=parts.number[row.structure],
                leaves=parts.number[row.leaves],
                scalars=row.scalars,
                raised=row.raised,
                calls=row.calls,
                first=(tapes.number[row.first.tape], row.first.number),
                last=(tapes.number[row.last.tape], row.last.number),
                ranges=row.ranges,
            )
            for row in table
        ),
        limit=table.limit,
    )


def _kind(counts: KindCounts, parts: _Places) -> KindDocument:
    kind, calls, leaves, scalars = counts
    return KindDocument.model_construct(
        structure=parts.number[kind.structure],
        calls=calls,
        dtypes=kind.dtypes,
        leaves=tuple(tuple(map(_axis, leaf)) for leaf in leaves),
        scalars=tuple(None if one is None else _axis(one) for one in scalars),
    )


def _axis(values: Values) -> AxisDocument:
    return values.min, values.max, tuple(values.sizes.items()), values.other_calls


def _doubt(key: FileKey, counts: FileCounts, parts: _Places) -> DoubtfulDocument:
    groups = sorted(counts.groups, key=lambda group: group[0])
    return DoubtfulDocument.model_construct(
        **key._asdict(),
        kinds=tuple(_kind(one, parts) for one in groups),
        other_calls=counts.other_calls,
        short=_calls(counts.short),
        spare=_calls(counts.spare),
    )


def _calls(calls: Mapping[bytes, int]) -> tuple[tuple[bytes, int], ...]:
    return tuple(sorted(calls.items()))


# --- reading --------------------------------------------------------------------------------------


def _read(found: TargetDocument) -> TargetSurvey:
    target = TargetSurvey()
    target.heads = {digest_of(head): head for head in found.heads}
    for file in found.files:
        facts = file.facts()
        if facts.head not in target.heads or not target.place(facts):
            raise _wrong("a file without a manifest, or one that stands there twice")
    for path, tape, part, digest in found.copies:
        target.copies[path] = FileKey(tape, part, digest)
    target.final = _read_table(found.final, found)
    target.unsealed = {
        FileKey(tape, part, digest): _read_table(table, found)
        for tape, part, digest, table in found.unsealed
    }
    if target.unsealed.keys() != {k for k, facts in target.files.items() if not facts.sealed}:
        raise _wrong("the inputs of other files than those that are not sealed")
    target.kinds = KindTable(_read_kinds(found.kinds, found), found.other_calls, found.kinds_limit)
    for one in found.doubtful:
        target.doubtful[FileKey(one.tape, one.part, one.digest)] = FileCounts(
            tuple(_read_kinds(one.kinds, found)), one.other_calls, dict(one.short), dict(one.spare)
        )
    if not target.doubtful.keys() <= target.files.keys():
        raise _wrong("the counters of a file that is not there")
    target.spare = {(tape, part): dict(calls) for tape, part, calls in found.spare}
    target.add_damage(tuple(Listed(*one) for one in found.damage))
    _check_calls(target)
    return target


def _check_calls(target: TargetSurvey) -> None:
    """Each row has calls of these files, and no more than they have."""
    tapes = {key.tape for key in target.files}
    sealed = sum(facts.calls for facts in target.files.values() if facts.sealed)
    tables = [(sealed, target.final)]
    tables += [(target.files[key].calls, table) for key, table in target.unsealed.items()]
    for calls, table in tables:
        if table.calls > calls:
            raise _wrong(f"inputs of {table.calls} calls, of files with {calls}")
        for row in table:
            if not {row.first.tape, row.last.tape} <= tapes:
                raise _wrong("inputs of a recording that is not there")


def _read_table(table: TableDocument, found: TargetDocument) -> InputsTable:
    return InputsTable((_read_row(row, found) for row in table.rows), table.limit)


def _read_row(row: RowDocument, found: TargetDocument) -> SurveyedRow:
    def ref(call: tuple[int, int]) -> CallRef:
        return CallRef(_at(found.recordings, call[0]), call[1])

    first, last = ref(row.first), ref(row.last)
    if last < first or any(low > high for _, low, high in row.ranges):
        raise _wrong("a row ends before it begins")
    return sound_row(
        _at(found.parts, row.structure), _at(found.parts, row.leaves), row.scalars, row.raised,
        row.calls, first, last, row.ranges,
    )  # fmt: skip


def _at(things: Sequence[bytes], number: int) -> bytes:
    if number >= len(things):
        raise _wrong("a number of nothing")
    return things[number]


def _read_kinds(kinds: Sequence[KindDocument], found: TargetDocument) -> Iterator[KindCounts]:
    for kind in kinds:
        group = Group(
            structure=_at(found.parts, kind.structure),
            calls=kind.calls,
            dtypes=kind.dtypes,
            leaves=tuple(tuple(map(_read_axis, leaf)) for leaf in kind.leaves),
            scalars=tuple(None if one is None else _read_axis(one) for one in kind.scalars),
        )
        yield bare(CountedGroup.of(group))


def _read_axis(axis: AxisDocument) -> Axis:
    low, high, sizes, other_calls = axis
    return Axis(min=low, max=high, sizes=sizes, other_calls=other_calls)
