"""The types of fields that records share, and their base class."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from calltape_schema.bounds import MAX_COUNT

__all__ = ["MAX_COUNT", "Count", "Int64", "Nanoseconds", "Record", "Seconds", "Short", "TapeId"]

Short = Annotated[str, Field(max_length=1024)]
TapeId = Annotated[bytes, Field(min_length=16, max_length=16)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Nanoseconds = Annotated[int, Field(ge=0, le=2**63 - 1)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Record(BaseModel):
    """The base class of all records. Unknown fields are skipped, because minor versions add
    some."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")
