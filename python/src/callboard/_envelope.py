"""Values as envelopes: the form in which every input and output crosses the socket.

An envelope is a header, a tree of MessagePack, and segments: large leaves as they lie in memory. A reader returns
arrays as read-only views of the received bytes. A writer returns pieces, so that a large array is never copied. The
format is in `docs/wire.md`, sections "Values in MessagePack" and "Envelope, version 1".
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import io
import json
import math
import struct
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from callboard import _media, _torch

Buffer = bytes | bytearray | memoryview

MAGIC = b"\x89CBE"
VERSION = 1
ALIGNMENT = 64
# Leaves of this size and more become segments.
SEGMENT_BYTES = 1024
# The deepest nesting that either side follows.
MAX_DEPTH = 512

_HEADER = struct.Struct("<4sBBHIIQ")
_LENGTH = struct.Struct("<Q")
_SEGMENT = struct.Struct("<B3xI")
_ARRAY = struct.Struct("<BB6x")

TUPLE, SCALAR, TENSOR, TEXTS, FRAME, SERIES, SEGMENT = 1, 2, 3, 4, 5, 6, 7
BYTES = 0
TEXTS_CODE = 64
BF16_CODE = 11

_CODES = {
    "bool": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7, "uint32": 8, "uint64": 9,
    "float16": 10, "bfloat16": BF16_CODE, "float32": 12, "float64": 13, "complex64": 14, "complex128": 15,
}  # fmt: skip
_DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in _CODES.items() if code != BF16_CODE}

# Types that MessagePack expresses as they are.
_PLAIN = frozenset({type(None), bool, int, float, str})
# Types that have a text or number of their own.
_NAMED = (
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, enum.Enum,
)  # fmt: skip
_ZEROS = bytes(ALIGNMENT)
# The begin of a place says where to look.
_PLACE_CHARACTERS = 200


class EnvelopeError(ValueError):
    """The bytes are not an envelope that this reader knows."""


class MissingPackageError(TypeError):
    """The value is written or read by a package that is not installed here. The message names it."""


# ---- Writing ---------------------------------------------------------------------------------------------------------


class _Unwritable(TypeError):
    """A value without a form. Its place is put together on the way up."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.place = ""


def _too_deep(place: str) -> _Unwritable:
    """Python's own stack may end before the limit."""
    error = _Unwritable(f"nesting beyond {MAX_DEPTH} levels, or beyond Python's stack,")
    error.place = place
    return error


def encode_pieces(value: object) -> list[Buffer]:
    """Encodes a value as pieces that make an envelope one after the other. Raises `TypeError` with the place."""
    writer = _Writer()
    try:
        tree = writer.encoder.encode(writer.lower(value, 0))
    except _Unwritable as error:
        place = error.place if len(error.place) <= _PLACE_CHARACTERS else f"{error.place[:_PLACE_CHARACTERS]}…"
        raise TypeError(f"{error.message} at ${place}") from None
    except RecursionError:
        raise TypeError(f"{_too_deep('').message} at $") from None
    except OverflowError:
        raise TypeError(f"an integer beyond 64 bits at ${_place(value, _is_wide)}") from None
    except UnicodeEncodeError as error:
        raise TypeError(f"a text that has no UTF-8: {error.reason} at ${_place(value, _is_no_text)}") from None
    if not writer.segments:
        return [_HEADER.pack(MAGIC, VERSION, 0, 0, len(tree), 0, _HEADER.size + len(tree)) + tree]
    lengths = [len(segment) for segment in writer.segments]
    end = _HEADER.size + 8 * len(lengths) + len(tree)
    padded: list[Buffer] = []
    for segment in writer.segments:
        padding = -end % ALIGNMENT
        padded += (_ZEROS[:padding], segment)
        end += padding + len(segment)
    header = _HEADER.pack(MAGIC, VERSION, 0, 0, len(tree), len(lengths), end)
    return [header + struct.pack(f"<{len(lengths)}Q", *lengths) + tree, *padded]


def encode(value: object) -> bytes:
    """Encodes a value as one envelope."""
    return b"".join(encode_pieces(value))


class _Writer:
    """Turns one value into a tree that MessagePack expresses, and collects its segments in their order."""

    __slots__ = ("segments",)

    encoder = msgspec.msgpack.Encoder()

    def __init__(self) -> None:
        self.segments: list[memoryview] = []

    def lower(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if depth > MAX_DEPTH:
            raise _too_deep("")
        if kind is dict:
            return self.map(value, depth)
        if kind is list:
            return self.list(value, depth)
        if kind is np.ndarray:
            return self.array(value)
        if kind is tuple:
            return Ext(TUPLE, self.encoder.encode(self.list(value, depth)))
        if kind is bytes:
            return value if len(value) < SEGMENT_BYTES else self.leaf(BYTES, b"", memoryview(value))
        return self.other(value, depth)

    def list(self, items: Iterable[Any], depth: int) -> Any:
        items = items if isinstance(items, (list, tuple)) else list(items)
        if _PLAIN.issuperset(map(type, items)):
            return items if isinstance(items, list) else list(items)
        lowered = []
        try:
            for item in items:
                lowered.append(self.lower(item, depth + 1))
        except _Unwritable as error:
            error.place = f"[{len(lowered)}]{error.place}"
            raise
        except RecursionError:
            raise _too_deep(f"[{len(lowered)}]") from None
        return lowered

    def map(self, entries: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        if type(entries) is dict:
            for name, value in entries.items():
                if type(name) is not str or type(value) not in _PLAIN:
                    break
            else:
                return entries
        lowered: dict[str, Any] = {}
        for key, value in entries.items():
            name = key if type(key) is str else _key(key)
            if name in lowered:
                raise _Unwritable(f"two keys that are both written as {name!r}")
            try:
                lowered[name] = value if type(value) in _PLAIN else self.lower(value, depth + 1)
            except _Unwritable as error:
                error.place = f".{name}{error.place}"
                raise
            except RecursionError:
                raise _too_deep(f".{name}") from None
        return lowered

    def other(self, value: Any, depth: int) -> Any:
        """Everything that is not one of the usual types."""
        if isinstance(value, (bytearray, memoryview)):
            return self.lower(bytes(value), depth)
        if isinstance(value, io.BytesIO):
            return self.lower(value.getvalue(), depth)
        if isinstance(value, _NAMED):
            return self.lower(_named(value), depth)
        if isinstance(value, np.generic):
            return self.scalar(value)
        if isinstance(value, np.memmap):
            return self.array(np.asarray(value))
        if isinstance(value, np.ndarray):
            # A mask, a unit, or what `*` means: an envelope has no place for them.
            raise _Unwritable(f"an array of type `{_type_name(value)}` cannot be sent, only a plain numpy.ndarray")
        if isinstance(value, msgspec.Struct):
            return self.lower(_struct_fields(value), depth)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return self.map(fields, depth)
        if isinstance(value, Mapping):
            return self.map(value, depth)
        if isinstance(value, tuple):
            return self.lower(tuple(value), depth)
        if isinstance(value, (list, set, frozenset)):
            return self.list(list(value), depth)
        for plain in (str, int, float):
            if isinstance(value, plain):
                return plain(value)
        if type(value).__module__.partition(".")[0] in ("pyarrow", "pandas", "polars"):
            return self.frame(value)
        if hasattr(value, "model_dump") and not isinstance(value, type):
            # The root of a `RootModel` may be any value.
            return self.lower(_dumped(value), depth)
        if _torch.is_tensor(type(value)):
            return self.array(_array_of_tensor(value))
        data = _media.as_bytes(value)
        if data is not None:
            return self.lower(data, depth)
        if hasattr(value, "__array__"):
            return self.array(np.asarray(value))
        raise _Unwritable(f"a value of type `{_type_name(value)}` cannot be sent")

    def array(self, array: np.ndarray[Any, Any]) -> Ext:
        if array.dtype.kind in "UT":
            return self.texts(array)
        header = self.array_header(_code(array.dtype), array)
        # Little-endian elements in row-major order. Most arrays have them already.
        array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        return self.leaf_of_array(TENSOR, header, array.reshape(-1).view(np.uint8).data)

    def texts(self, array: np.ndarray[Any, Any]) -> Ext:
        header = self.array_header(TEXTS_CODE, array)
        try:
            pieces = [text.encode() for text in array.reshape(-1).tolist()]
        except UnicodeEncodeError as error:
            raise _Unwritable(f"a text that has no UTF-8: {error.reason}") from None
        except AttributeError:
            # A `StringDType` may have another object for each text that is missing.
            raise _Unwritable(f"an array of dtype `{array.dtype}` with missing texts cannot be sent") from None
        ends = np.cumsum([len(piece) for piece in pieces], dtype="<u8").tobytes()
        return self.leaf_of_array(TEXTS, header, memoryview(ends + b"".join(pieces)))

    def array_header(self, code: int, array: np.ndarray[Any, Any]) -> bytes:
        return _ARRAY.pack(code, array.ndim) + struct.pack(f"<{array.ndim}Q", *array.shape)

    def leaf_of_array(self, kind: int, header: bytes, data: memoryview) -> Ext:
        if len(data) < SEGMENT_BYTES:
            return Ext(kind, header + data.tobytes())
        return self.leaf(kind, header, data)

    def leaf(self, kind: int, header: bytes, data: memoryview) -> Ext:
        self.segments.append(data)
        return Ext(SEGMENT, _SEGMENT.pack(kind, len(self.segments) - 1) + header)

    def scalar(self, value: np.generic) -> Any:
        if isinstance(value, (np.str_, np.bytes_)):
            return value.item()
        code = _code(value.dtype)
        return Ext(SCALAR, bytes((code,)) + np.asarray(value).astype(value.dtype.newbyteorder("<")).tobytes())

    def frame(self, value: Any) -> Ext:
        kind, stream = _arrow_stream(value)
        if len(stream) < SEGMENT_BYTES:
            return Ext(kind, stream.tobytes())
        return self.leaf(kind, b"", stream)


def _named(value: Any) -> Any:
    """The text or number of a value that has one."""
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        plain = _standard_time(value)
        if plain is None:
            raise _Unwritable(f"a value of type `{_type_name(value)}` cannot be sent") from None
        return msgspec.to_builtins(plain)


def _standard_time(value: Any) -> datetime.datetime | datetime.timedelta | None:
    """A time of a class that is derived from the standard library's, such as those of pandas."""
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise _Unwritable(f"a value of type `{_type_name(value)}` with nanoseconds cannot be sent")
    try:
        if isinstance(value, datetime.datetime):
            return datetime.datetime.combine(value.date(), value.timetz())
        if isinstance(value, datetime.timedelta):
            return datetime.timedelta(value.days, value.seconds, value.microseconds)
    except ValueError:
        # `NaT` of pandas is a time without a date.
        pass
    return None


def _code(dtype: np.dtype[Any]) -> int:
    code = _CODES.get(dtype.name)
    if code is None or (dtype.kind == "V" and code != BF16_CODE):
        raise _Unwritable(f"an array of dtype `{dtype}` cannot be sent")
    return code


def _key(key: Any) -> str:
    """A map key is text. A number or bool stands for its text."""
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return str(key)
    if isinstance(key, (bool, np.bool_)):
        return "true" if key else "false"
    if isinstance(key, (int, float, np.integer, np.floating)):
        return str(key)
    raise _Unwritable(f"a key of type `{_type_name(key)}`: keys are texts")


def _struct_fields(value: msgspec.Struct) -> Any:
    """The fields of a Struct as msgspec itself would write them."""
    config = value.__struct_config__
    fields: dict[str, Any] = {}
    if config.tag is not None and config.tag_field is not None:
        fields[config.tag_field] = config.tag
    for name, written in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
        item = getattr(value, name)
        if item is not msgspec.UNSET or config.array_like:
            fields[written] = item
    return list(fields.values()) if config.array_like else fields


def _dumped(model: Any) -> Any:
    """The fields of a model of pydantic, under the names that its reader takes."""
    kind: type = type(model)
    return model.model_dump(by_alias=True) if _is_read_by_alias(kind) else model.model_dump()


@functools.lru_cache(maxsize=256)
def _is_read_by_alias(kind: type) -> bool:
    """Whether each field has one alias for both directions, or none."""
    fields, config = getattr(kind, "model_fields", {}).values(), getattr(kind, "model_config", {})
    is_one = all(field.serialization_alias == field.validation_alias for field in fields)
    return is_one and config.get("validate_by_alias", True) is not False


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _array_of_tensor(value: Any) -> np.ndarray[Any, Any]:
    try:
        return _torch.to_array(value)
    except TypeError as error:
        # Other errors, such as those of a device, are no fault of the value.
        reason = (str(error).splitlines() or [""])[0]
        raise _Unwritable(f"a value of type `{_type_name(value)}` cannot be sent: {reason}") from None


def _is_wide(value: Any) -> bool:
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def _is_no_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False


def _place(value: Any, is_wrong: Callable[[Any], bool]) -> str:
    """The place of the first leaf that MessagePack has refused."""
    return _find(value, is_wrong) or ""


def _find(value: Any, is_wrong: Callable[[Any], bool]) -> str | None:
    if is_wrong(value):
        return ""
    for step, item in _children(value):
        if is_wrong(step):
            # The key of a map: the place is that of the map, because this one cannot be printed.
            return ""
        place = _find(item, is_wrong)
        if place is not None:
            return step + place
    return None


def _children(value: Any) -> Iterable[tuple[str, Any]]:
    """The parts of a value, each with its step."""
    if isinstance(value, msgspec.Struct):
        value = _struct_fields(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "model_dump") and not isinstance(value, type):
        value = _dumped(value)
    if isinstance(value, Mapping):
        return ((f".{key}", item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ((f"[{index}]", item) for index, item in enumerate(value))
    return ()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise MissingPackageError("data frames and series need pyarrow: install `callboard[arrow]`") from None
    return pyarrow


def _arrow_stream(value: Any) -> tuple[int, memoryview]:
    """A frame or series of pyarrow, pandas or polars as an Arrow IPC stream."""
    pa = _pyarrow()
    kind, table = FRAME, None
    if isinstance(value, pa.Table):
        table = value
    elif isinstance(value, pa.RecordBatch):
        table = pa.Table.from_batches([value])
    elif isinstance(value, pa.Scalar):
        raise _Unwritable(f"a value of type `{_type_name(value)}` cannot be sent")
    else:
        try:
            kind, table = _table_of(pa, value)
        except (pa.ArrowException, ValueError, TypeError) as error:
            if isinstance(error, _Unwritable):
                raise
            reason = error.args[0] if error.args else error
            raise _Unwritable(f"a value of type `{_type_name(value)}` cannot be sent: {reason}") from None
    for field in table.schema:
        unread = _unread_type(pa, field.type)
        if unread is not None:
            raise _Unwritable(
                f"a value of type `{_type_name(value)}` cannot be sent: column `{field.name}` has {unread}"
            )
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
    raise _Unwritable(f"a value of type `{_type_name(value)}` cannot be sent")


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
        raise _Unwritable(
            f"the index of a `{_type_name(value)}` cannot be sent: use reset_index(), with drop=True or not"
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


def _read_series(table: Any) -> Any:
    """The column of a table, which keeps its schema."""
    column = table.column(0)
    key = id(column)
    _READ_SERIES[key] = weakref.ref(column, lambda _: _READ_SERIES.pop(key, None)), table.schema
    return column


# ---- Reading ---------------------------------------------------------------------------------------------------------


class Decoder:
    """Reads envelopes, one at a time. Arrays are read-only views of the buffer, which must not change afterwards."""

    def __init__(self) -> None:
        self._tree = msgspec.msgpack.Decoder(ext_hook=self._extension)
        self._segments: list[memoryview] = []
        self._next = 0
        self._kinds: dict[int, Callable[[memoryview], Any]] = {
            TUPLE: self._tuple,
            SCALAR: _scalar,
            TENSOR: lambda data: _tensor(*_array_header(data)),
            TEXTS: lambda data: _texts(*_array_header(data)),
            FRAME: _table,
            SERIES: _series,
            SEGMENT: self._segment,
        }

    def decode(self, buffer: Buffer) -> Any:
        tree, self._segments = _split(buffer)
        self._next = 0
        try:
            value = self._tree.decode(tree)
            if self._next != len(self._segments):
                raise EnvelopeError(f"{len(self._segments)} segments, of which {self._next} are referred to")
            return value
        except RecursionError:
            raise EnvelopeError("the value is nested too deeply") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EnvelopeError(str(error)) from error
        finally:
            self._segments = []

    def _extension(self, code: int, data: memoryview) -> Any:
        read = self._kinds.get(code)
        if read is None:
            raise EnvelopeError(f"extension type {code} is not supported")
        return read(data)

    def _tuple(self, data: memoryview) -> Any:
        items = self._tree.decode(data)
        if type(items) is not list:
            raise EnvelopeError("a tuple whose payload is not an array")
        return tuple(items)

    def _segment(self, data: memoryview) -> Any:
        if len(data) < _SEGMENT.size:
            raise EnvelopeError("a reference to a segment is too short")
        kind, number = _SEGMENT.unpack_from(data)
        if number != self._next or number >= len(self._segments):
            raise EnvelopeError(f"segment {number} where {self._next} of {len(self._segments)} comes next")
        segment = self._segments[number]
        self._next += 1
        if kind in (TENSOR, TEXTS):
            code, shape, rest = _array_header(data[_SEGMENT.size :])
            _no_more(rest)
            return _tensor(code, shape, segment) if kind == TENSOR else _texts(code, shape, segment)
        _no_more(data[_SEGMENT.size :])
        if kind == BYTES:
            return bytes(segment)
        if kind in (FRAME, SERIES):
            return _table(segment) if kind == FRAME else _series(segment)
        raise EnvelopeError(f"a segment of kind {kind} is not supported")


def decode(buffer: Buffer) -> Any:
    """Decodes one envelope."""
    return Decoder().decode(buffer)


def _split(buffer: Buffer) -> tuple[Buffer, list[memoryview]]:
    """The tree and the segments. Every length is held against the bytes that are there."""
    if len(buffer) < _HEADER.size:
        raise EnvelopeError(f"{len(buffer)} bytes are shorter than the header of an envelope")
    magic, version, flags, zero, tree_bytes, count, total = _HEADER.unpack_from(buffer)
    if magic != MAGIC:
        raise EnvelopeError("the bytes do not begin as an envelope")
    if version != VERSION or flags or zero:
        raise EnvelopeError(f"envelope version {version}, flags {flags}: this reader knows version 1, flags 0")
    if total != len(buffer):
        raise EnvelopeError(f"an envelope of {total} bytes in {len(buffer)} bytes")
    start = _HEADER.size + 8 * count
    end = start + tree_bytes
    if end > total:
        raise EnvelopeError("the lengths exceed the envelope")
    if not count and end == total and type(buffer) is bytes:
        # Most items: a copy of a few bytes is cheaper than a view of them.
        return buffer[start:end], []
    view = memoryview(buffer).toreadonly()
    tree = view[start:end]
    segments: list[memoryview] = []
    for (length,) in _LENGTH.iter_unpack(view[_HEADER.size : start]):
        place = end + -end % ALIGNMENT
        if length == 0 or place + length > total:
            raise EnvelopeError("a segment is empty, or exceeds the envelope")
        if any(view[end:place]):
            raise EnvelopeError("the padding before a segment is not zero")
        end = place + length
        segments.append(view[place:end])
    if end != total:
        raise EnvelopeError("more bytes than the lengths say")
    return tree, segments


def _array_header(data: memoryview) -> tuple[int, tuple[int, ...], memoryview]:
    """The dtype code, the shape, and what follows them."""
    if len(data) < _ARRAY.size:
        raise EnvelopeError("the header of an array is too short")
    code, rank = _ARRAY.unpack_from(data)
    end = _ARRAY.size + 8 * rank
    if len(data) < end:
        raise EnvelopeError("the header of an array is too short")
    return code, struct.unpack_from(f"<{rank}Q", data, _ARRAY.size), data[end:]


def _no_more(rest: memoryview) -> None:
    if len(rest):
        raise EnvelopeError("more bytes than the header of a segment has")


def _dtype(code: int) -> np.dtype[Any]:
    if code == BF16_CODE:
        try:
            import ml_dtypes
        except ImportError:
            raise MissingPackageError("an array of bfloat16 needs ml_dtypes: install `callboard[bfloat16]`") from None
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    if code not in _DTYPES:
        raise EnvelopeError(f"dtype code {code} is not known")
    return _DTYPES[code]


def _scalar(data: memoryview) -> Any:
    dtype = _dtype(data[0] if len(data) else 0)
    if len(data) != 1 + dtype.itemsize:
        raise EnvelopeError(f"a scalar of {dtype} in {len(data)} bytes")
    return _elements(dtype, data[1:])[0]


def _tensor(code: int, shape: tuple[int, ...], data: memoryview) -> np.ndarray[Any, Any]:
    dtype = _dtype(code)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise EnvelopeError(f"an array of {dtype} with shape {shape} in {len(data)} bytes")
    try:
        array = _elements(dtype, data).reshape(shape)
    except ValueError as error:
        raise EnvelopeError(str(error)) from None
    if not array.flags.aligned:
        array = array.copy()
    array.flags.writeable = False
    return array


def _elements(dtype: np.dtype[Any], data: memoryview) -> np.ndarray[Any, Any]:
    if not len(data):
        return np.empty(0, dtype)
    if dtype == np.bool_ and np.frombuffer(data, np.uint8).max() > 1:
        raise EnvelopeError("a bool that is neither 0 nor 1")
    return np.frombuffer(data, dtype)


def _texts(code: int, shape: tuple[int, ...], data: memoryview) -> np.ndarray[Any, Any]:
    count = math.prod(shape)
    if code != TEXTS_CODE or count > len(data) // 8:
        raise EnvelopeError(f"an array of texts with shape {shape} in {len(data)} bytes")
    raw, texts, start = bytes(data[8 * count :]), [], 0
    for (end,) in _LENGTH.iter_unpack(data[: 8 * count]):
        if not start <= end <= len(raw):
            raise EnvelopeError("a text ends outside of its array")
        try:
            texts.append(raw[start:end].decode())
        except UnicodeDecodeError as error:
            raise EnvelopeError(f"a text is not UTF-8: {error}") from None
        start = end
    if start != len(raw):
        raise EnvelopeError("more bytes than the texts have")
    try:
        array = np.array(texts, _text_dtype(texts, len(raw))).reshape(shape)
    except ValueError as error:
        raise EnvelopeError(str(error)) from None
    array.flags.writeable = False
    return array


def _text_dtype(texts: list[str], total_bytes: int) -> Any:
    """`<U…`, which pads each text to the longest and drops final zeros; where that will not do, `StringDType`."""
    padded = 4 * len(texts) * max(map(len, texts), default=0)
    if (padded > 1 << 20 and padded > 64 * total_bytes) or any(text.endswith("\0") for text in texts):
        return np.dtypes.StringDType()
    return np.str_


def _table(data: memoryview) -> Any:
    pa = _pyarrow()
    try:
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    except MemoryError:
        raise
    except Exception as error:
        # Readers of extension types, such as those of pandas, raise what they like.
        raise EnvelopeError(f"a data frame: {error}") from None


def _series(data: memoryview) -> Any:
    table = _table(data)
    if table.num_columns != 1:
        raise EnvelopeError(f"a series of {table.num_columns} columns")
    return _read_series(table)
