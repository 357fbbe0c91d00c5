"""The types of fields that records share, and their base class."""

from __future__ import annotations

from collections.abc import Sized
from typing import Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from calltape_schema.bounds import MAX_COUNT

__all__ = [
    "MAX_COUNT", "Count", "Int64", "Many", "Nanoseconds", "Record", "Seconds", "Short", "TapeId",
    "at_most",
]  # fmt: skip

T = TypeVar("T")
Many: TypeAlias = Annotated[tuple[T, ...], Field(fail_fast=True)]
"""Any number of things. The first that is wrong ends the check: an error for each of a million
would take gigabytes."""

Short = Annotated[str, Field(max_length=1024)]
TapeId = Annotated[bytes, Field(min_length=16, max_length=16)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Nanoseconds = Annotated[int, Field(ge=0, le=2**63 - 1)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def at_most(count: int) -> BeforeValidator:
    """A bound for a map, which pydantic would compare only after an error for each item."""

    def checked(value: Sized) -> Sized:
        if isinstance(value, Sized) and len(value) > count:
            raise ValueError(f"more than {count} items")
        return value

    return BeforeValidator(checked)


class Record(BaseModel):
    """The base class of all records. Unknown fields are skipped, because minor versions add
    some."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")
