"""The schema of a table, with the meaning of each column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from calltape_schema import __version__

__all__ = ["REPEATED", "repeated", "schema_of"]

REPEATED = pa.dictionary(pa.int32(), pa.string())
"""The type of texts of which few are distinct."""


def schema_of(fields: Iterable[tuple[str, Any, str]], facts: Mapping[str, str]) -> pa.Schema:
    """A schema whose fields say in ``description`` what they are.

    Args:
        fields: name, type and meaning of each column.
        facts: of the whole table; they stand in its metadata, with ``calltape.`` before each name.
    """
    made = [pa.field(name, kind, metadata={"description": told}) for name, kind, told in fields]
    whole = {f"calltape.{name}": value for name, value in {"version": __version__, **facts}.items()}
    return pa.schema(made, metadata=whole)


def repeated(values: Sequence[str | None]) -> pa.Array:
    """Texts as a column of that type. UTF-8 has no lone surrogates, which a tape may have: they
    become escapes."""
    try:
        found = pa.array(values, pa.string())
    except UnicodeEncodeError:
        found = pa.array([_escaped(text) for text in values], pa.string())
    return found.dictionary_encode()


def _escaped(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
