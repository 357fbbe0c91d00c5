"""``manifest.json``: what saved programs say of themselves, and which files belong to them.

It may come from a stranger. Nothing in it is run. Its types and sizes are checked here before
anything is made from it, and :mod:`~calltape_analyzer.programs.saving` checks that its parts agree.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import (
    CoreSchema,
    PydanticSerializationError,
    PydanticSerializationUnexpectedValue,
    core_schema,
)
from typing_extensions import TypedDict

from calltape_analyzer.errors import TapeError
from calltape_analyzer.facts import Fact, Note
from calltape_analyzer.observing.contexts import Mode
from calltape_analyzer.observing.groups import SizeSource, TensorFacts
from calltape_analyzer.observing.memory_layout import Shared
from calltape_analyzer.observing.size_table import Column, SizeRow
from calltape_analyzer.programs import conditions
from calltape_analyzer.programs.attempts import Attempt, VariantVerdict
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.programs.untrusted_files import read_regular
from calltape_analyzer.variants.facts import CounterIs, DimensionDecision, Fixed, Reason
from calltape_schema.fields import Many, at_most, problems_of
from calltape_schema.packing import pack, unpack

__all__ = [
    "MANIFEST",
    "SHAPES",
    "FileFacts",
    "ProgramsManifest",
    "SavedCompletion",
    "SavedForm",
    "SavedLayout",
    "SavedProgram",
    "SavedSignature",
    "encode_manifest",
    "read_manifest",
    "within_manifest",
]

MANIFEST, SHAPES = "manifest.json", "shapes.json"
_MAX_BYTES = 64 * 1024 * 1024
_MAX_PROGRAMS = 1000
_MAX_LEAVES = 50_000
_MAX_ROWS = 100_000
_MAX_ZEROS = 1000
_MAX_ATTEMPTS = 100_000
_MAX_NOTES = 10_000
_MAX_PACKED = 32 * 1024 * 1024
_MAX_MAPS = 500_000
"""Most of them are facts, each of which is checked alone; so many take 10 s."""
_MAX_GUARDS = 200_000
"""Characters in the guards of a program, which are evaluated for every call."""


class _FirstMissing:
    """Marks a map that reports only the first of its missing fields. pydantic would make an error
    for each of them, with a copy of everything in the map."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        fields: dict[str, Any] = cast("Any", handler.resolve_ref_schema(schema))["fields"]
        required = [name for name, field in fields.items() if field.get("required", True)]

        def check_fields(value: dict[str, Any]) -> dict[str, Any]:
            missing = next((name for name in required if name not in value), None)
            if missing is not None:
                raise ValueError(f"{missing} is missing")
            return value

        for field in fields.values():
            field["required"] = False
        return core_schema.no_info_after_validator_function(check_fields, schema)


def _from_base64(text: Any) -> bytes:
    if not isinstance(text, str) or len(text) > _MAX_PACKED:
        raise ValueError("no text of base64, or a long one")
    return base64.b64decode(text, validate=True)


Bytes = Annotated[
    bytes,
    PlainValidator(_from_base64),
    PlainSerializer(lambda data: base64.b64encode(data).decode(), return_type=str),
]
Packed = Annotated[
    Any,
    PlainValidator(lambda text: unpack(_from_base64(text))),
    PlainSerializer(lambda value: base64.b64encode(pack(value)).decode(), return_type=str),
]
"""Plain data as in the tape format."""


def _as_fields(kind: type, fields: Any) -> GetPydanticSchema:
    """Saves an object as the tuple of its fields.

    Args:
        kind: the class of the object: a named tuple or a dataclass.
        fields: the type of the tuple, which checks the fields.
    """
    names = kind._fields if issubclass(kind, tuple) else kind.__dataclass_fields__  # type: ignore[attr-defined]

    def take_apart(value: Any) -> Any:
        if not isinstance(value, kind):
            raise PydanticSerializationUnexpectedValue(f"no {kind.__name__}")
        return tuple(getattr(value, name) for name in names)

    return _as_parts(fields, lambda values: kind(*values), take_apart)


def _as_parts(
    parts: Any, make: Callable[[Any], Any], take_apart: Callable[[Any], Any]
) -> GetPydanticSchema:
    """Saves an object as something else.

    Args:
        parts: the type of what is saved, which checks it.
        make: makes the object of it.
        take_apart: returns it for an object.
    """

    def schema(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler.generate_schema(parts)
        saved = core_schema.plain_serializer_function_ser_schema(take_apart, return_schema=inner)
        return core_schema.no_info_after_validator_function(make, inner, serialization=saved)

    return GetPydanticSchema(schema)


Name = Annotated[str, Field(max_length=1024)]
Text = Annotated[str, Field(max_length=1_000_000)]
Place = Annotated[int, Field(ge=0, lt=_MAX_LEAVES)]
Axis = Annotated[int, Field(ge=0, lt=64)]
Number = Annotated[int, Field(ge=-(2**1024), le=2**1024)]
Size = Annotated[int, Field(ge=0, lt=2**63)]
Shape = Annotated[Many[Size], Field(max_length=64)]
Dtype = Annotated[str, Field(max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]
SavedColumn = Annotated[Column, _as_fields(Column, tuple[Place, Axis | None])]
Facts = Many[
    Annotated[TensorFacts, _as_fields(TensorFacts, tuple[Dtype, Axis, Name, Name, bool | None])]
]
AllShared = Annotated[
    Many[Annotated[Shared, _as_fields(Shared, tuple[Place, Place, bool])]],
    Field(max_length=_MAX_LEAVES),
]
Row = Annotated[
    SizeRow,
    _as_fields(
        SizeRow,
        tuple[
            Annotated[Many[Shape], Field(max_length=_MAX_LEAVES)],
            Annotated[Many[Number], Field(max_length=_MAX_LEAVES)],
        ],
    ),
]
Rows = Annotated[Many[Row], Field(max_length=_MAX_ROWS)]

# The first number of a file name is the program's place; the second tells files of the same name of
# several saves apart.
_STEM = r"[0-9]{2,4}-[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[0-9]{1,9})?"
ProgramFile = Annotated[
    str,
    Field(max_length=200, pattern=rf"^{_STEM}\.(pt2|onnx)$"),
]
AnyFile = Annotated[
    str,
    Field(max_length=200, pattern=rf"^({_STEM}\.(pt2|onnx|onnx\.data)|shapes\.json)$"),
]


class FileFacts(TypedDict):
    """A file that was written with a manifest: its name, its size in bytes, and its SHA-256."""

    name: AnyFile
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SavedLayout(TypedDict):
    """Arguments, or a result, as a structure of the tape format."""

    structure: Bytes
    positional: Place
    modes: Annotated[Many[Mode], Field(max_length=3)]
    ordered: Annotated[Many[Name], Field(max_length=_MAX_LEAVES)]


class SavedSignature(TypedDict):
    """Parameters as records have them, and those that were left out."""

    parameters: Packed
    removed: Annotated[Many[Name], Field(max_length=_MAX_LEAVES)]


class _FormNode(TypedDict):
    kind: Literal["list", "tuple", "dict"]
    keys: Many[Name]
    children: Many[SavedForm]


SavedForm = tuple[Literal["tensor", "int", "float"], Place] | _FormNode


class _Result(TypedDict):
    layout: SavedLayout
    scalars: Packed
    counters: Many[tuple[Place, tuple[Place, Axis]]]
    form: SavedForm


_Source = Annotated[
    SizeSource, _as_fields(SizeSource, tuple[Size | None, SavedColumn | None, SavedColumn | None])
]


class SavedCompletion(TypedDict):
    """How calls of a smaller layout are completed."""

    layout_keys: Packed
    facts: Facts
    key_constants: Packed
    shared: AllShared
    tensors: Many[Place | None]
    scalars: Many[Place | None]
    missing: Many[tuple[Place, Many[_Source]]]
    dtypes: Many[tuple[Place, Dtype]]
    constants: Packed
    scalar_kinds: Many[Literal["int", "float", "complex", "str", "bytes"]]
    counting_ints: Many[tuple[SavedColumn, SavedColumn]]


# Not a map: of that pydantic would make an error for each item.
_Ranges = Many[tuple[Text, tuple[Number | None, Number | None]]]
_Conditions = Annotated[
    conditions.Conditions,
    _as_fields(
        conditions.Conditions,
        tuple[
            Many[tuple[Name, Dtype | None, Many[Number | Text | None]]],
            Annotated[
                dict[str, Any], _as_parts(_Ranges, dict, lambda ranges: tuple(ranges.items()))
            ],
            Many[Text],
        ],
    ),
]
_RowCondition = (
    Annotated[Fixed, _as_fields(Fixed, tuple[SavedColumn, Number, bool])]
    | Annotated[CounterIs, _as_fields(CounterIs, tuple[SavedColumn, SavedColumn, bool])]
)
_Columns = Annotated[
    frozenset[Annotated[Column, _as_fields(Column, tuple[Place, Axis])]],
    Field(min_length=1, max_length=_MAX_LEAVES, fail_fast=True),
]


class _Zeros(TypedDict):
    accepted: Annotated[Many[_Columns], Field(max_length=_MAX_ZEROS)]
    rejected: Annotated[Many[tuple[_Columns, Fact]], Field(max_length=_MAX_ZEROS)]


class SavedProgram(TypedDict):
    """A program: what it takes and returns, and what is known of it."""

    file: ProgramFile
    name: Name
    inputs: Many[Name]
    made_by: Strategy | None
    notes: Annotated[Many[Note], Field(max_length=_MAX_NOTES)]
    state: Annotated[Many[Name], Field(max_length=_MAX_LEAVES)]
    unwritten: Annotated[Many[Name], Field(max_length=_MAX_LEAVES)]
    result_arguments: Annotated[Many[tuple[Place, Place]], Field(max_length=_MAX_LEAVES)]
    random_generators: Annotated[Many[Name], Field(max_length=_MAX_NOTES)]
    no_aliases: Annotated[frozenset[Place], Field(fail_fast=True)]
    device: Annotated[str, Field(max_length=32, pattern=r"^[a-z]+(:[0-9]{1,3})?$")]
    layout: SavedLayout
    scalars: Packed
    facts: Facts
    shared: AllShared
    key_constants: Packed
    constants: Packed
    rows: Annotated[Rows, Field(min_length=1)]
    only_rows: Rows | None
    variant_conditions: Many[_RowCondition]
    conditions: _Conditions
    dimensions: Many[
        tuple[
            SavedColumn,
            Annotated[DimensionDecision, _as_fields(DimensionDecision, tuple[bool, Reason])],
        ]
    ]
    zeros: _Zeros
    returned: Annotated[dict[Name, Name], at_most(_MAX_LEAVES)]
    completions: Annotated[
        Many[Annotated[SavedCompletion, _FirstMissing()]], Field(max_length=1000)
    ]
    constant_scalars: Many[tuple[Place, Packed]]
    open_floats: Annotated[frozenset[Place], Field(fail_fast=True)]
    frozen: Many[tuple[Place, Annotated[str, Field(max_length=64)], Any]]
    result: _Result


@with_config(ConfigDict(ser_json_inf_nan="constants"))
class ProgramsManifest(TypedDict):
    """Everything in the file. ``files`` are the files that were written with it; a name may be
    there twice while a save replaces a file."""

    format: Literal["calltape-programs"]
    version: Literal[1]
    signature: SavedSignature
    layout_paths: Annotated[Many[Name], Field(max_length=_MAX_LEAVES)]
    ignored_sharing: Annotated[Many[tuple[Name, Name]], Field(max_length=_MAX_LEAVES)]
    missing: Annotated[dict[Name, Fact], at_most(_MAX_NOTES)]
    notes: Annotated[Many[Note], Field(max_length=_MAX_NOTES)]
    attempts: Annotated[Many[Attempt], Field(max_length=_MAX_ATTEMPTS)]
    verdicts: Annotated[Many[VariantVerdict], Field(max_length=_MAX_ATTEMPTS)]
    files: Annotated[Many[FileFacts], Field(max_length=4 * _MAX_PROGRAMS)]
    programs: Annotated[
        Many[Annotated[SavedProgram, _FirstMissing()]], Field(max_length=_MAX_PROGRAMS)
    ]


class _Head(TypedDict):
    format: Literal["calltape-programs"]
    version: int


_head: TypeAdapter[_Head] = TypeAdapter(_Head)
_manifest: TypeAdapter[ProgramsManifest] = TypeAdapter(Annotated[ProgramsManifest, _FirstMissing()])


def encode_manifest(document: ProgramsManifest) -> bytes:
    """A manifest as JSON, which :func:`read_manifest` accepts.

    Raises:
        TapeError: :func:`read_manifest` would reject it.
    """
    try:
        data = _manifest.dump_json(document, indent=1)
    except PydanticSerializationError as error:  # lone surrogates
        raise TapeError("invalid", f"{MANIFEST} cannot be written: {error}") from None
    _validated(data, MANIFEST)
    return data


def read_manifest(folder: Path) -> ProgramsManifest:
    """The manifest of a directory of programs.

    Raises:
        TapeError: ``not_found``, ``damaged``, ``limit``, ``invalid`` or ``version``.
    """
    data = read_regular(folder / MANIFEST, _MAX_BYTES)
    return _validated(data, str(folder / MANIFEST))


def _validated(data: bytes, path: str) -> ProgramsManifest:
    if data.count(b"{") > _MAX_MAPS:
        raise TapeError("limit", f"more than {_MAX_MAPS:,} maps", path=path)
    try:
        head = _head.validate_json(data)
    except ValidationError:
        raise TapeError("damaged", f"{MANIFEST} is not one of programs", path=path) from None
    if head["version"] != 1:
        raise TapeError("version", f"programs of version {head['version']}", path=path)
    try:
        manifest = _manifest.validate_json(data, strict=True)
    except ValidationError as error:
        raise TapeError(
            "invalid", f"{MANIFEST} breaks the format", path=path, problems=problems_of(error)[:20]
        ) from None
    listed = {file["name"] for file in manifest["files"]}
    for program in manifest["programs"]:
        if program["file"] not in listed:
            raise TapeError("invalid", f"{program['file']} is not among its files", path=path)
        guards = [len(text) for text in program["conditions"].guards]
        if sum(size for size in guards if size <= conditions.MAX_TEXT) > _MAX_GUARDS:
            raise TapeError("limit", f"conditions of more than {_MAX_GUARDS} characters", path=path)
    return manifest


T = TypeVar("T")


def within_manifest(path: str | os.PathLike[str], action: Callable[[], T]) -> T:
    """Runs an action that relies on a manifest.

    Raises:
        TapeError: ``invalid`` if the action fails, because then the manifest contradicts itself.
    """
    try:
        return action()
    except TapeError:
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        AssertionError,
        AttributeError,
        ArithmeticError,
        RuntimeError,  # torch's own, and a recursion that is too deep
        StopIteration,
    ) as error:
        reason = f"its manifest contradicts itself ({type(error).__name__}: {str(error)[:200]})"
        raise TapeError("invalid", reason, path=os.fspath(path)) from None
