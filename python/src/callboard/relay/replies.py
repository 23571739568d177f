"""Replies of a participant as columns of plain values, and the checks that do not depend on the competition."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from callboard._envelope import type_name
from callboard.relay.errors import GatewayRaised, InvalidReply

# The columns of a reply or a submission by their names. All have the same length.
Rows = dict[str, list[Any]]
Kind = type[bool] | type[int] | type[float] | type[str]

_PLAIN = (bool, int, float, str)
_NAMES: dict[Kind, str] = {int: "int of 64 bits", float: "finite float"}
# The longest reply, in bytes. In memory a list of small values has about eight times its size.
MAX_REPLY_BYTES = 64 << 20
# The most wrong values in one message.
_SHOWN = 3
# A participant's value in a message is short, also if it is large or deep.
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 40


@dataclasses.dataclass(frozen=True)
class OtherId:
    """An id of a type that MessagePack has not, such as a date, for the process that reads replies."""

    kind: str
    text: str

    def __repr__(self) -> str:
        return self.text


def rows_of(
    reply: Any, ids: Any, id_column: str, columns: Mapping[str, Kind], max_bytes: int = MAX_REPLY_BYTES
) -> Rows:
    """The rows of a reply, the id first. Raises `InvalidReply` if they do not fit the ids and the types of the columns.

    A reply is one value (one row), a list or an array of one dimension (one column), a mapping of columns, or a data
    frame. Without a column of ids its rows are those of the batch, in order. With one it must equal that of the batch:
    rows in another order are refused. Rows are counted before a value is read, and the texts of a column have at most
    `max_bytes`.
    """
    expected = ids_of(ids)
    try:
        found = _columns(reply, columns, id_column)
        for name in columns:
            if name not in found:
                raise InvalidReply(f"there is no column {name!r}")
        for name in found:
            if name not in columns and name != id_column:
                raise InvalidReply(f"the column {_shown(name)} was not asked for")
        for name in (id_column, *columns):
            if name in found:
                found[name] = _values(name, found[name], len(expected), max_bytes)
    except InvalidReply:
        raise
    except Exception as error:
        # Arrow has values that Python has not, such as a time in the year 146138514283. Each has its own exception.
        raise InvalidReply(f"the reply cannot be read: {type(error).__name__}: {error}") from error
    if id_column in found:
        _check_ids(found.pop(id_column), expected, id_column)
    return {id_column: expected, **{name: _typed(name, found[name], kind) for name, kind in columns.items()}}


def _columns(reply: Any, columns: Mapping[str, Kind], id_column: str) -> dict[str, Any]:
    """The columns of a reply as they came."""
    if reply is None:
        raise InvalidReply("the reply is None")
    if isinstance(reply, Mapping):
        return {str(name): values for name, values in reply.items()}
    names = getattr(reply, "column_names", None) or getattr(reply, "columns", None)
    if names is not None:
        once: set[str] = set()
        for name in map(str, names):
            if name in once:
                raise InvalidReply(f"the column {_shown(name)} is there twice")
            once.add(name)
        return {str(name): reply[name] for name in names}
    if len(columns) != 1:
        raise InvalidReply(f"a reply has the columns {', '.join(columns)} by name, got {type(reply).__name__}")
    ((name, _),) = columns.items()
    return {name: [reply] if isinstance(reply, (*_PLAIN, np.generic)) else reply}


def _values(name: Any, values: Any, count: int | None = None, max_bytes: int | None = None) -> list[Any]:
    """The plain values of a list, an array, or a column of a frame. Their number must be the count, if there is one."""
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise InvalidReply(f"{_shown(name)}: an array must have one dimension, and has the shape {values.shape}")
    method = next((each for each in ("to_pylist", "to_list", "tolist") if hasattr(values, each)), None)
    if method is None and (not isinstance(values, Sequence) or isinstance(values, (str, bytes))):
        raise InvalidReply(f"{_shown(name)}: expected a list, an array or a column, got {type(values).__name__}")
    # A scalar of NumPy has the method, and no length.
    if count is not None and hasattr(values, "__len__") and len(values) != count:
        raise InvalidReply(f"expected {count} rows, got {len(values)} in {_shown(name)}")
    if method == "to_pylist" and max_bytes is not None:
        return _arrow_values(name, values, max_bytes)
    if method is not None:
        values = getattr(values, method)()
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise InvalidReply(f"{_shown(name)}: expected a list, an array or a column, got {type(values).__name__}")
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _arrow_values(name: Any, column: Any, max_bytes: int) -> list[Any]:
    """As `to_pylist`. One text may stand in every row: all of them together have at most this size."""
    import pyarrow

    kind = column.type
    while pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    if pyarrow.types.is_nested(kind) or isinstance(kind, pyarrow.BaseExtensionType):
        raise InvalidReply(f"{_shown(name)}: a column of the type {_shown(str(column.type))}")
    values, size = [], 0
    for each in column:
        value = each.as_py()
        if isinstance(value, (str, bytes)):
            size += len(value)
            if size > max_bytes:
                raise InvalidReply(f"the texts of {_shown(name)} exceed max_reply_bytes = {max_bytes}")
        values.append(value)
    return values


def ids_of(ids: Any) -> list[Any]:
    """The ids of a batch as plain values. Raises `GatewayRaised` for none, or for a repeated id."""
    try:
        found = _values("ids", ids)
    except InvalidReply as error:
        raise GatewayRaised(f"the ids of a batch: {error}") from error
    if not found:
        raise GatewayRaised("a batch has no ids, and so no rows")
    if len(set(map(repr, found))) != len(found):
        raise GatewayRaised("a batch has an id twice")
    return found


def _check_ids(given: list[Any], expected: list[Any], column: str) -> None:
    wrong = [
        (row, got, wanted)
        for row, (got, wanted) in enumerate(zip(given, expected, strict=True))
        if not _is_same(got, wanted)
    ]
    if wrong:
        places = "; ".join(f"row {row}: {_shown(got)} instead of {wanted!r}" for row, got, wanted in wrong[:_SHOWN])
        raise InvalidReply(f"{len(wrong)} wrong ids in {column!r}: {places}")


def _is_same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, OtherId):
        return OtherId(type_name(got), repr(got)) == wanted
    return type(got) is type(wanted) and bool(got == wanted)


def _typed(name: str, values: list[Any], kind: Kind) -> list[Any]:
    """The values in their type; a whole number is also a `float`. No number may be infinite or not a number."""
    wrong = [(row, value) for row, value in enumerate(values) if not _fits(value, kind)]
    if wrong:
        places = "; ".join(f"row {row}: {_shown(value)}" for row, value in wrong[:_SHOWN])
        raise InvalidReply(f"{len(wrong)} values of {name!r} are no {_NAMES.get(kind, kind.__name__)}: {places}")
    return [kind(value) for value in values]


def _shown(value: Any) -> str:
    try:
        return _REPR.repr(value)
    except Exception:
        # An integer of more than 4300 digits has no text.
        return f"a value of type {type(value).__name__}"


def _fits(value: Any, kind: Kind) -> bool:
    if kind is float:
        # An integer may be too large for a float.
        is_number = type(value) is float or (type(value) is int and abs(value) <= 2**1023)
        return is_number and math.isfinite(value)
    if kind is int:
        return type(value) is int and -(2**63) <= value < 2**63
    return type(value) is kind
