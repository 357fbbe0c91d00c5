"""The schema of a table, with the meaning of each column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from calltape_schema import __version__

__all__ = ["REPEATED", "schema_of"]

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
