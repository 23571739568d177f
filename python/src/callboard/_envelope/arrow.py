"""Data frames and series of pyarrow, pandas and polars as Arrow IPC streams, and back as pyarrow's own."""

from __future__ import annotations

import weakref
from typing import Any

from callboard._envelope.frame_check import Room, check_frame
from callboard._envelope.frames import as_sent, is_frame_or_series, table_of, unmarked
from callboard._envelope.layout import FRAME, SERIES, EnvelopeError, MissingPackageError, Unwritable, type_name


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise MissingPackageError("data frames and series need pyarrow: install `callboard[arrow]`") from None
    return pyarrow


def packed_stream(value: Any) -> memoryview | None:
    """A value as a gateway of evaluations reads it, in a stream of one cell. None if that is its usual form."""
    # Few processes need it.
    from callboard._envelope.packed import pack

    table = pack(value)
    return None if table is None else _stream(_pyarrow(), table)


def arrow_stream(value: Any) -> tuple[int, memoryview]:
    """A frame or series of pyarrow, pandas or polars as an Arrow IPC stream."""
    pa = _pyarrow()
    kind, table = FRAME, None
    if isinstance(value, pa.Table):
        table = unmarked(value)
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
    return kind, _stream(pa, table)


def _stream(pa: Any, table: Any) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        if table.num_rows:
            stream.write_table(table)
        else:
            # The categories of a column without rows come with a batch.
            stream.write_batch(
                pa.RecordBatch.from_arrays([_empty(column) for column in table.columns], schema=table.schema)
            )
    return memoryview(sink.getvalue()).cast("B")


def _table_of(pa: Any, value: Any) -> tuple[int, Any]:
    if is_frame_or_series(value):
        is_series, table = table_of(pa, value)
        return SERIES if is_series else FRAME, table
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return SERIES, unmarked(series_table(value))
    raise Unwritable(f"a value of type `{type_name(value)}` cannot be sent")


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


def read_frame(data: memoryview, room: Room, is_as_sent: bool, unpacks: bool) -> Any:
    """A data frame as a table, or as the type of the library that has sent it. One that stands for another value is
    unpacked only if `unpacks`: any caller may write such a mark."""
    table = read_table(data, room)
    if unpacks and b'"form"' in (table.schema.metadata or {}).get(b"callboard", b""):
        from callboard._envelope.packed import form_of, unpack

        if (form := form_of(table)) is not None:
            return unpack(table, form, room, is_as_sent)
    found = as_sent(table, False, room) if is_as_sent else None
    return table if found is None else found


def read_series(data: memoryview, room: Room, is_as_sent: bool) -> Any:
    """A series as a `pyarrow.ChunkedArray`, or as the type of the library that has sent it."""
    table = read_table(data, room)
    if table.num_columns != 1:
        raise EnvelopeError(f"a series of {table.num_columns} columns")
    found = as_sent(table, True, room) if is_as_sent else None
    return _remembered(table) if found is None else found
