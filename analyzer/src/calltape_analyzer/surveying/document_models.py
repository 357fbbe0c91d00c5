"""The form of a survey in JSON, as models that validate it. Its parts are those of
:class:`~calltape_analyzer.surveying.target_survey.TargetSurvey`; bytes are base64, and what many
rows share stands in a list, once."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field

from calltape_analyzer.surveying.file_facts import FileFacts, FileKey
from calltape_analyzer.surveying.inputs_table import MAX_ROWS
from calltape_schema.endings import Coverage, Dump
from calltape_schema.fields import Count, Int64, Nanoseconds, Short, TapeId
from calltape_schema.records import Observed, Segment
from calltape_schema.traffic import MAX_SIZES

__all__ = [
    "AxisDocument", "CallDocument", "DoubtfulDocument", "FileDocument", "KindDocument",
    "ListedDocument", "RowDocument", "SurveyDocument", "TableDocument", "TargetDocument",
]  # fmt: skip

Digest = Annotated[bytes, Field(min_length=16, max_length=16)]
Place = Annotated[int, Field(ge=0, le=2**32)]
Text = Annotated[str, Field(max_length=65_536)]
T = TypeVar("T")
Many: TypeAlias = Annotated[tuple[T, ...], FailFast()]
"""Any number of things. The first that is wrong ends the check: an error for each of millions would
take gigabytes."""
Calls: TypeAlias = Many[tuple[bytes, Count]]
"""By digest of a kind, how many calls."""
ListedDocument: TypeAlias = tuple[Text, int, Text, Text, Text, Text]
"""The fields of :class:`~calltape_analyzer.surveying.file_survey.Listed`."""


class Document(BaseModel):
    """The base class of these models."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64"
    )


class FileDocument(Document):
    """One file whose calls count."""

    tape: TapeId
    part: Count
    digest: Digest
    path: Text
    head: Digest
    nbytes: Count
    created_ns: Nanoseconds
    segment: Segment | None
    observed: Observed | None
    closed_ns: Nanoseconds | None
    continues: bool | None
    dumps: Annotated[Many[Dump], Field(max_length=1000)]
    calls: Count
    coverage: Coverage
    first_call: Count | None
    last_call: Count | None
    first_ns: Nanoseconds | None
    last_ns: Nanoseconds | None
    raised: Count
    tensor_bytes: Count
    unfinished: Count
    is_ahead: bool
    scanned: bool
    counted: bool
    damaged: Count

    @classmethod
    def of(cls, facts: FileFacts) -> FileDocument:
        """The form of a file in JSON."""
        own = facts._asdict()
        return cls.model_construct(**own.pop("key")._asdict(), **own)

    def facts(self) -> FileFacts:
        """The file of this form."""
        own = {name: getattr(self, name) for name in FileFacts._fields if name != "key"}
        return FileFacts(FileKey(self.tape, self.part, self.digest), **own)


CallDocument: TypeAlias = tuple[Place, Count]
"""The number of a recording in ``recordings``, and the number of the call."""


class RowDocument(Document):
    """Distinct inputs. Structure and leaves are places in ``parts``."""

    structure: Place
    leaves: Place
    scalars: bytes
    raised: bool
    calls: Annotated[int, Field(ge=1, le=2**63 - 1)]
    first: CallDocument
    last: CallDocument
    ranges: Annotated[Many[tuple[Place, Int64, Int64]], Field(max_length=100_000)] = ()


class TableDocument(Document):
    """The inputs of all sealed files, or of one that is not sealed."""

    rows: Annotated[Many[RowDocument], Field(max_length=MAX_ROWS)]
    limit: Digest | None = None


AxisDocument: TypeAlias = tuple[
    Int64, Int64, Annotated[Many[tuple[Int64, Count]], Field(max_length=MAX_SIZES)], Count
]


class KindDocument(Document):
    """Counted calls of one kind. The structure is a place in ``parts``."""

    structure: Place
    calls: Count
    dtypes: Annotated[Many[Short], Field(max_length=100_000)]
    leaves: Annotated[Many[Many[AxisDocument]], Field(max_length=100_000)]
    scalars: Annotated[Many[AxisDocument | None], Field(max_length=100_000)]


class DoubtfulDocument(Document):
    """The counters of a file with calls that are not counted there."""

    tape: TapeId
    part: Count
    digest: Digest
    kinds: Many[KindDocument]
    other_calls: Count
    short: Calls
    spare: Calls


class TargetDocument(Document):
    """What was recorded of one target."""

    heads: Many[bytes]
    files: Many[FileDocument]
    copies: Many[tuple[Text, TapeId, Count, Digest]]
    parts: Many[bytes]
    recordings: Many[TapeId]
    final: TableDocument
    unsealed: Many[tuple[TapeId, Count, Digest, TableDocument]]
    kinds: Many[KindDocument]
    kinds_limit: Digest | None
    other_calls: Count
    doubtful: Many[DoubtfulDocument]
    spare: Many[tuple[TapeId, Count, Calls]]
    damage: Annotated[Many[ListedDocument], Field(max_length=2000)]


class SurveyDocument(Document):
    """A whole survey."""

    format: Literal["calltape-survey"]
    version: Literal[1]
    targets: Many[TargetDocument]
    unreadable: Many[ListedDocument] = ()
    more_unreadable: Count = 0
