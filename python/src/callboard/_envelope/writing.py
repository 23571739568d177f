"""Values as pieces of an envelope."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import io
import os
import struct
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from callboard import _media, _torch
from callboard._elsewhere import cure_of_value
from callboard._envelope.arrow import arrow_stream, packed_stream
from callboard._envelope.forms import KEYS, PACKED, SETS, forms_of
from callboard._envelope.layout import (
    ALIGNMENT,
    ARRAY_HEADER,
    BF16_CODE,
    BYTES,
    CODES,
    FRAME,
    HEADER,
    MAGIC,
    MAX_DEPTH,
    SCALAR,
    SEGMENT,
    SEGMENT_BYTES,
    SEGMENT_REFERENCE,
    TENSOR,
    TEXTS,
    TEXTS_CODE,
    TUPLE,
    VERSION,
    Buffer,
    Unwritable,
    type_name,
)
from callboard._envelope.texts import has_texts
from callboard._said import said

# Types that MessagePack expresses as they are.
_PLAIN = frozenset({type(None), bool, int, float, str})
# Types that have a text or number of their own.
_NAMED = (
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, enum.Enum,
)  # fmt: skip
_ZEROS = bytes(ALIGNMENT)
# The start of a place says where to look.
_PLACE_CHARACTERS = 200


def _too_deep(place: str) -> Unwritable:
    """Python's own stack may end before the limit."""
    error = Unwritable(f"nesting beyond {MAX_DEPTH} levels, or beyond Python's stack,")
    error.place = place
    return error


def encode_pieces(value: object, forms: int = 0) -> list[Buffer]:
    """Encodes a value as pieces that make an envelope one after the other. Raises `TypeError` with the place.

    `forms` are those of the hint of the value, if it has one: see `forms.py`.
    """
    writer = _Writer(forms)
    try:
        tree = writer.encoder.encode(writer.lower(value, 0))
    except Unwritable as error:
        place = error.place if len(error.place) <= _PLACE_CHARACTERS else f"{error.place[:_PLACE_CHARACTERS]}…"
        raise TypeError(f"{error.message} at ${place}{error.cure}") from None
    except RecursionError:
        raise TypeError(f"{_too_deep('').message} at $") from None
    except OverflowError:
        raise TypeError(f"an integer beyond 64 bits at ${_place(value, _is_wide)}") from None
    except UnicodeEncodeError as error:
        raise TypeError(f"a text that has no UTF-8: {error.reason} at ${_place(value, _is_no_text)}") from None
    if not writer.segments:
        return [HEADER.pack(MAGIC, VERSION, 0, 0, len(tree), 0, HEADER.size + len(tree)) + tree]
    lengths = [len(segment) for segment in writer.segments]
    end = HEADER.size + 8 * len(lengths) + len(tree)
    padded: list[Buffer] = []
    for segment in writer.segments:
        padding = -end % ALIGNMENT
        padded += (_ZEROS[:padding], segment)
        end += padding + len(segment)
    header = HEADER.pack(MAGIC, VERSION, 0, 0, len(tree), len(lengths), end)
    return [header + struct.pack(f"<{len(lengths)}Q", *lengths) + tree, *padded]


def encode(value: object, forms: int = 0) -> bytes:
    """Encodes a value as one envelope."""
    return b"".join(encode_pieces(value, forms))


class _Writer:
    """Turns one value into a tree that MessagePack expresses, and collects its segments in their order."""

    __slots__ = ("forms", "segments")

    encoder = msgspec.msgpack.Encoder()

    def __init__(self, forms: int) -> None:
        self.forms = forms
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
        except Unwritable as error:
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
            name = key if type(key) is str else _key(key, self.forms)
            if name in lowered:
                raise Unwritable(f"two keys that are both written as {name!r}")
            try:
                lowered[name] = value if type(value) in _PLAIN else self.lower(value, depth + 1)
            except Unwritable as error:
                error.place = f".{name}{error.place}"
                raise
            except RecursionError:
                raise _too_deep(f".{name}") from None
        return lowered

    def other(self, value: Any, depth: int) -> Any:
        """Everything that is not one of the usual types."""
        if self.forms & PACKED and (packed := packed_stream(value)) is not None:
            return self.stream(FRAME, packed)
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
            raise Unwritable(f"an array of type `{type_name(value)}` cannot be sent, only a plain numpy.ndarray")
        if isinstance(value, msgspec.Struct):
            return self.typed(type(value), _struct_fields(value), depth)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return self.typed(type(value), fields, depth)
        if hasattr(type(value), "__attrs_attrs__"):
            return self.typed(type(value), _attrs_fields(value), depth)
        if isinstance(value, Mapping):
            return self.map(value, depth)
        if isinstance(value, tuple):
            return self.lower(tuple(value), depth)
        if isinstance(value, (set, frozenset)) and not self.forms & SETS:
            cure = "send it as a list, or give the result a hint such as set[str]"
            raise Unwritable(f"a value of type `{type_name(value)}` cannot be sent, and would become a list: {cure},")
        if isinstance(value, (list, set, frozenset)):
            return self.list(list(value), depth)
        for plain in (str, int, float):
            if isinstance(value, plain):
                return plain(value)
        if type(value).__module__.partition(".")[0] in ("pyarrow", "pandas", "polars"):
            return self.frame(value)
        if hasattr(value, "model_dump") and not isinstance(value, type):
            # The root of a `RootModel` may be any value.
            return self.typed(type(value), _dumped(value), depth)
        if _torch.is_tensor(type(value)):
            return self.array(_array_of_tensor(value))
        data = _media.as_bytes(value)
        if data is not None:
            return self.lower(data, depth)
        if hasattr(value, "__array__"):
            return self.array(np.asarray(value))
        raise Unwritable(f"a value of type `{type_name(value)}` cannot be sent", _cure(value))

    def typed(self, kind: type, fields: Any, depth: int) -> Any:
        """The fields of a value, whose type may say more of its keys and sets than what it is in."""
        outer, self.forms = self.forms, self.forms | forms_of(kind)
        try:
            return self.lower(fields, depth)
        finally:
            self.forms = outer

    def array(self, array: np.ndarray[Any, Any]) -> Ext:
        if array.dtype.kind in "UTO" and has_texts(array):
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
            raise Unwritable(f"a text that has no UTF-8: {error.reason}") from None
        except AttributeError:
            # A `StringDType` may have another object for each text that is missing.
            raise Unwritable(f"an array of dtype `{array.dtype}` with missing texts cannot be sent") from None
        ends = np.cumsum([len(piece) for piece in pieces], dtype="<u8").tobytes()
        return self.leaf_of_array(TEXTS, header, memoryview(ends + b"".join(pieces)))

    def array_header(self, code: int, array: np.ndarray[Any, Any]) -> bytes:
        return ARRAY_HEADER.pack(code, array.ndim) + struct.pack(f"<{array.ndim}Q", *array.shape)

    def leaf_of_array(self, kind: int, header: bytes, data: memoryview) -> Ext:
        if len(data) < SEGMENT_BYTES:
            return Ext(kind, header + data.tobytes())
        return self.leaf(kind, header, data)

    def leaf(self, kind: int, header: bytes, data: memoryview) -> Ext:
        self.segments.append(data)
        return Ext(SEGMENT, SEGMENT_REFERENCE.pack(kind, len(self.segments) - 1) + header)

    def scalar(self, value: np.generic) -> Any:
        if isinstance(value, (np.str_, np.bytes_)):
            return value.item()
        code = _code(value.dtype)
        return Ext(SCALAR, bytes((code,)) + np.asarray(value).astype(value.dtype.newbyteorder("<")).tobytes())

    def frame(self, value: Any) -> Ext:
        return self.stream(*arrow_stream(value))

    def stream(self, kind: int, stream: memoryview) -> Ext:
        if len(stream) < SEGMENT_BYTES:
            return Ext(kind, stream.tobytes())
        return self.leaf(kind, b"", stream)


def _attrs_fields(value: Any) -> dict[str, Any]:
    """The fields of an object of attrs."""
    return {field.name: getattr(value, field.name) for field in type(value).__attrs_attrs__}


def _cure(value: Any) -> str:
    """The cure for a value that cannot be sent."""
    if isinstance(value, io.IOBase):
        return ": give its `read()`, or a `cb.File.open(path)`"
    if isinstance(value, os.PathLike):
        return ": give a `cb.File.open(path)` for the file, or a `str(path)` for its name"
    if isinstance(value, (Iterator, AsyncIterator)):
        return ": a stream is of a function with `yield`, or with the hint `-> Iterator[…]`; or give a list"
    if isinstance(value, Coroutine):
        return ": it is to be awaited"
    if isinstance(value, (range, deque)):
        return ": give a list"
    cure = cure_of_value(value)
    if cure is not None:
        return f": {cure}"
    if hasattr(value, "get_secret_value"):
        return ": it is a secret; give its `get_secret_value()` if it is to be sent"
    return ""


def _named(value: Any) -> Any:
    """The text or number of a value that has one."""
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        plain = _standard_time(value)
        if plain is None:
            raise Unwritable(f"a value of type `{type_name(value)}` cannot be sent") from None
        return msgspec.to_builtins(plain)


def _standard_time(value: Any) -> datetime.datetime | datetime.timedelta | None:
    """A time of a class that is derived from the standard library's, such as those of pandas."""
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise Unwritable(f"a value of type `{type_name(value)}` with nanoseconds cannot be sent")
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
    code = CODES.get(dtype.name)
    if code is None or (dtype.kind == "V" and code != BF16_CODE):
        raise Unwritable(f"an array of dtype `{dtype}` cannot be sent")
    return code


def _key(key: Any, forms: int) -> str:
    """A map key is text. A number or bool stands for its text where a hint says that it was one."""
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return str(key)
    if not forms & KEYS and isinstance(key, (bool, int, float, np.bool_, np.integer, np.floating)):
        cure = f"send {said(key)!r}, or give the result a hint such as dict[int, str]"
        raise Unwritable(f"a key of type `{type_name(key)}`, {said(key, repr)}: keys are texts: {cure},")
    if isinstance(key, (bool, np.bool_)):
        return "true" if key else "false"
    if isinstance(key, (int, float, np.integer, np.floating)):
        return str(key)
    raise Unwritable(f"a key of type `{type_name(key)}`: keys are texts")


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


def _array_of_tensor(value: Any) -> np.ndarray[Any, Any]:
    try:
        return _torch.to_array(value)
    except TypeError as error:
        # Other errors, such as those of a device, are no fault of the value.
        reason = (said(error).splitlines() or [""])[0]
        raise Unwritable(f"a value of type `{type_name(value)}` cannot be sent: {reason}") from None


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
    elif hasattr(type(value), "__attrs_attrs__"):
        value = _attrs_fields(value)
    elif hasattr(value, "model_dump") and not isinstance(value, type):
        value = _dumped(value)
    if isinstance(value, Mapping):
        return ((f".{key}", item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ((f"[{index}]", item) for index, item in enumerate(value))
    return ()
