"""What an analysis returns as data: frozen pydantic models whose JSON every reader accepts.

In come fields, some of them values from a stranger's tape. Out goes JSON, also of what JSON has no
form for: wide ints, NaN, bytes, lone surrogates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator, SkipValidation, WithJsonSchema

from calltape_analyzer.notebook import MAX_ROWS, Shown, Sketch
from calltape_analyzer.text import shown_value

__all__ = ["PlainData", "Text", "Texts", "json_text", "plain"]

Text = SkipValidation[str]
"""A text that may be from a tape. Versions of pydantic differ in whether a str may have lone
surrogates, so that nobody checks it."""

Texts = Annotated[
    tuple[str, ...],
    PlainValidator(tuple),
    WithJsonSchema({"type": "array", "items": {"type": "string"}}),
]
"""Several texts. Thousands of models may share one long tuple, which validation would copy."""

_MAX_NUMBER_BITS = 64
_MAX_DECIMAL_BITS = 256
_MAX_TEXT = 4096


class PlainData(BaseModel, Shown):
    """Base of findings, explanations and differences: immutable, equal by value."""

    model_config = ConfigDict(frozen=True)

    def _sketch(self) -> Sketch:
        """The fields. What tells of itself in a line, such as a finding, has a row."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        told = {name: value for name, value in values.items() if _tells(value)}
        facts = [
            (name, f"{len(value):,}" if name in told else _in_short(value))
            for name, value in values.items()
        ]
        rows = ((name, one) for name, value in told.items() for one in value)
        shown = [(name, str(one)) for name, one in islice(rows, MAX_ROWS)]
        total = sum(map(len, told.values()))
        return Sketch(type(self).__name__, facts, head=("of", "what"), rows=shown, total=total)

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """Valid JSON, in ASCII; NaN, infinities, bytes and ints of more than 64 bits are texts.
        ``model_dump`` has all values as they are.

        Args:
            indent: spaces per level; None for one line.
            options: those of ``model_dump``.
        """
        options.pop("ensure_ascii", None)
        return json_text(self.model_dump(**options), indent=indent)


def _tells(value: Any) -> bool:
    """Whether these are models that say in a line what they are."""
    return (
        isinstance(value, tuple)
        and bool(value)
        and all(
            isinstance(one, PlainData) and type(one).__str__ is not BaseModel.__str__
            for one in value
        )
    )


def _in_short(value: Any) -> str:
    """A value of a field, in a few words."""
    if isinstance(value, BaseModel):
        return type(value).__name__
    if isinstance(value, (tuple, list, Mapping)):
        kinds = {type(one).__name__ for one in value if isinstance(one, BaseModel)}
        if kinds:
            return f"{len(value):,} of {', '.join(sorted(kinds))}"
        shown = [shown_value(one) for one in islice(value, 8)]
        return ", ".join(shown) + (f" and {len(value) - 8:,} more" if len(value) > 8 else "")
    return value if isinstance(value, str) else shown_value(value)


def json_text(document: Any, *, indent: int | None = None) -> str:
    """Valid JSON of dicts, lists, tuples and scalars, in ASCII."""
    separators = (",", ":") if indent is None else None
    return json.dumps(plain(document), indent=indent, allow_nan=False, separators=separators)


def plain(value: Any, most: int | None = None) -> Any:
    """A value as JSON has it.

    NaN, infinities, bytes and other objects become text, and lone surrogates their escapes. Ints of
    more than 64 bits become text too, because many readers of JSON would round them; one of more
    than 256 bits is described. A text that is longer than ``most`` characters (4,096 by default) is
    cut: many places of a tape may share a long one.
    """
    most = _MAX_TEXT if most is None else most
    if isinstance(value, Mapping):
        return {_key(key): plain(item, most) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, most) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _MAX_NUMBER_BITS else _decimal(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (bytes, bytearray)):
        value = value[:most]  # as text it is longer than that, and cut
    text = str(value)
    return _valid(text if len(text) <= most else f"{text[:most]}…")


def _valid(text: str) -> str:
    """A text with lone surrogates as escapes: readers of JSON differ in whether they take them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _decimal(value: int) -> str:
    # To write a very wide int in decimal takes quadratic time.
    return str(value) if value.bit_length() <= _MAX_DECIMAL_BITS else shown_value(value)


def _key(key: Any) -> Any:
    """A key that JSON has: those of a tape may be bytes, tuples and NaN."""
    is_finite = not isinstance(key, float) or math.isfinite(key)
    is_plain = key is None or isinstance(key, (str, bool, int, float))
    if is_plain and is_finite:
        return _valid(key) if isinstance(key, str) else key
    # As it is after it was read back: in a tuple, what JSON does not have is text already.
    return _valid(str(_plain_tuple(key) if isinstance(key, tuple) else key))


def _plain_tuple(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_plain_tuple(one) if isinstance(one, tuple) else _key(one) for one in key)
