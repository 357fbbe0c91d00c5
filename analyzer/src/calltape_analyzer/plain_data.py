"""What an analysis returns as data: frozen pydantic models whose JSON every reader accepts, and
what notebooks show of them.

Takes fields, some of them values from a stranger's tape; returns JSON, also of what JSON has no
form for: wide ints, NaN, bytes, lone surrogates. For notebooks, it makes a short table in HTML,
without a script, in which all text is escaped and bounded. A notebook asks for it whenever an
object is the last line of a cell: so it is cheap, and raises nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from html import escape
from itertools import compress, islice
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator, SkipValidation, WithJsonSchema

from calltape_analyzer.text import printable, shown_value
from calltape_schema.bounds import MAX_INT_BYTES

__all__ = ["MAX_ROWS", "PlainData", "Shown", "Sketch", "Text", "Texts", "json_text", "plain"]

MAX_ROWS = 20
"""So many rows are shown; who makes rows with work makes no more."""

_MAX_COLUMNS, _MAX_CELL, _MAX_DEPTH = 10, 400, 20
_LONG_WORD = re.compile(r"\S{60}(?=\S)")
"""A line may break after it: a long name makes no table wider than the page."""


@dataclass
class Sketch:
    """What is shown of an object.

    Attributes:
        title: what it is.
        facts: names and texts.
        head: the columns of a table.
        rows: its rows; the first 20 are shown.
        lines: text below it, which keeps its indentation; the first 20 lines are shown.
        total: how many rows there are, if ``rows`` has some of them only.
        note: a last line.
        parts: what follows.
    """

    title: str = ""
    facts: Sequence[tuple[str, object]] = ()
    _: KW_ONLY
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    lines: Sequence[str] = ()
    total: int | None = None
    note: str | None = None
    parts: Sequence[Sketch] = ()

    def html(self) -> str:
        """As HTML."""
        parts = [f"<strong>{_text(self.title)}</strong>"] if self.title else []
        if self.facts:
            cells = "".join(
                f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
                for name, value in self.facts[:MAX_ROWS]
            )
            parts.append(f"<table><tbody>{cells}</tbody></table>")
        if self.rows:
            parts.append(self._table())
        for line in self.lines[:MAX_ROWS]:  # its indentation shows how it is nested
            depth = len(line) - len(line.lstrip(" "))
            parts.append(f"<div>{'&nbsp;' * min(depth, _MAX_DEPTH)}{_text(line)}</div>")
        notes = [self.note] if self.note else []
        total = len(self.rows) if self.total is None else self.total
        more = total - min(len(self.rows), MAX_ROWS)
        more += len(self.lines[MAX_ROWS:])
        if more > 0:
            notes.insert(0, f"and {more:,} more")
        parts += [f"<div>{_text(note)}</div>" for note in notes]
        parts += [part.html() for part in self.parts]
        return f"<div>{''.join(parts)}</div>"

    def _table(self) -> str:
        """Without columns that are empty in all rows that are shown."""
        cells = [[_text(cell) for cell in row[:_MAX_COLUMNS]] for row in self.rows[:MAX_ROWS]]
        full = [any(column) for column in zip(*cells, strict=False)]
        head = "".join(f"<th>{_text(name)}</th>" for name in compress(self.head, full))
        rows = "".join(
            f"<tr>{''.join(f'<td>{cell}</td>' for cell in compress(row, full))}</tr>"
            for row in cells
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _text(value: object) -> str:
    """Any value as escaped text on one line."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if value.bit_length() <= 64 else f"an int of {value.bit_length()} bits"
    text = "" if value is None else str(value)
    shown = printable(" ".join(text[: 4 * _MAX_CELL].split()))
    shown = shown if len(shown) <= _MAX_CELL else f"{shown[:_MAX_CELL]}…"
    # Printable text has no NUL.
    return escape(_LONG_WORD.sub("\\g<0>\0", shown)).replace("\0", "<wbr>")


class Shown:
    """An object that notebooks show as a table."""

    def _sketch(self) -> Sketch:
        """What is shown; of a class that does not say it, the ``repr``."""
        return Sketch(repr(self))

    def _repr_html_(self) -> str | None:
        """HTML for notebooks; None if it cannot be made now, for instance of a closed tape. Then
        they show the ``repr``."""
        try:
            return self._sketch().html()
        except Exception:
            return None


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
_MAX_DECIMAL_BITS = 8 * MAX_INT_BYTES
MAX_TEXT = 4096


class PlainData(BaseModel, Shown):
    """Base of findings, explanations and differences: immutable, equal by value."""

    model_config = ConfigDict(frozen=True)

    def _sketch(self) -> Sketch:
        """The fields. What tells of itself in a line, such as a finding, has a row."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        telling = {name: value for name, value in values.items() if _tells(value)}
        facts = [
            (name, f"{len(value):,}" if name in telling else _in_short(value))
            for name, value in values.items()
        ]
        rows = ((name, item) for name, value in telling.items() for item in value)
        shown = [(name, str(item)) for name, item in islice(rows, MAX_ROWS)]
        total = sum(map(len, telling.values()))
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
            isinstance(item, PlainData) and type(item).__str__ is not BaseModel.__str__
            for item in value
        )
    )


def _in_short(value: Any) -> str:
    """A value of a field, in a few words."""
    if isinstance(value, BaseModel):
        return type(value).__name__
    if isinstance(value, (tuple, list, Mapping)):
        kinds = {type(item).__name__ for item in value if isinstance(item, BaseModel)}
        if kinds:
            return f"{len(value):,} of {', '.join(sorted(kinds))}"
        shown = [shown_value(item) for item in islice(value, 8)]
        return ", ".join(shown) + (f" and {len(value) - 8:,} more" if len(value) > 8 else "")
    return value if isinstance(value, str) else shown_value(value)


def json_text(document: Any, *, indent: int | None = None) -> str:
    """Valid JSON of dicts, lists, tuples and scalars, in ASCII."""
    separators = (",", ":") if indent is None else None
    return json.dumps(plain(document), indent=indent, allow_nan=False, separators=separators)


def plain(value: Any, max_text: int | None = None) -> Any:
    """A value as JSON has it.

    NaN, infinities, bytes and other objects become text, and lone surrogates their escapes. Ints of
    more than 64 bits become text too, because many readers of JSON would round them; one that is
    too wide for a tape is described. A text that is longer than ``max_text`` characters (4,096 by
    default) is cut: many places of a tape may share a long one.
    """
    max_text = MAX_TEXT if max_text is None else max_text
    if isinstance(value, Mapping):
        return {_key(key): plain(item, max_text) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, max_text) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() <= _MAX_NUMBER_BITS:
            return value
        # To write an int in decimal takes quadratic time.
        return str(value) if value.bit_length() <= _MAX_DECIMAL_BITS else shown_value(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (bytes, bytearray)):
        value = value[:max_text]  # as text it is longer than that, and cut
    text = str(value)
    return _valid(text if len(text) <= max_text else f"{text[:max_text]}…")


def _valid(text: str) -> str:
    """A text with lone surrogates as escapes: readers of JSON differ in whether they take them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _key(key: Any) -> Any:
    """A key that JSON has: those of a tape may be bytes, tuples and NaN."""
    is_finite = not isinstance(key, float) or math.isfinite(key)
    is_plain = key is None or isinstance(key, (str, bool, int, float))
    if is_plain and is_finite:
        return _valid(key) if isinstance(key, str) else key
    # As it is after it was read back: in a tuple, what JSON does not have is text already.
    return _valid(str(_plain_tuple(key) if isinstance(key, tuple) else key))


def _plain_tuple(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_plain_tuple(part) if isinstance(part, tuple) else _key(part) for part in key)
