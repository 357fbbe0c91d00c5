"""Documents inside a call record: validated, and decoded once per distinct bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from calltape_schema.errors import Problem, TapeError
from calltape_schema.packing import MAX_STRING_BYTES, is_array, is_map, unpack

__all__ = [
    "MAX_DEPTH",
    "MAX_ELEMENTS",
    "MAX_LEAVES",
    "MAX_NESTING",
    "MAX_NODES",
    "MAX_RANK",
    "Index",
    "Interner",
    "Name",
    "Part",
    "Size",
    "Text",
    "TypeName",
    "decoder",
    "problems_of",
]

MAX_DEPTH = 64
MAX_NESTING = 2 * MAX_DEPTH + 2
"""Of maps and arrays: a node is a map, and its children stand in an array in it."""
MAX_NODES = 50_000
MAX_LEAVES = 50_000
MAX_RANK = 64
MAX_ELEMENTS = 2**63 - 1

_MAX_INTERNED_BYTES = 4 * 1024 * 1024

TypeName = Annotated[str, Field(max_length=512, pattern=r"^[^:\s]+:[^:\s]+$")]
"""A class as ``module:qualified.name``: a key into the reader's allow-list, never imported."""


def _text_of(limit: int) -> Callable[[Any], str]:
    # pydantic's own str refuses lone surrogates, which Python programs do pass around.
    def text(value: Any) -> str:
        if type(value) is not str:
            raise ValueError(f"Input should be text, not {type(value).__name__}")
        if len(value) > limit:
            raise ValueError(f"Text should have at most {limit} characters")
        return value

    return text


Name = Annotated[str, PlainValidator(_text_of(1024))]
Text = Annotated[str, PlainValidator(_text_of(MAX_STRING_BYTES))]
Index = Annotated[int, Field(ge=0, lt=MAX_NODES)]
Size = Annotated[int, Field(ge=0, le=MAX_ELEMENTS)]


class Part(BaseModel):
    # strict: a hostile "1" is not an int. Unknown fields are skipped, so that a minor version
    # of the format can add some.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


def problems_of(error: ValidationError) -> list[Problem]:
    """Every finding of a pydantic validation, in document order."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [Problem(tuple(e["loc"]), e["msg"]) for e in found]


T = TypeVar("T")


class Interner(Generic[T]):
    """Decodes once per distinct bytes, and forgets the oldest past a budget of encoded bytes, so
    that a tape of ever new structures stays cheap."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._known: dict[bytes, T] = {}
        self._bytes = 0
        self._last: tuple[bytes, T] | None = None

    def __call__(self, data: bytes) -> T:
        # One call's bytes are asked for as often as it has leaves: not to be compared each time.
        last = self._last
        if last is not None and last[0] is data:
            return last[1]
        known = self._known.get(data)
        if known is not None:
            self._last = data, known
            return known
        value = self._decode(data)
        self._last = data, value
        self._bytes += len(data)
        self._known[data] = value
        while self._bytes > _MAX_INTERNED_BYTES and len(self._known) > 1:
            # pop with a default: two threads may evict at once
            oldest = next(iter(self._known))
            if self._known.pop(oldest, None) is not None:
                self._bytes -= len(oldest)
        return value


def _check_depth(document: Any) -> None:
    """Bounds depth and count of a decoded document before models are built from it."""
    level: list[Any] = [document]
    nodes = 0
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for item in level:
            nodes += isinstance(item, dict)
            values: Iterable[Any] = item.values() if is_map(item) else item
            below.extend(value for value in values if is_map(value) or is_array(value))
        if nodes > MAX_NODES:
            raise TapeError("limit", f"a tree of more than {MAX_NODES} nodes")
        if not below:
            return
        level = below
    raise TapeError("limit", f"a tree deeper than {MAX_DEPTH} levels")


def _validated(adapter: TypeAdapter[T], document: Any, what: str) -> T:
    if not (is_map(document) or is_array(document)):
        raise TapeError("invalid", f"{what} is a {type(document).__name__}")
    _check_depth(document)
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        problems = problems_of(error)
        raise TapeError("invalid", f"{what} breaks the format", problems=problems) from None
    except RecursionError:
        raise TapeError("limit", f"{what} is too deep") from None


def decoder(adapter: TypeAdapter[T], what: str) -> Callable[[bytes], T]:
    """From the bytes of one document to its model, or to ``TapeError`` (``invalid``, ``damaged``
    or ``limit``) with every problem found."""
    return lambda data: _validated(adapter, unpack(data), what)
