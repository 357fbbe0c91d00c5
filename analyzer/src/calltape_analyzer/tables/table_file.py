"""A table as a file: Parquet, Arrow or CSV, by the suffix of its name.

Takes record batches; returns a file that is there when it is whole, and that only its owner may
read: a table tells when and how often a model was called.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from calltape_analyzer.errors import UsageError, to_install
from calltape_analyzer.writing.output_file import OutputFile

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_suffix", "require_pyarrow", "write_batches"]


def require_pyarrow() -> None:
    """Raises UsageError if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UsageError(
            "tables need pyarrow, which is not installed", advice=to_install("table")
        ) from None


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of a table's name.

    Raises:
        UsageError: it is none of a table.
    """
    suffix = os.path.splitext(os.fspath(path))[1]
    if suffix not in _WRITERS:
        raise UsageError(
            f"a table cannot be a {suffix or 'file without a suffix'}", path=os.fspath(path),
            advice=f"end the name with {', '.join(_WRITERS)}",
        )  # fmt: skip
    return suffix


def write_batches(
    batches: pa.RecordBatchReader,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    inputs: Iterable[str] = (),
) -> int:
    """Writes all batches, one after the other.

    Args:
        batches: of a tape.
        path: of the file: ``.parquet``, ``.arrow`` or ``.csv``.
        overwrite: whether a file that is there already is replaced.
        inputs: paths that are never replaced.

    Returns:
        The number of rows.

    Raises:
        UsageError: another suffix, or the path is one of the inputs.
        TapeError: ``exists`` or ``io``.
    """
    open_writer = _WRITERS[check_suffix(path)]
    rows = 0
    with OutputFile(path, overwrite=overwrite, inputs=inputs) as file:
        writer, plain = open_writer(_Sink(file), batches.schema)
        with writer:
            for batch in batches:
                rows += batch.num_rows
                writer.write_batch(plain(batch))
    return rows


class _Sink(io.RawIOBase):
    """The file as pyarrow takes it: something to write to, front to back. To close it does not
    finish the file."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        self._file.append([data])
        return len(data)

    def tell(self) -> int:
        return self._file.end

    def writable(self) -> bool:
        return True


_Plain = Callable[[Any], Any]


def _parquet(sink: _Sink, schema: pa.Schema) -> tuple[Any, _Plain]:
    from pyarrow import parquet

    return parquet.ParquetWriter(sink, schema, compression="zstd"), lambda batch: batch


def _arrow(sink: _Sink, schema: pa.Schema) -> tuple[Any, _Plain]:
    """The file format of Arrow has one dictionary per column, and each batch has its own: texts
    stand there as they are."""
    import pyarrow as pa
    from pyarrow import ipc

    plain = _without_dictionaries(schema)
    options = ipc.IpcWriteOptions(compression="zstd" if pa.Codec.is_available("zstd") else None)
    return ipc.new_file(sink, plain, options=options), lambda batch: batch.cast(plain)


def _csv(sink: _Sink, schema: pa.Schema) -> tuple[Any, _Plain]:
    import pyarrow as pa
    from pyarrow import csv

    plain = _without_dictionaries(schema)
    lists = [i for i, field in enumerate(plain) if pa.types.is_list(field.type)]
    for i in lists:
        plain = plain.set(i, plain.field(i).with_type(pa.string()))

    texts = [i for i, field in enumerate(plain) if pa.types.is_string(field.type)]
    plain = pa.schema([field.with_name(_no_formula(field.name)) for field in plain])

    def as_text(batch: Any) -> Any:
        columns = list(batch.columns)
        for i in texts:
            if i in lists:
                columns[i] = pa.array([str(value) for value in columns[i].to_pylist()], pa.string())
            else:
                columns[i] = _without_formulas(columns[i])
        return pa.RecordBatch.from_arrays(columns, schema=plain)

    return csv.CSVWriter(sink, plain), as_text


_FORMULAS = tuple("=+-@\t\r\n＝＋－＠")


def _no_formula(text: str) -> str:
    """A text that no spreadsheet takes for a formula: with a quote before what begins one."""
    return f"'{text}" if text.startswith(_FORMULAS) else text


def _without_formulas(column: Any) -> Any:
    """A column of repeated texts without formulas. Each distinct text is checked once."""
    import pyarrow as pa

    texts = [_no_formula(text) for text in column.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(column.indices, pa.array(texts, pa.string())).cast(
        pa.string()
    )


def _without_dictionaries(schema: pa.Schema) -> Any:
    import pyarrow as pa

    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(fields, metadata=schema.metadata)


_WRITERS: dict[str, Callable[[Any, Any], tuple[Any, _Plain]]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".csv": _csv,
}
