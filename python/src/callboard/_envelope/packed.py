"""Values as gateways of evaluations send and read them: Parquet files of pandas and polars, and models by their class.

Each lies in a frame of one cell, whose mark has its library and its form: `docs/wire.md`. `_models.py` decides which
classes are made.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any

import numpy as np

from callboard._envelope.frame_check import Room
from callboard._envelope.frames import column_of_frame, is_frame_or_series, pandas_frame, polars_frame
from callboard._envelope.layout import EnvelopeError, MissingPackageError, Unwritable, type_name
from callboard._models import load, model_of

# The key of the mark in the metadata of the schema.
_MARK = b"callboard"
# The most rows that are read before their size is looked at.
_ROWS = 4096


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingPackageError("frames and models of a gateway need pyarrow: install `callboard[arrow]`") from None
    return pyarrow


def pack(value: Any) -> Any | None:
    """A table of one cell for a value that gateways read as Parquet or as a model. None for all others."""
    if is_frame_or_series(value):
        library, is_series = type(value).__module__.partition(".")[0], type(value).__name__ == "Series"
        if library == "polars" and not is_series:
            return None
        return _cell(library, "series" if is_series else "parquet", parquet(value))
    is_model = isinstance(value, enum.Enum) or dataclasses.is_dataclass(value) or hasattr(value, "model_dump_json")
    if isinstance(value, (type, np.generic)) or not is_model:
        return None
    library, data = model_of(value)
    return _cell(library, "model", data)


def parquet(value: Any) -> bytes:
    """A frame or series as a Parquet file, without the index of pandas."""
    pa = _pyarrow()

    try:
        is_series = type(value).__name__ == "Series"
        frame = value.to_frame("" if value.name is None else str(value.name)) if is_series else value
        is_pandas = type(value).__module__.partition(".")[0] == "pandas"
        table = pa.Table.from_pandas(frame, preserve_index=False) if is_pandas else frame.to_arrow()
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(table, sink, compression="lz4")
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise Unwritable(f"a value of type `{type_name(value)}` cannot be sent: {error}") from None
    return bytes(sink.getvalue())


def _cell(library: str, form: str, data: bytes) -> Any:
    pa = _pyarrow()
    mark = {_MARK: json.dumps({"library": library, "form": form}).encode()}
    schema = pa.schema([pa.field("bytes", pa.large_binary(), nullable=False)], mark)
    return pa.Table.from_arrays([pa.array([data], pa.large_binary())], schema=schema)


def form_of(table: Any) -> tuple[str, str] | None:
    """Library and form of a table that stands for another value."""
    mark = (table.schema.metadata or {}).get(_MARK)
    if mark is None or table.num_columns != 1 or table.num_rows != 1:
        return None
    try:
        found = json.loads(mark)
        return (str(found["library"]), str(found["form"])) if "form" in found else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def unpack(table: Any, form: tuple[str, str], room: Room, is_as_sent: bool) -> Any:
    """The value that a table of one cell stands for: of its library, or else of pyarrow."""
    data = table.column(0)[0].as_buffer()
    library, kind = form
    if kind == "model":
        return load(library, data.to_pybytes())
    if kind not in ("parquet", "series"):
        raise EnvelopeError(f"a value of the form {kind[:40]!r}")
    return frame_of(read_parquet(data, room), library, kind == "series", room, is_as_sent)


def frame_of(table: Any, library: str, is_series: bool, room: Room, is_as_sent: bool = True) -> Any:
    """A table as the frame or the series of its library, where that is installed."""
    if is_series and not table.num_columns:
        raise EnvelopeError("a series without a column")
    table = table.select([0]) if is_series else table
    try:
        if is_as_sent and library in ("pandas", "polars"):
            frame = pandas_frame(table, room) if library == "pandas" else polars_frame(table)
            return column_of_frame(frame, library) if is_series else frame
    except ImportError:
        pass
    except EnvelopeError:
        raise
    except Exception as error:
        # Neither library says which exceptions it raises for a type that it does not have.
        raise EnvelopeError(f"a data frame of {library}: {error}") from None
    return table.column(0) if is_series else table


def read_parquet(data: Any, room: Room) -> Any:
    """The table of a Parquet file. Its rows are counted as they are read, and one text may stand in all of them."""
    pa = _pyarrow()
    try:
        source = pa.parquet.ParquetFile(pa.BufferReader(data))
        schema, rows = source.schema_arrow, source.metadata.num_rows
        room.take_empty_rows(max(0, rows - 8 * data.size))
        texts = [field.name for field in schema if _is_text(pa, field.type)]
        _require_room(source.metadata, room)
        source = pa.parquet.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
        batches = []
        for batch in source.iter_batches(min(_ROWS, max(1, rows)), use_threads=False):
            columns = [_plain(pa, column, field.type, room) for column, field in zip(batch, schema, strict=True)]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return pa.Table.from_batches(batches, schema=schema)
    except (EnvelopeError, MemoryError):
        raise
    except Exception as error:
        raise EnvelopeError(f"a Parquet file: {error}") from None


def _require_room(metadata: Any, room: Room) -> None:
    """Refuses what the file itself says is too much. One row may hold any number of values in lists."""
    schema, size = metadata.schema, 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for index, column in enumerate(map(group.column, range(group.num_columns))):
            in_lists = 8 * column.num_values if schema.column(index).max_repetition_level else 0
            size += max(column.total_uncompressed_size, in_lists)
    room.require(size)


def _is_text(pa: Any, kind: Any) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _plain(pa: Any, column: Any, kind: Any, room: Room) -> Any:
    """A column in its own type. A text that a page has once may take its size in each row."""
    compute = pa.compute
    if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(kind):
        lengths = compute.binary_length(column.dictionary)
        room.take(int(compute.sum(compute.take(lengths, column.indices)).as_py() or 0))
        return column.cast(kind)
    room.take(column.nbytes)
    return column if column.type == kind else column.cast(kind)
