"""The manifest of a tape and the records of its calls, as models that are encoded and decoded.

The manifest has the steps that made the tape from other tapes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter, field_validator, model_validator
from typing_extensions import Self

from calltape_schema.bounds import (
    MAX_ALIASES,
    MAX_NODES,
    MAX_OPTIONS,
    MAX_OUTSIDE,
    MAX_PARAMETERS,
    MAX_PARTS,
    MAX_RANK,
    MAX_REFERENCES,
    MAX_SOURCES,
    MAX_STEPS,
    allowed,
    most,
)
from calltape_schema.errors import TapeError
from calltape_schema.fields import (
    Count,
    Features,
    Int64,
    Many,
    ManyRuns,
    Maybe,
    Nanoseconds,
    Record,
    Runs,
    Seconds,
    Short,
    TapeId,
    Text,
    TypeName,
    expect_known,
    merged_runs,
    validated,
)
from calltape_schema.packing import is_array, is_map, open_envelope, pack, seal_envelope, unpack
from calltape_schema.sections import STORED, ZLIB, steps_of
from calltape_schema.tree import Leaf, Scalar, Structure, decode_leaves, decode_structure

FORMAT = "calltape"
VERSION = 1
MINOR = 0  # until the first release: there are no tapes of a draft


class Producer(Record):
    """The versions of the software that wrote the tape. ``host`` is set only if the user asked for
    it."""

    calltape: Short
    torch: Maybe[Short] = None
    python: Maybe[Short] = None
    platform: Maybe[Short] = None
    transformers: Maybe[Short] = None
    host: Maybe[Short] = None


class Parameter(Record):
    """One parameter of the recorded method, in the terms of ``inspect``. If ``default`` is None,
    there are three cases: without a default, ``has_default`` is False; if the default is not on the
    tape, ``default_missing`` is True; otherwise, the default is None."""

    name: Short
    kind: Literal[
        "POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "KEYWORD_ONLY", "VAR_KEYWORD"
    ]
    has_default: bool = False
    default: Maybe[Scalar] = None
    default_missing: bool = False

    @field_validator("default")
    @classmethod
    def _is_the_nan(cls, default: Any) -> Any:
        # No NaN equals another, but each equals itself: so signatures with one are equal.
        return math.nan if isinstance(default, float) and math.isnan(default) else default


class Target(Record):
    """What was recorded: the class of the object, the method, how its calls were seen, and its
    signature (None if Python could not determine it). For a function, ``module`` is the name of the
    Python module in which it is called, and the class is that of modules. ``outside`` names module
    variables that its code reads and that are set elsewhere; their values are not on the tape."""

    type: TypeName
    method: Short
    via: Literal["hook", "method"]
    signature: Maybe[Annotated[Many[Parameter], Field(max_length=MAX_PARAMETERS)]] = None
    module: Maybe[Short] = None
    outside: Maybe[Annotated[Many[Short], Field(max_length=MAX_OUTSIDE)]] = None

    @property
    def name(self) -> str:
        """``app:Llama.forward``, or of a function ``app:generate``."""
        if self.module is None:
            return f"{self.type}.{self.method}"
        return f"{self.module}:{self.method}"

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        parameters = self.signature or ()
        if len({parameter.name for parameter in parameters}) != len(parameters):
            raise ValueError("a signature with the same name twice")
        kinds = [parameter.kind for parameter in parameters]
        if kinds.count("VAR_POSITIONAL") > 1 or kinds.count("VAR_KEYWORD") > 1:
            raise ValueError("a signature with two of *args or of **kwargs")
        return self


class FlightPolicy(Record):
    """How many calls a flight recorder holds in memory, and how many bytes of their tensors."""

    calls: Count
    bytes: Count


class Policy(Record):
    """What the recorder was asked to keep.

    ``keep`` says which calls, as text for people. ``leaf_values`` says for patterns of leaf paths
    whether the bytes are kept; the last pattern that matches decides. Sizes are in bytes, times in
    seconds.
    """

    outputs: bool = True
    values: Literal["all", "none"] = "all"
    leaf_values: Annotated[Many[tuple[Short, Literal["all", "none"]]], Field(max_length=1000)] = ()
    keep: Maybe[Annotated[str, Field(max_length=4096)]] = None
    flight_recorder: Maybe[FlightPolicy] = None
    write_ahead: bool = False
    max_calls: Maybe[Count] = None
    max_seconds: Maybe[Seconds] = None
    max_share: Maybe[Annotated[float, Field(gt=0, le=1)]] = None
    max_queue_bytes: Maybe[Count] = None
    max_disk_bytes: Maybe[Count] = None
    min_free_bytes: Maybe[Count] = None
    segment_bytes: Maybe[Count] = None
    segment_seconds: Maybe[Seconds] = None
    when_full: Maybe[Literal["stop", "delete_oldest"]] = None


class Segment(Record):
    """Which file of a recording this is. ``number`` counts its files from 0. ``first_call`` is the
    number of the first call that was written to the file; calls with lower numbers may follow."""

    number: Count = 0
    first_call: Count = 0


class Observed(Record):
    """When the recorder began to see calls, if there may have been calls before: Unix time in
    nanoseconds, and what happened then (``when the target was found``)."""

    since_ns: Nanoseconds
    reason: Short


class Rank(Record):
    """Which process of a ``torch.distributed`` job recorded, and how many there are."""

    number: Count
    of: Annotated[Count, Field(ge=2)]

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.number >= self.of:
            raise ValueError(f"rank {self.number} of {self.of}")
        return self


Redacted = Literal["all", "part"]
"""How much of a tape was redacted."""

_TAKES_ONLY_SOURCES = frozenset({"filter", "merge", "recover", "minimise", "replay", "survey"})
"""Steps that add nothing unredacted: their result is redacted if all of their sources are."""


FileName = Annotated[Short, Field(pattern=r"^[^/]*\z")]
"""A name without a folder."""


class Source(Record):
    """A recording that a step read.

    Attributes:
        tape: its id.
        files: the names of its files, without their folders.
        other_files: how many more files it had.
        calls: how many calls these files have, each counted once.
        left_out: how many of these calls were not selected; None if the step did not know that when
            it began. For corrupted calls, see the coverage of the result.
        first: call ``n`` of it is call ``first + n`` of the result.
        redacted: whether everything that was read from it had been redacted before, or only a part;
            None for nothing.
        host: the host that recorded it, if it says so (of a survey only).
        parts: whose calls a survey has: the first and the last file number of each run of its
            files, ascending. None means all files.
    """

    tape: TapeId
    files: Annotated[Many[FileName], Field(max_length=16)] = ()
    other_files: Count = 0
    calls: Count = 0
    left_out: Maybe[Count] = None
    first: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0
    redacted: Maybe[Redacted] = None
    host: Maybe[Short] = None
    parts: Maybe[Annotated[ManyRuns, Field(max_length=MAX_PARTS)]] = None

    def shares(self, tape: bytes, parts: Runs | None) -> bool:
        """Whether it includes some files of a recording.

        Args:
            tape: the id of the recording.
            parts: the numbers of the files, as in :attr:`parts`.
        """
        if tape != self.tape:
            return False
        if self.parts is None or parts is None:
            return True
        return any(a <= last and first <= b for a, b in self.parts for first, last in parts)


def joined_parts(parts: Iterable[tuple[int, int]]) -> Runs:
    """Runs of numbers as a :class:`Source` has them. Of too many runs, those with the smallest gaps
    between them become one."""
    runs = merged_runs(parts)
    while len(runs) > MAX_PARTS:
        at = min(range(1, len(runs)), key=lambda at: runs[at][0] - runs[at - 1][1])
        runs[at - 1 : at + 1] = [(runs[at - 1][0], runs[at][1])]
    return tuple(runs)


class Step(Record):
    """One operation that made or changed the tape.

    Attributes:
        verb: what was done: ``filter``, ``merge``, ...
        tool, version: the program that did it.
        tape: the id of the resulting tape.
        options: the options of the operation, as pairs of a name and a text.
        sources: the recordings that it read, in the order of the result.
    """

    verb: Short
    tool: Short
    version: Short
    tape: TapeId
    options: Annotated[Many[tuple[Short, Short]], Field(max_length=MAX_OPTIONS)] = ()
    sources: Annotated[Many[Source], Field(max_length=MAX_SOURCES)] = ()

    @model_validator(mode="after")
    def _sources_are_distinct(self) -> Self:
        if len({source.tape for source in self.sources}) != len(self.sources):
            raise ValueError("a step that read the same recording twice")
        return self


class Manifest(Record):
    """The first member of a tape. ``created_ns`` is Unix time in nanoseconds. ``history`` lists
    what was done to the tape since, the oldest step first; None for a tape as it was recorded."""

    format: Literal["calltape"]
    version: Annotated[int, Field(ge=1)]
    minor: Count = 0
    tape: TapeId
    requires: Features = ()
    created_ns: Nanoseconds
    producer: Producer
    target: Maybe[Target] = None
    policy: Policy = Policy()
    segment: Maybe[Segment] = None
    observed: Maybe[Observed] = None
    rank: Maybe[Rank] = None
    history: Maybe[Annotated[Many[Step], Field(max_length=MAX_STEPS)]] = None


class Range(Record):
    """The smallest and the largest element of an integer leaf. Readers can make up values in this
    range."""

    leaf: Annotated[int, Field(ge=0, lt=MAX_NODES)]
    min: Int64
    max: Int64

    @model_validator(mode="after")
    def _has_an_element(self) -> Self:
        if self.min > self.max:
            raise ValueError("a range without an element")
        return self


class Tree(Record):
    """The arguments or the outputs of one call. ``structure`` and ``leaves`` are encoded documents,
    so that equal ones are decoded only once; :meth:`spec` and :meth:`facts` decode them."""

    structure: bytes
    leaves: bytes
    scalars: Annotated[Many[Any], Field(max_length=MAX_NODES)] = ()
    ranges: Annotated[Many[Range], Field(max_length=MAX_NODES)] = ()

    def spec(self) -> Structure:
        """The decoded structure, after checking that it fits the leaves and scalars of this tree.

        Raises:
            TapeError: ``invalid`` or ``limit``.
        """
        spec = decode_structure(self.structure)
        times = allowed()  # what fits under some limits may not under lower ones
        if vars(self).get("_fits", times + 1) > times:  # thousands of calls may share a tree
            self._check(spec)
            vars(self)["_fits"] = times
        return spec

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        tree = super().model_copy(update=update, deep=deep)
        vars(tree).pop("_fits", None)
        return tree

    def _check(self, spec: Structure) -> None:
        facts = self.facts()
        if spec.leaves != len(facts) or spec.scalars != len(self.scalars):
            raise TapeError("invalid", "the structure does not fit its leaves and scalars")
        if spec.leaves > MAX_ALIASES and spec.leaves > most(MAX_ALIASES):
            shared = Counter(leaf.key for leaf in facts if leaf.key is not None)
            if max(shared.values(), default=0) > most(MAX_ALIASES):
                reason = f"more than {most(MAX_ALIASES)} leaves have the same bytes"
                raise TapeError("limit", reason)
        if self.ranges and len({span.leaf for span in self.ranges}) != len(self.ranges):
            raise TapeError("invalid", "two ranges of a leaf")
        for span in self.ranges:
            if span.leaf >= spec.leaves:
                raise TapeError("invalid", "a range of a leaf that the tree does not have")
            if "int" not in facts[span.leaf].dtype:
                raise TapeError("invalid", "a range of a leaf that has no integers")
        for index, python_type in spec.scalar_types:
            if type(self.scalars[index]) is not python_type:
                actual = type(self.scalars[index]).__name__
                reason = f"scalar {index} is a {actual}, but the structure has another type there"
                raise TapeError("invalid", reason)
        if spec.lengths and any(self.scalars[index] < 0 for index in spec.lengths):
            raise TapeError("invalid", "a text of a negative length")

    def facts(self) -> tuple[Leaf, ...]:
        """The decoded leaves."""
        return decode_leaves(self.leaves)

    @model_validator(mode="after")
    def _scalars_are_plain(self) -> Self:
        for value in self.scalars:
            if is_array(value):
                if len(value) != 2 or any(type(part) is not float for part in value):
                    raise ValueError("an array among the scalars is not a complex number")
            elif type(value) not in (int, float, str, bytes):
                raise ValueError(f"a {type(value).__name__} among the scalars")
        return self


class BlobFacts(Record):
    """Where the tensors of a call are, and the checksums of these bytes.

    Attributes:
        back: how many bytes the header of the blob is before that of the group; 0 for a blob that
            is not on a tape yet.
        size: the size of its content, in bytes.
        checksum: the checksum of its content.
        algorithm: the algorithm of the checksums; 0 is the CRC-32 of zlib.
        steps: the checksums of the first 1, 2, 3, ... MiB; None if there are none.
        codec: the algorithm that compressed the content, as for a section.
        length: how many bytes it inflates to; None if it is not compressed.
    """

    back: Count
    size: Count
    checksum: Annotated[int, Field(ge=0, lt=2**32)]
    algorithm: Count = 0
    steps: Maybe[bytes] = None
    codec: Count = STORED
    length: Maybe[Count] = None

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.steps is not None and len(self.steps) != 4 * steps_of(self.size):
            raise ValueError(f"{len(self.steps)} bytes of steps for a blob of {self.size}")
        if (self.codec == STORED) != (self.length is None):
            raise ValueError("not either a codec or no length")
        return self

    def sum_of(self, step: int) -> int:
        """The checksum of the content up to the end of a step. That of the last step covers
        everything."""
        steps = self.steps or b""
        at = 4 * step
        return int.from_bytes(steps[at : at + 4], "little") if at < len(steps) else self.checksum

    @property
    def nbytes(self) -> int:
        """The size of the safetensors file in bytes, whether or not it is compressed."""
        return self.size if self.length is None else self.length

    @property
    def is_supported(self) -> bool:
        """Whether this reader knows the algorithms of its checksums and compression."""
        return self.algorithm == 0 and self.codec in (STORED, ZLIB)


MAX_ERROR_CHARACTERS = 64 * 1024
"""The calltape recorder cuts the message of an exception to this: some print a whole tensor."""
MAX_UNHELD_ERROR_CHARACTERS = 500
"""It cuts a message to this that finds no room in its queue."""


class ModelError(Record):
    """An exception that the recorded call raised."""

    type: TypeName
    message: Text


Axis: TypeAlias = Annotated[int, Field(ge=0, le=MAX_RANK)]
Reference = tuple[Short, Count, Short] | tuple[Short, Count, Short, Axis]
"""A key in the leaves of a call, the number of an earlier call, and the key of that. With an axis,
what the own blob has for the key follows along it."""
Elsewhere: TypeAlias = tuple[int, str, int | None]
"""A reference without its own key."""


class CallRecord(Record):
    """The record of one call. The call exists if this record and its blob are complete.

    Attributes:
        call: the number of the call, counting all calls that were *seen*, from 0. A missing number
            is a call that was not kept.
        time_ns: Unix time at the start, in nanoseconds; ``duration_ns`` is how long the call took.
        thread: Python's identifier of the thread.
        outputs: None if the call raised, or if ``outputs_missing`` says why.
        outputs_missing: why outputs are missing. If there are ``outputs``, a part is missing: of a
            stream, only the first chunks were kept.
        at: the tensors whose bytes, or whose first bytes, are in an earlier call.
    """

    tape: TapeId
    call: Count
    requires: Features = ()
    time_ns: Nanoseconds
    duration_ns: Maybe[Nanoseconds] = None
    thread: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    inputs: Tree
    outputs: Maybe[Tree] = None
    outputs_missing: Maybe[Short] = None
    error: Maybe[ModelError] = None
    blob: Maybe[BlobFacts] = None
    at: Annotated[Many[Reference], Field(max_length=MAX_REFERENCES)] = ()

    @model_validator(mode="after")
    def _returned_or_raised(self) -> Self:
        if self.error is not None and self.outputs is not None:
            raise ValueError("the outputs of a call that raised")
        return self

    @cached_property
    def elsewhere(self) -> dict[str, Elsewhere]:
        """For each key whose bytes are in an earlier call: that call, the key there, and the axis
        along which this call's own bytes follow (None if it has none)."""
        return {ref[0]: (ref[1], ref[2], ref[3] if len(ref) == 4 else None) for ref in self.at}


_manifests: TypeAdapter[Manifest] = TypeAdapter(Manifest)
_calls: TypeAdapter[CallRecord] = TypeAdapter(CallRecord)


def manifest_document(manifest: Manifest) -> bytes:
    """The document in the first member of a tape, which its end repeats."""
    return pack(manifest.model_dump(exclude_none=True, exclude={"requires"}))


def encode_manifest(manifest: Manifest) -> bytes:
    """The content of the member ``tape.msgpack``."""
    return seal_envelope(manifest_document(manifest))


def decode_manifest(data: bytes) -> Manifest:
    """The manifest of a tape, from the content of its member.

    Raises:
        TapeError: as :func:`manifest_of`.
    """
    return manifest_of(open_envelope(data))


def manifest_of(payload: bytes) -> Manifest:
    """The manifest of a tape, from its document.

    Raises:
        TapeError: ``not_a_tape``, ``version`` for a newer major version (the message names it),
            ``unsupported``, ``damaged`` or ``invalid``.
    """
    document = unpack(payload)
    if not is_map(document):
        raise TapeError("damaged", "the document of the manifest is not a map")
    if document.get("format") != FORMAT:
        raise TapeError("not_a_tape", "the manifest does not say that this is a tape of calltape")
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise TapeError(
            "version", f"the tape has format version {version}; this reader knows {VERSION}"
        )
    expect_known(document, "the tape")
    return validated(_manifests, document, "manifest")


def decode_call(document: Any) -> CallRecord:
    """The record of one call, from plain data.

    Raises:
        TapeError: ``unsupported`` or ``invalid``.
    """
    expect_known(document, "the record of a call")
    return validated(_calls, document, "call record")


def redacted_of_steps(steps: Sequence[Step]) -> Redacted | None:
    """How much of a tape was redacted, as its history says, the oldest step first; None for
    nothing."""
    if not steps:
        return None
    last = steps[-1]
    if last.verb == "redact":
        return "all"
    of_sources = redacted_of_all(source.redacted for source in last.sources)
    if of_sources == "all" and last.verb not in _TAKES_ONLY_SOURCES:
        return "part"  # other steps write what was not redacted: new outputs, or something unknown
    return of_sources


def redacted_of_all(parts: Iterable[Redacted | None]) -> Redacted | None:
    """How much of a whole was redacted, from how much of each part was; None for nothing."""
    degrees = set(parts)
    if degrees <= {None}:
        return None
    return "all" if degrees == {"all"} else "part"
