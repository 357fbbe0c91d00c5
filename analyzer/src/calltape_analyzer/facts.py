"""Facts: what calltape found out, as types with fields. Code decides by facts only; ``str()`` of
one is its sentence, which :mod:`calltape_analyzer.wording` makes.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, core_schema
from typing_extensions import dataclass_transform

__all__ = [
    "MAX_TEXT",
    "Fact",
    "Names",
    "Note",
    "Other",
    "OtherNote",
    "Rejection",
    "as_json",
    "fact_document",
]

MAX_TEXT = 10_000
"""Characters of a text that is saved; what is longer is cut."""
Names = Annotated[tuple[str, ...], Field(max_length=50_000)]

_KINDS: dict[str, type[Fact]] = {}
F = TypeVar("F", bound="Fact")


@dataclass_transform(frozen_default=True)
class Fact:
    """Something that was found out. A subclass is a frozen dataclass, whose fields are texts,
    numbers, enums, tuples of names and other facts.

    Attributes:
        code: says in JSON, and in saved programs, which kind of fact it is.
    """

    code: ClassVar[str] = ""

    def __init_subclass__(cls, code: str = "") -> None:
        super().__init_subclass__()
        dataclass(frozen=True)(cls)
        if code:
            assert code not in _KINDS, code
            cls.code = code
            _KINDS[code] = cls

    def __str__(self) -> str:
        # By name, because only the edges import words.
        words: str = importlib.import_module("calltape_analyzer.wording").in_words(self)
        return words

    @property
    def parts(self) -> Iterator[Fact]:
        """It, and the facts within it."""
        yield self
        for value in vars(self).values():
            if isinstance(value, Fact):
                yield from value.parts

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            partial(_validated, cls),
            serialization=core_schema.plain_serializer_function_ser_schema(
                fact_document, when_used="json"
            ),
        )


class Rejection(Fact):
    """Why a program, or a model, does not take a call."""

    @property
    def dimension(self) -> str | None:
        """The declared dimension that causes the rejection (``input_ids[1]``), or None."""
        place = str(getattr(self, "place", ""))
        return place if place[-1:] == "]" else None


class Note(Fact):
    """What a person should know about a program, or about an export as a whole."""

    @property
    def is_remark(self) -> bool:
        """Whether it came out well, so that only those who ask need to know."""
        return False


class Other(Fact, code="other"):
    """A kind of fact that this version does not know."""

    text: str


class OtherNote(Note, code="other_note"):
    """A kind of note that this version does not know."""

    text: str


def fact_document(fact: Fact) -> dict[str, Any]:
    """A fact as JSON: its code, its fields, and its sentence."""
    return as_json({"code": fact.code, **vars(fact), "text": str(fact)})  # type: ignore[no-any-return]


def as_json(value: Any) -> Any:
    """A value as JSON: facts as documents, and texts cut."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, Fact):
        return fact_document(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [as_json(item) for item in value]
    if isinstance(value, str):  # of a tape: lone surrogates are in it, which UTF-8 has not
        return value[:MAX_TEXT].encode(errors="backslashreplace").decode()[:MAX_TEXT]
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such numbers
        return str(value)
    return value


def _validated(wanted: type[F], value: Any) -> F:
    """The fact of a document, which may be a stranger's."""
    if isinstance(value, wanted):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("not a fact")
    candidates = (_KINDS.get(str(value.get("code"))), Other, OtherNote)
    kind = next(
        (c for c in candidates if c is not None and issubclass(c, wanted)),
        None,
    )
    if kind is None:
        raise ValueError(f"not a {wanted.__name__}")
    validated = _model_of(kind.code).model_validate(dict(value))
    return kind(**{name: getattr(validated, name) for name in type(validated).model_fields})


@cache
def _model_of(code: str) -> type[BaseModel]:
    """What checks the fields of a kind of fact."""
    kind = _KINDS[code]
    hints = get_type_hints(kind, include_extras=True)
    field_types: dict[str, Any] = {
        field.name: (hints[field.name], ... if field.default is MISSING else field.default)
        for field in fields(kind)  # type: ignore[arg-type]
    }
    config = ConfigDict(str_max_length=MAX_TEXT, arbitrary_types_allowed=False)
    model: type[BaseModel] = create_model(kind.__name__, __config__=config, **field_types)
    return model
