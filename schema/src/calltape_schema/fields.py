"""The base class of all models of the format, the types of their fields, and the validation of
plain data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sized
from operator import lt
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from calltape_schema.bounds import (
    MAX_COUNT,
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_FEATURES,
    MAX_NESTING,
    MAX_NODES,
    MAX_STRING_BYTES,
    most,
)
from calltape_schema.errors import Problem, TapeError
from calltape_schema.packing import is_array, is_map, unpack

T = TypeVar("T")
Many: TypeAlias = Annotated[tuple[T, ...], Field(fail_fast=True)]
"""Any number of elements. Validation stops at the first invalid one: an error for each of a million
would take gigabytes."""


def _given(value: Any, info: ValidationInfo) -> Any:
    if value is None and info.context is _OF_A_TAPE:
        raise ValueError("nil, where a field may only be absent")
    return value


_OF_A_TAPE = "of a tape"
Maybe: TypeAlias = Annotated[T | None, BeforeValidator(_given)]
"""A field that may be absent, and is None then. On a tape, no field is nil."""


def _text_of(limit: int) -> Callable[[Any], str]:
    # pydantic's str refuses lone surrogates, but a Python program may pass them to a model.
    def text(value: Any) -> str:
        if type(value) is not str:
            raise ValueError(f"Input should be text, not {type(value).__name__}")
        if len(value) > limit:
            raise ValueError(f"Text should have at most {limit} characters")
        return value

    return text


Short = Annotated[str, Field(max_length=1024)]
Name = Annotated[str, PlainValidator(_text_of(1024))]
Text = Annotated[str, PlainValidator(_text_of(MAX_STRING_BYTES))]
TypeName = Annotated[str, Field(max_length=512, pattern=r"^[^:\s]+:[^:\s]+$")]
"""A class as ``module:qualified.name``. A reader looks it up among the classes that it allows, and
never imports it."""

_MAX_FEATURE = 64
Feature = Annotated[str, Field(min_length=1, max_length=_MAX_FEATURE)]
Features = Annotated[Many[Feature], Field(max_length=MAX_FEATURES)]
"""What a reader must know to read the part of a tape that lists it (FORMAT.md §9)."""
_KNOWN: frozenset[str] = frozenset()  # by this reader
TapeId = Annotated[bytes, Field(min_length=16, max_length=16)]
Dtype = Annotated[str, Field(min_length=1, max_length=64)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Nanoseconds = Count
Int64 = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
Index = Annotated[int, Field(ge=0, lt=MAX_NODES)]
Size = Annotated[int, Field(ge=0, le=MAX_ELEMENTS)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Runs of numbers: the first and the last number of each, ascending, with gaps between them."""


def _ascend(runs: Runs) -> Runs:
    bounds = [bound for first, last in runs for bound in (first, last + 1)]
    if not all(map(lt, bounds, bounds[1:])):
        raise ValueError("runs of numbers that do not ascend")
    return runs


def merged_runs(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merges runs in any order, which may overlap, into ascending ones with gaps between them."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged


ManyRuns = Annotated[Many[tuple[Count, Count]], AfterValidator(_ascend)]


def now_ns() -> int:
    """The Unix time in nanoseconds, for a field of :data:`Nanoseconds`. It is 0 if the clock of the
    machine is wrong and shows a time before 1970, which no field allows."""
    return max(time.time_ns(), 0)


def at_most(count: int) -> BeforeValidator:
    """A bound for a map. pydantic itself would check it only after making an error for each
    item."""

    def checked(value: Sized) -> Sized:
        if isinstance(value, Sized) and len(value) > count:
            raise ValueError(f"more than {count} items")
        return value

    return BeforeValidator(checked)


class Record(BaseModel):
    """The base class of all models."""

    # strict: "1" is not an int. Unknown fields are skipped, so that a minor version can add some.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


def expect_known(document: Any, what: str) -> None:
    """Raises ``unsupported`` if a part of a tape requires features that this reader does not know.
    This comes before all other validation.

    Args:
        document: the part, with the features in ``requires``. A list that breaks the format is left
            for validation.
        what: the name of the part, for the error.
    """
    features = document.get("requires") if is_map(document) else None
    if not is_array(features) or len(features) > MAX_FEATURES:
        return
    if not all(type(feature) is str and 0 < len(feature) <= _MAX_FEATURE for feature in features):
        return
    try:
        "".join(features).encode()
    except UnicodeEncodeError:
        return
    unknown = [feature for feature in features if feature not in _KNOWN]
    if unknown:
        names = ", ".join(feature[:64] for feature in unknown[:5])
        raise TapeError("unsupported", f"{what} requires what this reader does not know: {names}")


def problems_of(error: ValidationError) -> list[Problem]:
    """The problems that a pydantic validation found, in document order."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return [Problem(tuple(e["loc"]), e["msg"]) for e in errors]


def validated(adapter: TypeAdapter[T], document: Any, what: str) -> T:
    """The model of plain data.

    Raises:
        TapeError: ``invalid``, with the problems; the message calls the document ``what``.
            ``limit`` if it is too deep.
    """
    if not (is_map(document) or is_array(document)):
        raise TapeError("invalid", f"{what} is a {type(document).__name__}")
    try:
        return adapter.validate_python(document, context=_OF_A_TAPE)
    except ValidationError as error:
        problems = problems_of(error)
        raise TapeError("invalid", f"{what} breaks the format", problems=problems) from None
    except RecursionError:
        raise TapeError("limit", f"{what} is too deep") from None


def decoder(
    adapter: TypeAdapter[T], what: str, form: Callable[[Any], Any] = lambda document: document
) -> Callable[[bytes], T]:
    """A function from the bytes of one part of a tree (a structure, leaves) to its model. It raises
    ``TapeError`` as :func:`validated`, and ``damaged`` or ``limit``.

    Args:
        adapter: of the model.
        what: the name of the part for errors.
        form: converts a document, which is neither too deep nor too large, before validation.
    """

    def decode(data: bytes) -> T:
        document = unpack(data)
        _check_depth(document)
        return validated(adapter, form(document), what)

    return decode


_NESTED = frozenset({dict, tuple})


def _check_depth(document: Any) -> None:
    """Raises if a decoded document is too deep or has too many nodes, before models are made."""
    level: list[Any] = [document] if type(document) in _NESTED else []
    nodes = 0
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for item in level:
            values: Iterable[Any] = item
            if type(item) is dict:
                nodes += 1
                values = item.values()
            # The decoder makes no subclasses, and a list of this form is the fastest.
            below += [value for value in values if type(value) in _NESTED]
        if nodes > most(MAX_NODES):
            raise TapeError("limit", f"a tree has more than {most(MAX_NODES)} nodes")
        if not below:
            return
        level = below
    raise TapeError("limit", f"a tree is deeper than {MAX_DEPTH} levels")
