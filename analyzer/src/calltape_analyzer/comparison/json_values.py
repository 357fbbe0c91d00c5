"""Values that stand in JSON as every reader accepts them: no NaN, no lone surrogates."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

__all__ = ["JsonFloat", "JsonText"]


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _encodable(text: object) -> object:
    return text.encode(errors="backslashreplace").decode() if isinstance(text, str) else text


def _number(value: object) -> object:
    return float(value) if value in ("inf", "-inf", "nan") and isinstance(value, str) else value


JsonFloat = Annotated[float, BeforeValidator(_number), PlainSerializer(_finite, when_used="json")]
"""A float that is text in JSON if it is not finite, because JSON has no such numbers."""
JsonText = Annotated[
    str, BeforeValidator(_encodable), PlainSerializer(_encodable, return_type=str, when_used="json")
]
"""Text with lone surrogates as escapes: names and messages may have them, and UTF-8 has none."""
