"""The msgpack members of a tape: manifest, one record per call, trailer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from typing_extensions import Self

from calltape_schema.errors import TapeError
from calltape_schema.fields import Count, Int64, Nanoseconds, Record, Seconds, Short, TapeId
from calltape_schema.interning import MAX_NODES, Text, TypeName, problems_of
from calltape_schema.leaves import Leaf, decode_leaves
from calltape_schema.packing import is_array, is_map, open_envelope, pack, seal_envelope, unpack
from calltape_schema.traffic import Traffic
from calltape_schema.tree import Scalar, Structure, decode_structure

__all__ = [
    "FORMAT",
    "MINOR",
    "UNWANTED",
    "VERSION",
    "BlobFacts",
    "CallRecord",
    "Coverage",
    "Dump",
    "FlightPolicy",
    "Manifest",
    "ModelError",
    "Observed",
    "Parameter",
    "Parent",
    "Policy",
    "Producer",
    "Range",
    "Segment",
    "Target",
    "Trailer",
    "Tree",
    "decode_call",
    "decode_manifest",
    "decode_trailer",
    "encode_call",
    "encode_manifest",
    "encode_trailer",
]

FORMAT = "calltape"
VERSION = 1
MINOR = 2

MAX_PARAMETERS = 10_000


class Producer(Record):
    """What wrote the tape. ``host`` only when the user asked for it."""

    calltape: Short
    torch: Short | None = None
    python: Short | None = None
    platform: Short | None = None
    transformers: Short | None = None
    host: Short | None = None


class Parameter(Record):
    """One parameter of the recorded method, in the terms of :mod:`inspect`. ``has_default`` tells a
    default of None from none, and ``default_missing`` one that is not on the tape from None."""

    name: Short
    kind: Literal[
        "POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "KEYWORD_ONLY", "VAR_KEYWORD"
    ]
    has_default: bool = False
    default: Scalar = None
    default_missing: bool = False


class Target(Record):
    """What was recorded: the class of the object, the method, how its calls were seen, and its
    signature (None where Python could not tell it)."""

    type: TypeName
    method: Short
    via: Literal["hook", "method"]
    signature: Annotated[tuple[Parameter, ...], Field(max_length=MAX_PARAMETERS)] | None = None

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
    """How much a flight recorder holds in memory: calls, and bytes of their tensors."""

    calls: Count
    bytes: Count


class Policy(Record):
    """What the recorder was asked to keep.

    ``keep`` tells which calls, as text for people; ``leaf_values`` of which leaves the bytes, by
    pattern, the last that matches deciding. Sizes are in bytes, times in seconds.
    """

    outputs: bool = True
    values: Literal["all", "none"] = "all"
    leaf_values: Annotated[
        tuple[tuple[Short, Literal["all", "none"]], ...], Field(max_length=1000)
    ] = ()
    keep: Annotated[str, Field(max_length=4096)] | None = None
    flight_recorder: FlightPolicy | None = None
    write_ahead: bool = False
    max_calls: Count | None = None
    max_seconds: Seconds | None = None
    max_queue_bytes: Count | None = None
    max_disk_bytes: Count | None = None
    min_free_bytes: Count | None = None
    segment_bytes: Count | None = None
    segment_seconds: Seconds | None = None
    when_full: Literal["stop", "delete_oldest"] | None = None


class Segment(Record):
    """Which part of a recording a file is: ``number`` counts its files from 0, all of which have
    the same tape id; ``first_call`` is the number of the first call that was written to it (one
    that began earlier may end later)."""

    number: Count = 0
    first_call: Count = 0


class Observed(Record):
    """Since when calls were seen, where there may have been some before: Unix time in nanoseconds,
    and what happened then (``when the target was found``)."""

    since_ns: Nanoseconds
    reason: Short


class Manifest(Record):
    """First member of a tape. ``created_ns`` is Unix time in nanoseconds."""

    format: Literal["calltape"]
    version: Annotated[int, Field(ge=1)]
    minor: Count = 0
    tape: TapeId
    created_ns: Nanoseconds
    producer: Producer
    target: Target | None = None
    policy: Policy = Policy()
    segment: Segment | None = None
    observed: Observed | None = None


class Range(Record):
    """Smallest and largest element of an integer leaf, so that made-up values stay in range."""

    leaf: Annotated[int, Field(ge=0, lt=MAX_NODES)]
    min: Int64
    max: Int64


class Tree(Record):
    """Arguments or outputs of one call. ``structure`` and ``leaves`` are msgpack documents of
    their own, so that equal ones are decoded once; use :meth:`spec` and :meth:`facts`."""

    structure: bytes
    leaves: bytes
    scalars: Annotated[tuple[Any, ...], Field(max_length=MAX_NODES)] = ()
    ranges: Annotated[tuple[Range, ...], Field(max_length=MAX_NODES)] = ()

    def spec(self) -> Structure:
        """The decoded, interned structure, which fits this tree's leaves and scalars.

        Raises:
            TapeError: ``invalid`` or ``limit``.
        """
        spec = decode_structure(self.structure)
        if spec.leaves != len(self.facts()) or spec.scalars != len(self.scalars):
            raise TapeError("invalid", "the structure does not fit its leaves and scalars")
        for index, python_type in spec.scalar_types():
            if type(self.scalars[index]) is not python_type:
                found = type(self.scalars[index]).__name__
                reason = f"scalar {index} is a {found} where the structure has another type"
                raise TapeError("invalid", reason)
        return spec

    def facts(self) -> tuple[Leaf, ...]:
        """The decoded, interned leaf facts."""
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
    """Size and zlib CRC-32 of the safetensors member that belongs to a call."""

    size: Count
    crc32: Annotated[int, Field(ge=0, lt=2**32)]


class ModelError(Record):
    """An exception that the recorded call raised."""

    type: TypeName
    message: Text


class Parent(Record):
    """The recorded call that another one ran within: its tape, and its number there."""

    tape: TapeId
    call: Count


class CallRecord(Record):
    """The commit of one call: it exists if this record and the blob it describes are whole.

    ``call`` counts the calls *seen* from 0, so a gap is a call that was not kept. ``time_ns`` is
    Unix time at the start, ``duration_ns`` what the call took, ``thread`` Python's thread ident.
    ``outputs`` is None where the call raised, or where ``outputs_missing`` says why; where both are
    there, a part is missing (of a stream only the first chunks were kept). ``tree`` is the same for
    the calls of nested recorded modules that ran within one, over all tapes.
    """

    tape: TapeId
    call: Count
    time_ns: Nanoseconds
    duration_ns: Nanoseconds | None = None
    thread: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    inputs: Tree
    outputs: Tree | None = None
    outputs_missing: Short | None = None
    tree: Annotated[int, Field(ge=0, le=2**64 - 1)] | None = None
    parent: Parent | None = None
    error: ModelError | None = None
    blob: BlobFacts | None = None


UNWANTED = frozenset(
    ("policy", "paused", "max_calls", "max_seconds", "flight_recorder", "tracing", "not extracted")
)
"""Reasons of calls that nobody asked to be on the tape. All other reasons are of calls that were to
be there: those are lost."""


class Coverage(Record):
    """How much of the traffic is on the tape: ``seen = kept + sum(dropped.values())``. Calls before
    the recorder was attached nobody has seen (:class:`Observed`)."""

    seen: Count = 0
    kept: Count = 0
    dropped: Annotated[dict[Short, Count], Field(max_length=1000)] = Field(default_factory=dict)

    @property
    def unwanted(self) -> dict[str, int]:
        """Of ``dropped``: calls that were not to be kept."""
        return {reason: calls for reason, calls in self.dropped.items() if reason in UNWANTED}

    @property
    def lost(self) -> dict[str, int]:
        """Of ``dropped``: calls that were to be kept, or of which nobody knows."""
        return {reason: calls for reason, calls in self.dropped.items() if reason not in UNWANTED}


class Dump(Record):
    """When the calls of a flight recorder were written, and why."""

    time_ns: Nanoseconds
    reason: Short
    calls: Count


class Trailer(Record):
    """Last member of a sealed tape. ``index`` packs per kept call, in file order, its number and
    the byte offset of its first member's header: two little-endian 64-bit unsigned ints.
    ``traffic`` counts all calls since the file began, kept or not; ``dumps`` are the latest. Where
    the recording ``continues`` in another file, calls that are counted here may be accounted for
    there."""

    tape: TapeId
    closed_ns: Nanoseconds
    coverage: Coverage
    index: bytes = b""
    traffic: Traffic | None = None
    dumps: Annotated[tuple[Dump, ...], Field(max_length=1000)] = ()
    continues: bool | None = None

    @model_validator(mode="after")
    def _index_is_whole(self) -> Self:
        if len(self.index) != 16 * self.coverage.kept:
            raise ValueError(f"an index of {len(self.index)} bytes for {self.coverage.kept} calls")
        return self


R = TypeVar("R", bound=Record)

_manifests: TypeAdapter[Manifest] = TypeAdapter(Manifest)
_calls: TypeAdapter[CallRecord] = TypeAdapter(CallRecord)
_trailers: TypeAdapter[Trailer] = TypeAdapter(Trailer)


def _encode(record: Record) -> bytes:
    return seal_envelope(pack(record.model_dump(exclude_none=True)))


def _decode(adapter: TypeAdapter[R], document: Any, what: str) -> R:
    if not is_map(document):
        raise TapeError("invalid", f"{what} is not a map")
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        problems = problems_of(error)
        raise TapeError("invalid", f"{what} breaks the format", problems=problems) from None


def encode_manifest(manifest: Manifest) -> bytes:
    """Content of the member ``tape.msgpack``."""
    return _encode(manifest)


def encode_trailer(trailer: Trailer) -> bytes:
    """Content of the member ``trailer.msgpack``."""
    return _encode(trailer)


def encode_call(document: dict[str, Any]) -> bytes:
    """Content of a call's msgpack member, from plain data in the form of :class:`CallRecord`.

    Plain data, because this runs for every call: its variable parts were validated when they were
    interned, and building models only to dump them again would be most of the cost.
    """
    return seal_envelope(pack(document))


def decode_manifest(data: bytes) -> Manifest:
    """Manifest of a tape.

    Raises:
        TapeError: ``not_a_tape``, ``version`` for a newer major version (named), ``damaged``,
            ``invalid``.
    """
    document = unpack(open_envelope(data))
    if not is_map(document) or document.get("format") != FORMAT:
        raise TapeError("not_a_tape", "the manifest does not say that this is a calltape")
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise TapeError("version", f"a tape of format version {version}; this reads {VERSION}")
    return _decode(_manifests, document, "manifest")


def decode_call(data: bytes) -> CallRecord:
    """One call's record.

    Raises:
        TapeError: ``damaged``, ``invalid`` or ``limit``.
    """
    return _decode(_calls, unpack(open_envelope(data)), "call record")


def decode_trailer(data: bytes) -> Trailer:
    """Trailer of a sealed tape.

    Raises:
        TapeError: ``damaged``, ``invalid`` or ``limit``.
    """
    return _decode(_trailers, unpack(open_envelope(data)), "trailer")
