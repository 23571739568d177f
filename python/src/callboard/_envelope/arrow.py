"""Data frames and series of pyarrow, pandas and polars as Arrow IPC streams, and back as pyarrow's own."""

from __future__ import annotations

import json
import weakref
from typing import Any

from callboard._envelope.frame_check import Room, check_frame
from callboard._envelope.layout import FRAME, SERIES, EnvelopeError, MissingPackageError, Unwritable, type_name


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise MissingPackageError("data frames and series need pyarrow: install `callboard[arrow]`") from None
    return pyarrow


def arrow_stream(value: Any) -> tuple[int, memoryview]:
    """A frame or series of pyarrow, pandas or polars as an Arrow IPC stream."""
    pa = _pyarrow()
    kind, table = FRAME, None
    if isinstance(value, pa.Table):
        table = value
    elif isinstance(value, pa.RecordBatch):
        table = pa.Table.from_batches([value])
    elif isinstance(value, pa.Scalar):
        raise Unwritable(f"a value of type `{type_name(value)}` cannot be sent")
    else:
        try:
            kind, table = _table_of(pa, value)
        except (pa.ArrowException, ValueError, TypeError) as error:
            if isinstance(error, Unwritable):
                raise
            reason = error.args[0] if error.args else error
            raise Unwritable(f"a value of type `{type_name(value)}` cannot be sent: {reason}") from None
    for field in table.schema:
        unread = _unread_type(pa, field.type)
        if unread is not None:
            raise Unwritable(f"a value of type `{type_name(value)}` cannot be sent: column `{field.name}` has {unread}")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        if table.num_rows:
            stream.write_table(table)
        else:
            # The categories of a column without rows come with a batch.
            stream.write_batch(
                pa.RecordBatch.from_arrays([_empty(column) for column in table.columns], schema=table.schema)
            )
    return kind, memoryview(sink.getvalue()).cast("B")


def _table_of(pa: Any, value: Any) -> tuple[int, Any]:
    name, library = type(value).__name__, type(value).__module__.partition(".")[0]
    if library in ("pandas", "polars") and name in ("DataFrame", "Series"):
        table_of_frame = _table_of_pandas if library == "pandas" else _table_of_polars
        if library == "pandas":
            _check_index(value)
        if name == "DataFrame":
            return FRAME, table_of_frame(pa, value)
        return SERIES, table_of_frame(pa, value.to_frame("" if value.name is None else value.name))
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return SERIES, series_table(value)
    raise Unwritable(f"a value of type `{type_name(value)}` cannot be sent")


def _table_of_pandas(pa: Any, frame: Any) -> Any:
    import pandas

    if frame.columns.nlevels == 1 and frame.columns.inferred_type.startswith("mixed"):
        raise ValueError("the labels of its columns have different types, and would become texts")
    # Only with an index, this one, does pyarrow write of which type the labels of the columns are.
    frame = frame.copy(deep=False)
    frame.index = pandas.RangeIndex(len(frame))
    table = pa.Table.from_pandas(frame)
    metadata = table.schema.pandas_metadata
    decimals = [
        each
        for each, dtype in zip(metadata["columns"], frame.dtypes, strict=False)
        if isinstance(dtype, pandas.ArrowDtype) and pa.types.is_decimal(dtype.pyarrow_dtype)
    ]
    for each in decimals:
        # pyarrow writes the same of these as of Python's decimals.
        each["is_arrow_dtype"] = True
    changed = {**table.schema.metadata, b"pandas": json.dumps(metadata).encode()}
    return table.replace_schema_metadata(changed) if decimals else table


def _table_of_polars(_: Any, frame: Any) -> Any:
    for name, dtype in frame.schema.items():
        if _has_objects(dtype):
            # Their form in Arrow is their address in this process.
            raise ValueError(f"column `{name}` has Python objects")
    return frame.to_arrow()


def _has_objects(dtype: Any) -> bool:
    """Whether a dtype of polars is `Object`, or has it inside."""
    inner = [dtype.inner] if hasattr(dtype, "inner") else [field.dtype for field in getattr(dtype, "fields", ())]
    return dtype.base_type().__name__ == "Object" or any(map(_has_objects, inner))


def _check_index(value: Any) -> None:
    """Rows keep their order, and no index. Unnamed integers tell where rows once were; anything else is data."""
    index = value.index
    if index.nlevels > 1 or index.name is not None or (len(index) and index.dtype.kind not in "iu"):
        raise Unwritable(
            f"the index of a `{type_name(value)}` cannot be sent: use reset_index(), with drop=True or not"
        )


def _unread_type(pa: Any, kind: Any) -> str | None:
    """The part of an Arrow type that readers refuse, in words."""
    types = pa.types
    # Releases before 16 have no list views.
    tests = [getattr(types, name, None) for name in ("is_run_end_encoded", "is_list_view", "is_large_list_view")]
    if types.is_union(kind) or any(test is not None and test(kind) for test in tests):
        return f"the type `{kind}`"
    if types.is_dictionary(kind):
        # An IPC stream has no place for what an extension type of the values is.
        is_extension = isinstance(kind.value_type, pa.BaseExtensionType)
        return f"categories of the type `{kind.value_type}`" if is_extension else _unread_type(pa, kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _unread_type(pa, kind.storage_type)
    inner = (_unread_type(pa, kind.field(index).type) for index in range(kind.num_fields))
    return next((found for found in inner if found is not None), None)


def _empty(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks else column.combine_chunks()


# The schemas of the series that were read, which have the name and what pandas says of its own types. By identity,
# because an array of Arrow has neither a hash nor room for a name.
_READ_SERIES: dict[int, tuple[weakref.ref[Any], Any]] = {}


def series_table(column: Any) -> Any:
    """The table of one column that a series is, with its name if it has been read."""
    pa = _pyarrow()
    reference, schema = _READ_SERIES.get(id(column), (None, None))
    if reference is None or reference() is not column:
        return pa.table({"": column})
    return pa.Table.from_arrays([column], schema=schema)


def _remembered(table: Any) -> Any:
    """The column of a table, which keeps its schema."""
    column = table.column(0)
    key = id(column)
    _READ_SERIES[key] = weakref.ref(column, lambda _: _READ_SERIES.pop(key, None)), table.schema
    return column


def read_table(data: memoryview, room: Room) -> Any:
    """A data frame as a `pyarrow.Table`, whose columns are views of the bytes."""
    pa = _pyarrow()
    try:
        buffer = pa.py_buffer(data)
        check_frame(pa, buffer, room)
        return pa.ipc.open_stream(buffer).read_all()
    except (MemoryError, EnvelopeError):
        raise
    except Exception as error:
        # Readers of extension types, such as those of pandas, raise what they like.
        raise EnvelopeError(f"a data frame: {error}") from None


def read_series(data: memoryview, room: Room) -> Any:
    """A series as a `pyarrow.ChunkedArray`."""
    table = read_table(data, room)
    if table.num_columns != 1:
        raise EnvelopeError(f"a series of {table.num_columns} columns")
    return _remembered(table)
