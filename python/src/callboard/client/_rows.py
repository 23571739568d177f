"""Frames as the inputs of calls, and the outputs as a frame again.

A row of a frame is a record, and that of a column is its value. Missing values are None, except NaN in columns of
floats of NumPy. A frame gives a frame, and a column a column, of the same library, with the index of pandas. All calls
have been made by then, so every list of outputs has a column that holds it, and integers are never rounded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from callboard._arrays import plain
from callboard._envelope.frames import is_frame_or_series
from callboard._exceptions import CallError

# As many rows are Python objects at the same time.
_ROWS = 1024
OUTPUT = "output"
ERROR = "call_error"


def rows_of(inputs: Any) -> Rows | None:
    """The rows of a frame or column. None for other inputs."""
    if is_frame_or_series(inputs):
        library, is_column = type(inputs).__module__.partition(".")[0], type(inputs).__name__ == "Series"
    else:
        # Its values exist only where it was imported.
        pa = sys.modules.get("pyarrow")
        if pa is None or not isinstance(inputs, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)):
            return None
        library, is_column = "pyarrow", isinstance(inputs, (pa.Array, pa.ChunkedArray))
    return Rows(inputs, library, is_column)


def check_inputs(inputs: Any) -> None:
    """Refuses a frame, and one input in the place of several."""
    rows = rows_of(inputs)
    if rows is not None and not rows.is_column:
        raise TypeError("inputs: `map` calls a route with the rows of a frame")
    if isinstance(inputs, (str, bytes, bytearray, Mapping)):
        raise TypeError(f"inputs: a `{type(inputs).__name__}` is one input: give a list of inputs, or use `call`")


class Rows:
    """The rows of a frame or column, as inputs."""

    def __init__(self, frame: Any, library: str, is_column: bool) -> None:
        self._frame = frame
        self._library = library
        self.is_column = is_column
        if not is_column:
            names = list(frame.columns if library != "pyarrow" else frame.column_names)
            if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
                raise TypeError("the columns of a frame must have different names, all of them texts")

    def __len__(self) -> int:
        return len(self._frame)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self._frame), _ROWS):
            if self._library == "pandas":
                yield from self._of_pandas(self._frame.iloc[start : start + _ROWS])
            else:
                part = self._frame.slice(start, _ROWS)
                if self._library == "pyarrow":
                    yield from part.to_pylist()
                else:
                    yield from part.to_list() if self.is_column else part.to_dicts()

    def _of_pandas(self, part: Any) -> Any:
        if self.is_column:
            return _values(part)
        names = list(part.columns)
        if not names:
            return [{} for _ in range(len(part))]
        columns = [_values(part[name]) for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def joined(self, outputs: Sequence[Any], *, has_errors: bool) -> Any:
        """The outputs as a frame or column. `has_errors`: failed rows have their `CallError` as output."""
        # A column of Arrow holds no errors.
        if self.is_column and not (has_errors and self._library == "pyarrow"):
            return self._column(outputs, self._frame.name if self._library != "pyarrow" else None)
        outcomes = [None if isinstance(each, CallError) else each for each in outputs]
        well = [each for each in outputs if not isinstance(each, CallError)]
        columns: dict[str, list[Any]] = {OUTPUT: outcomes}
        if well and all(_is_record(each) for each in well):
            names = dict.fromkeys(name for each in well for name in each)
            columns = {name: [None if each is None else each.get(name) for each in outcomes] for name in names}
        if has_errors:
            error = ERROR
            while error in columns:
                error += "_"
            columns[error] = [str(each) if isinstance(each, CallError) else None for each in outputs]
        return self._table({name: self._column(values, name) for name, values in columns.items()})

    def _column(self, values: Sequence[Any], name: Any) -> Any:
        if self._library == "pyarrow":
            return _of_arrow(values)
        has_errors = any(isinstance(each, CallError) for each in values)
        kind = object if has_errors else _kind_of_numbers(values)
        if self._library == "pandas":
            import pandas

            dtype: Any = object if kind is object or not values else None
            if kind is int and None in values:
                # By itself, pandas makes them floats.
                dtype = "Int64" if all(each is None or -(2**63) <= each < 2**63 for each in values) else object
            return pandas.Series(values, index=self._frame.index, name=name, dtype=dtype)
        import polars

        if kind is not object:
            try:
                return polars.Series(name, values, strict=kind is not float)
            except (TypeError, polars.exceptions.PolarsError):
                # They have no common type.
                pass
        return polars.Series(name, values, dtype=polars.Object)

    def _table(self, columns: dict[str, Any]) -> Any:
        if self._library == "pandas":
            import pandas

            return pandas.DataFrame(columns, index=self._frame.index)
        if self._library == "polars":
            import polars

            return polars.DataFrame(columns)
        import pyarrow

        return pyarrow.table(columns)


def _values(column: Any) -> list[Any]:
    """The values of a column of pandas."""
    if getattr(column.dtype, "kind", "O") in "biuf" and type(column.dtype).__module__.startswith("numpy"):
        return column.tolist()  # type: ignore[no-any-return]
    return [None if gone else each for each, gone in zip(column.astype(object), column.isna(), strict=True)]


def _kind_of_numbers(values: Sequence[Any]) -> type | None:
    """`int` or `float`, or `object` for numbers that neither has exactly. None for other values. Some may be None."""
    kinds = {type(each) for each in values if each is not None}
    if not kinds or not kinds <= {int, float}:
        return None
    if len(kinds) == 1:
        return kinds.pop()
    return float if all(type(each) is not int or abs(each) <= 2**53 for each in values) else object


def _of_arrow(values: Sequence[Any]) -> Any:
    """An array of Arrow: as lists where it takes no arrays, and as texts of JSON where it has no common type."""
    import pyarrow

    for made in (list, plain):
        try:
            return pyarrow.array(made(values))
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
            pass
    return pyarrow.array([None if each is None else _json(each) for each in values], pyarrow.string())


def _json(value: Any) -> str:
    return msgspec.json.encode(plain(value), enc_hook=str).decode()


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)
