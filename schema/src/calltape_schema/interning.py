"""The documents inside a call record: validated, and decoded once for equal bytes.

In come the bytes of a document; out goes its model, or an error with the problems.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from copy import copy
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from calltape_schema.bounds import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_LEAVES,
    MAX_NESTING,
    MAX_NODES,
    MAX_RANK,
)
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


_MAX_INTERNED_BYTES = 4 * 1024 * 1024

TypeName = Annotated[str, Field(max_length=512, pattern=r"^[^:\s]+:[^:\s]+$")]
"""A class as ``module:qualified.name``. A reader looks it up among the classes that it allows, and
never imports it."""


def _text_of(limit: int) -> Callable[[Any], str]:
    # pydantic's str refuses lone surrogates, but a Python program may pass them to a model.
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
    """The base class of all parts of these documents."""

    # strict: "1" is no int. Unknown fields are skipped, so that a minor version can add some.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


def problems_of(error: ValidationError) -> list[Problem]:
    """What a pydantic validation found wrong, in document order: of many items, the first."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [Problem(tuple(e["loc"]), e["msg"]) for e in found]


T = TypeVar("T")
_NESTED = frozenset({dict, tuple})


class Interner(Generic[T]):
    """Decodes equal bytes once, also those that are refused. When the remembered documents have
    more than 4 MiB of encoded bytes, some are dropped, so that a tape with a new structure in each
    call takes little memory.
    Which ones is left to chance: the oldest would be the next that is asked for, if somebody goes
    through all of them again, and one document too many would cost all of them."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._known: dict[bytes, T | TapeError] = {}
        self._order: list[bytes] = []
        self._bytes = 0
        self._last: tuple[bytes, T] | None = None
        self._adding = threading.Lock()
        self._chance = random.Random(0)  # not the process's own, which belongs to its owner

    def __call__(self, data: bytes) -> T:
        # The same bytes object is asked for once per leaf of a call. Comparing it by identity first
        # is faster than by content.
        last = self._last
        if last is not None and last[0] is data:
            return last[1]
        known = self._known.get(data)
        if known is None:
            known = self._decoded(data)
            # Not to wait: in a fork, the thread that has the lock may not be there.
            if self._adding.acquire(blocking=False):
                try:
                    self._add(data, known)
                finally:
                    self._adding.release()
        if isinstance(known, TapeError):
            raise copy(known)  # each gets the place of its own call
        self._last = data, known
        return known

    def _decoded(self, data: bytes) -> T | TapeError:
        # What is refused is remembered as well: thousands of calls may share it.
        try:
            return self._decode(data)
        except TapeError as error:
            return copy(error)

    def _add(self, data: bytes, value: T | TapeError) -> None:
        if data in self._known:  # another thread decoded it at the same time
            return
        order = self._order
        while order and self._bytes + len(data) > _MAX_INTERNED_BYTES:
            i = self._chance.randrange(len(order))
            order[i], order[-1] = order[-1], order[i]
            dropped = order.pop()
            del self._known[dropped]
            self._bytes -= len(dropped)
        self._known[data] = value
        order.append(data)
        self._bytes += len(data)


def _check_depth(document: Any) -> None:
    """Raises if a decoded document is too deep or has too many nodes, before models are made."""
    level: list[Any] = [document]
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
        if nodes > MAX_NODES:
            raise TapeError("limit", f"a tree has more than {MAX_NODES} nodes")
        if not below:
            return
        level = below
    raise TapeError("limit", f"a tree is deeper than {MAX_DEPTH} levels")


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
    """A function from the bytes of one document to its model. It raises ``TapeError`` (``invalid``,
    ``damaged`` or ``limit``) with the problems."""
    return lambda data: _validated(adapter, unpack(data), what)
