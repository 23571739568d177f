"""The size of a data frame when it is unpacked, before pyarrow reads it: the same arithmetic as in the node.

pyarrow validates where buffers lie. It trusts the size that a compressed buffer announces, and rows that need no bytes,
and reads one buffer as often as columns refer to it. The layout is that of the Arrow columnar format, "Encapsulated
message format": a message is a FlatBuffer, which pyarrow has verified, and a body.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from callboard._envelope.layout import EnvelopeError, TooLargeError

# Rows of one value beyond what its bytes could hold at one bit each: columns of nulls. As in the node.
MAX_EMPTY_ROWS = 1 << 20
# Memory of one column of one batch without its data.
_COLUMN_BYTES = 1024
# The types of a message's header.
_DICTIONARY, _BATCH = 2, 3


class Room:
    """The bytes that the frames of one value may still unpack to."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = self._rows = 0

    def take(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._max_bytes:
            raise TooLargeError(f"data frames that unpack to {self._bytes} bytes or more exceed {self._max_bytes}")

    def require(self, size: int) -> None:
        """Fails as if so many bytes were taken, and takes none."""
        if self._bytes + size > self._max_bytes:
            raise TooLargeError(f"data frames that unpack to {self._bytes + size} bytes exceed {self._max_bytes}")

    def take_empty_rows(self, rows: int) -> None:
        self._rows += rows
        if self._rows > MAX_EMPTY_ROWS:
            raise EnvelopeError(f"a data frame of {self._rows} rows without bytes: at most {MAX_EMPTY_ROWS}")


def check_frame(pa: Any, data: Any, room: Room) -> None:
    """Refuses a stream that would take more than the room. Raises the errors of pyarrow for a damaged stream."""
    for message in pa.ipc.MessageReader.open_stream(data):
        try:
            _check(memoryview(message.metadata), message.body, room)
        except EnvelopeError:
            raise
        except (struct.error, IndexError, ValueError) as error:
            raise EnvelopeError(f"a data frame: a message that cannot be read: {error}") from None


# The most that pandas takes for one value: an object of Python and the pointer to it, or a number.
_NUMBER_BYTES, _TEXT_BYTES, _DECIMAL_BYTES, _LIST_BYTES, _MAP_BYTES = 8, 64, 120, 128, 192


def pandas_bytes(pa: Any, array: Any) -> int:
    """The most that pandas takes for an array of Arrow beyond its bytes: bits with nulls, for one, become objects."""
    if isinstance(array, pa.ChunkedArray):
        return sum(pandas_bytes(pa, chunk) for chunk in array.chunks)
    types, kind, rows = pa.types, array.type, len(array)
    if isinstance(kind, pa.BaseExtensionType):
        return pandas_bytes(pa, array.storage)
    if types.is_dictionary(kind):
        return _NUMBER_BYTES * rows + pandas_bytes(pa, array.dictionary)
    if types.is_struct(kind):
        fields = [array.field(number) for number in range(kind.num_fields)]
        return (_MAP_BYTES + _TEXT_BYTES * len(fields)) * rows + sum(pandas_bytes(pa, field) for field in fields)
    if hasattr(array, "values"):
        return _LIST_BYTES * rows + pandas_bytes(pa, array.values)
    if types.is_decimal(kind):
        return _DECIMAL_BYTES * rows
    is_flat = types.is_primitive(kind) or types.is_null(kind)
    return (_NUMBER_BYTES if is_flat and not (types.is_date(kind) or types.is_time(kind)) else _TEXT_BYTES) * rows


def _check(metadata: memoryview, body: Any, room: Room) -> None:
    message = _Table(metadata, 0)
    kind, batch = message.number(1, "<B"), message.table(2)
    if kind == _DICTIONARY and batch is not None:
        if batch.number(2, "<B"):
            raise EnvelopeError("a data frame: a dictionary that adds to another one is not supported")
        batch = batch.table(1)
    if kind not in (_DICTIONARY, _BATCH) or batch is None:
        return
    nodes, buffers = batch.pairs(1), batch.pairs(2)
    part = memoryview(body) if body is not None else memoryview(b"")
    if (buffers < 0).any() or int(buffers[:, 1].sum()) > len(part):
        raise EnvelopeError("a data frame: buffers that overlap, or lie outside of their message")
    size = int(buffers[:, 1].sum())
    if batch.table(3) is not None:
        size = sum(_unpacked(part, int(place), int(length)) for place, length in buffers)
        room.take(size)
    room.take(_COLUMN_BYTES * len(nodes))
    rows = nodes[:, 0] if len(nodes) else np.array([batch.number(0, "<q")])
    # Each column may count all bytes of the batch, so that honest columns of nulls pass.
    room.take_empty_rows(sum(max(0, row - 8 * size) for row in rows.tolist()))


def _unpacked(body: memoryview, place: int, length: int) -> int:
    """The size of a compressed buffer, which stands before it; -1 if it is not compressed."""
    if not length:
        return 0
    (size,) = struct.unpack_from("<q", body[place : place + length])
    if size < -1:
        raise EnvelopeError("a data frame: a compressed buffer of negative size")
    return length - 8 if size == -1 else int(size)


class _Table:
    """A table of a FlatBuffer: its fields by their numbers."""

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._at = place + _read(data, place, "<I")
        self._fields = self._at - _read(data, self._at, "<i")
        self._size = _read(data, self._fields, "<H")

    def number(self, field: int, form: str) -> int:
        at = self._place(field)
        return _read(self._data, at, form) if at else 0

    def table(self, field: int) -> _Table | None:
        at = self._place(field)
        return _Table(self._data, at) if at else None

    def pairs(self, field: int) -> np.ndarray[Any, Any]:
        """A vector of structs of two integers of 64 bits."""
        at = self._place(field)
        if not at:
            return np.empty((0, 2), np.int64)
        at += _read(self._data, at, "<I")
        return np.frombuffer(self._data, "<i8", 2 * _read(self._data, at, "<I"), at + 4).reshape(-1, 2)

    def _place(self, field: int) -> int:
        """The place of a field; 0 if it is left out."""
        entry = 4 + 2 * field
        offset = _read(self._data, self._fields + entry, "<H") if entry < self._size else 0
        return self._at + offset if offset else 0


def _read(data: memoryview, place: int, form: str) -> int:
    if place < 0:
        raise IndexError("an offset below 0")
    return int(struct.unpack_from(form, data, place)[0])
