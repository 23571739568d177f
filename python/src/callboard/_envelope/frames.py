"""Frames and series of pandas and polars as Arrow tables and back.

The schema has a mark of the library that sent them, and a reader without a hint gets them from the same library where
it is installed. An index of pandas that is data goes as columns; unnamed integers, which tell where rows once were, go
beside the mark, where only pandas sees them.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np

from callboard._envelope.frame_check import Room, pandas_bytes
from callboard._envelope.layout import MAX_UNPACKED_BYTES, EnvelopeError, TooLargeError, Unwritable, type_name

LIBRARIES = ("pandas", "polars", "pyarrow")
# The key of the mark in the metadata of the schema.
_MARK = b"callboard"


def is_frame_or_series(value: Any) -> bool:
    library = type(value).__module__.partition(".")[0]
    return library in ("pandas", "polars") and type(value).__name__ in ("DataFrame", "Series")


def table_of(pa: Any, value: Any) -> tuple[bool, Any]:
    """Whether it is a series, and the table of a frame or series."""
    library, is_series = type(value).__module__.partition(".")[0], type(value).__name__ == "Series"
    if library == "pandas":
        return is_series, _table_of_pandas(pa, value, is_series)
    frame = value.to_frame("" if value.name is None else value.name) if is_series else value
    for name, dtype in frame.schema.items():
        if _has_objects(dtype):
            # Their form in Arrow is their address in this process.
            raise ValueError(f"column `{name}` has Python objects")
    return is_series, _marked(frame.to_arrow(), {"library": "polars"})


def _has_objects(dtype: Any) -> bool:
    """Whether a dtype of polars is `Object`, or has it inside."""
    inner = [dtype.inner] if hasattr(dtype, "inner") else [field.dtype for field in getattr(dtype, "fields", ())]
    return dtype.base_type().__name__ == "Object" or any(map(_has_objects, inner))


def _table_of_pandas(pa: Any, value: Any, is_series: bool) -> Any:
    import pandas

    index, mark = value.index, {"library": "pandas"}
    is_range = isinstance(index, pandas.RangeIndex)
    is_plain = index.nlevels == 1 and index.name is None and isinstance(index.dtype, np.dtype)
    are_places = is_plain and (index.dtype.kind in "iu" or not len(index))
    if is_series and not (is_range or are_places):
        raise Unwritable(
            f"the index of a `{type_name(value)}` cannot be sent: use reset_index(), with drop=True or not"
        )
    frame = value.to_frame("" if value.name is None else value.name) if is_series else value
    if frame.columns.nlevels == 1 and frame.columns.inferred_type.startswith("mixed"):
        raise ValueError("the labels of its columns have different types, and would become texts")
    if are_places and not is_range:
        # Only with an index, this one, does pyarrow write of which type the labels of the columns are.
        frame = frame.copy(deep=False)
        frame.index = pandas.RangeIndex(len(frame))
        if len(index):
            mark["index"], mark["dtype"] = _packed(index.to_numpy()), index.dtype.name
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
    if decimals:
        changed = {**table.schema.metadata, b"pandas": json.dumps(metadata).encode()}
        table = table.replace_schema_metadata(changed)
    return _marked(table, mark)


def _packed(index: np.ndarray[Any, Any]) -> str:
    """Integers as text. Those of rows that were picked ascend slowly."""
    steps = np.diff(index.astype("<i8"), prepend=np.int64(0))
    return base64.b64encode(zlib.compress(steps.tobytes(), 1)).decode()


def _unpacked(text: str, dtype: str, rows: int, room: Room) -> np.ndarray[Any, Any]:
    if np.dtype(dtype).kind not in "iu":
        raise ValueError(f"an index of dtype {dtype[:40]!r}")
    # The steps, their sums, and these as the dtype.
    room.take(24 * rows)
    steps = zlib.decompressobj().decompress(base64.b64decode(text), 8 * rows + 1)
    return np.cumsum(np.frombuffer(steps, "<i8")).astype(np.dtype(dtype))


def _marked(table: Any, mark: dict[str, str]) -> Any:
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _MARK: json.dumps(mark).encode()})


def unmarked(table: Any) -> Any:
    """The table as one of pyarrow, wherever it came from."""
    metadata = table.schema.metadata
    if not metadata or _MARK not in metadata:
        return table
    return table.replace_schema_metadata({name: value for name, value in metadata.items() if name != _MARK})


def as_sent(table: Any, is_series: bool, room: Room) -> Any:
    """The frame or series of the library that has sent it. None without a mark, or where it is not installed."""
    library = _mark_of(table).get("library")
    try:
        if library == "pandas" and not any(_is_dear(field.type) for field in table.schema):
            frame = pandas_frame(table, room)
        elif library == "polars":
            frame = polars_frame(table)
        else:
            return None
    except ImportError:
        return None
    except TooLargeError:
        raise
    except Exception as error:
        # Neither library says which exceptions it raises for a type that it does not have.
        raise EnvelopeError(f"a data frame of {library}: {error}") from None
    return column_of_frame(frame, library) if is_series else frame


def _mark_of(table: Any) -> dict[str, Any]:
    try:
        found = json.loads((table.schema.metadata or {}).get(_MARK, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_dear(kind: Any) -> bool:
    """Whether pandas makes an object for each text of which there may be one in memory."""
    import pyarrow

    tests = [getattr(pyarrow.types, name, None) for name in ("is_string_view", "is_binary_view")]
    if any(test is not None and test(kind) for test in tests):
        return True
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return any(pyarrow.types.is_dictionary(each) or _is_dear(each) for each in inner)


def pandas_frame(table: Any, room: Room | None = None) -> Any:
    """The frame of a table, with the dtypes that pandas has written into its metadata."""
    import pandas

    room = Room(MAX_UNPACKED_BYTES) if room is None else room
    mark, frame = _mark_of(table), _pandas_frame(table, room)
    if mark.get("library") == "pandas" and "index" in mark:
        frame.index = pandas.Index(_unpacked(mark["index"], mark["dtype"], len(frame), room))
    return frame


def _pandas_frame(table: Any, room: Room) -> Any:
    import pyarrow

    metadata = table.schema.pandas_metadata or {}
    columns = {each.get("field_name"): each for each in metadata.get("columns", ())}
    # An index is the last columns.
    names = [name for name in table.column_names if name not in _names(metadata.get("index_columns", ()))]
    # pandas does not read the names of its Arrow dtypes that have parameters, and takes one for another dtype.
    arrow = [place for place, name in enumerate(names) if _is_arrow_dtype(columns.get(name, {}))]
    for place in {*range(table.num_columns)}.difference(arrow):
        room.take(pandas_bytes(pyarrow, table.column(place)))
    if not arrow:
        return table.to_pandas()
    import pandas

    plain = table
    for place in arrow:
        columns[names[place]].update(pandas_type="int8", numpy_type="int8", metadata=None)
        zeros = pyarrow.array(np.zeros(table.num_rows, np.int8))
        plain = plain.set_column(place, names[place], zeros)
    plain = plain.replace_schema_metadata({**table.schema.metadata, b"pandas": json.dumps(metadata).encode()})
    frame = plain.to_pandas()
    for place in arrow:
        frame.isetitem(place, pandas.arrays.ArrowExtensionArray(table.column(place)))
    return frame


def _names(columns: Any) -> set[str]:
    return {each for each in columns if isinstance(each, str)}


def _is_arrow_dtype(column: dict[str, Any]) -> bool:
    """Whether a column has a type of Arrow, by the notes of pandas about it."""
    return str(column.get("numpy_type")).endswith("[pyarrow]") or column.get("is_arrow_dtype") is True


def polars_frame(table: Any) -> Any:
    import polars

    frame: Any = polars.from_arrow(table)
    if frame.columns != table.column_names:
        # It gives a column without a name one of its own.
        frame.columns = table.column_names
    return frame


def column_of_frame(frame: Any, library: str) -> Any:
    """The only column of a frame. In pandas a series without a name has None."""
    if library == "polars":
        return frame.to_series(0)
    if library == "pyarrow":
        return frame.column(0)
    column = frame.iloc[:, 0]
    return column.rename(None) if column.name == "" else column
