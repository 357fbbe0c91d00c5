"""The form of a survey in JSON, as models that validate it. Its parts are those of
:class:`~calltape_analyzer.surveying.target_survey.TargetSurvey`; bytes are base64, and what many
rows share stands in a list, once."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from calltape_analyzer.surveying.file_facts import FileFacts, FileKey
from calltape_analyzer.surveying.inputs_table import MAX_ROWS
from calltape_schema.endings import Coverage, Dump
from calltape_schema.fields import Count, Int64, Many, Nanoseconds, Short, TapeId
from calltape_schema.records import Observed, Segment
from calltape_schema.traffic import MAX_SIZES

__all__ = [
    "AxisDocument", "CallDocument", "DoubtfulDocument", "FileDocument", "KindDocument",
    "ListedDocument", "RowDocument", "SurveyDocument", "TableDocument", "TargetDocument",
]  # fmt: skip

Digest = Annotated[bytes, Field(min_length=16, max_length=16)]
Place = Annotated[int, Field(ge=0, le=2**32)]
Text = Annotated[str, Field(max_length=65_536)]
Calls: TypeAlias = Many[tuple[bytes, Count]]
"""By digest of a kind, how many calls."""
ListedDocument: TypeAlias = tuple[Text, int, Text, Text, Text, Text]
"""The fields of :class:`~calltape_analyzer.surveying.file_survey.Listed`."""


ABSENT: Any = object()
"""The default of a field that must be there. A missing field would be an error of pydantic, which
holds all that the model was made of, as Python objects: thirty of them take gigabytes."""


class Document(BaseModel):
    """The base class of these models."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64"
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if any(value is ABSENT for value in vars(self).values()):
            raise ValueError("a field is missing")
        return self


class ObservedDocument(Document):
    """The fields of :class:`~calltape_schema.records.Observed`."""

    since_ns: Nanoseconds = ABSENT
    reason: Short = ABSENT


class DumpDocument(Document):
    """The fields of :class:`~calltape_schema.endings.Dump`."""

    time_ns: Nanoseconds = ABSENT
    reason: Short = ABSENT
    calls: Count = ABSENT


class FileDocument(Document):
    """One file whose calls count."""

    tape: TapeId = ABSENT
    part: Count = ABSENT
    digest: Digest = ABSENT
    path: Text = ABSENT
    head: Digest = ABSENT
    nbytes: Count = ABSENT
    created_ns: Nanoseconds = ABSENT
    segment: Segment | None = ABSENT
    observed: ObservedDocument | None = ABSENT
    closed_ns: Nanoseconds | None = ABSENT
    continues: bool | None = ABSENT
    dumps: Annotated[Many[DumpDocument], Field(max_length=1000)] = ABSENT
    calls: Count = ABSENT
    coverage: Coverage = ABSENT
    first_call: Count | None = ABSENT
    last_call: Count | None = ABSENT
    first_ns: Nanoseconds | None = ABSENT
    last_ns: Nanoseconds | None = ABSENT
    raised: Count = ABSENT
    tensor_bytes: Count = ABSENT
    unfinished: Count = ABSENT
    is_ahead: bool = ABSENT
    scanned: bool = ABSENT
    counted: bool = ABSENT
    damaged: Count = ABSENT

    @classmethod
    def of(cls, facts: FileFacts) -> FileDocument:
        """The form of a file in JSON."""
        own = facts._asdict()
        return cls.model_construct(**own.pop("key")._asdict(), **own)

    def facts(self) -> FileFacts:
        """The file of this form."""
        own = {name: getattr(self, name) for name in FileFacts._fields if name != "key"}
        own["dumps"] = tuple(Dump(**dict(one)) for one in self.dumps)
        if self.observed is not None:
            own["observed"] = Observed(**dict(self.observed))
        return FileFacts(FileKey(self.tape, self.part, self.digest), **own)


CallDocument: TypeAlias = tuple[Place, Count]
"""The number of a recording in ``recordings``, and the number of the call."""


class RowDocument(Document):
    """Distinct inputs. Structure and leaves are places in ``parts``."""

    structure: Place = ABSENT
    leaves: Place = ABSENT
    scalars: bytes = ABSENT
    raised: bool = ABSENT
    calls: Annotated[int, Field(ge=1, le=2**63 - 1)] = ABSENT
    first: CallDocument = ABSENT
    last: CallDocument = ABSENT
    ranges: Annotated[Many[tuple[Place, Int64, Int64]], Field(max_length=100_000)] = ()


class TableDocument(Document):
    """The inputs of all sealed files, or of one that is not sealed."""

    rows: Annotated[Many[RowDocument], Field(max_length=MAX_ROWS)] = ABSENT
    limit: Digest | None = None


AxisDocument: TypeAlias = tuple[
    Int64, Int64, Annotated[Many[tuple[Int64, Count]], Field(max_length=MAX_SIZES)], Count
]


class KindDocument(Document):
    """Counted calls of one kind. The structure is a place in ``parts``."""

    structure: Place = ABSENT
    calls: Count = ABSENT
    dtypes: Annotated[Many[Short], Field(max_length=100_000)] = ABSENT
    leaves: Annotated[Many[Many[AxisDocument]], Field(max_length=100_000)] = ABSENT
    scalars: Annotated[Many[AxisDocument | None], Field(max_length=100_000)] = ABSENT


class DoubtfulDocument(Document):
    """The counters of a file with calls that are not counted there."""

    tape: TapeId = ABSENT
    part: Count = ABSENT
    digest: Digest = ABSENT
    kinds: Many[KindDocument] = ABSENT
    other_calls: Count = ABSENT
    short: Calls = ABSENT
    spare: Calls = ABSENT


class TargetDocument(Document):
    """What was recorded of one target."""

    heads: Many[bytes] = ABSENT
    files: Many[FileDocument] = ABSENT
    copies: Many[tuple[Text, TapeId, Count, Digest]] = ABSENT
    parts: Many[bytes] = ABSENT
    recordings: Many[TapeId] = ABSENT
    final: TableDocument = ABSENT
    unsealed: Many[tuple[TapeId, Count, Digest, TableDocument]] = ABSENT
    kinds: Many[KindDocument] = ABSENT
    kinds_limit: Digest | None = ABSENT
    other_calls: Count = ABSENT
    doubtful: Many[DoubtfulDocument] = ABSENT
    spare: Many[tuple[TapeId, Count, Calls]] = ABSENT
    damage: Annotated[Many[ListedDocument], Field(max_length=2000)] = ABSENT


class SurveyDocument(Document):
    """A whole survey."""

    format: Literal["calltape-survey"] = ABSENT
    version: Literal[1] = ABSENT
    targets: Many[TargetDocument] = ABSENT
    unreadable: Many[ListedDocument] = ()
    more_unreadable: Count = 0
