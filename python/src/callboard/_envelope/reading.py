"""Envelopes as values. Every length is held against the bytes that are there."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from callboard._envelope.arrow import read_frame, read_series
from callboard._envelope.frame_check import Room
from callboard._envelope.layout import (
    ALIGNMENT,
    ARRAY_HEADER,
    BF16_CODE,
    BYTES,
    DTYPES,
    FRAME,
    HEADER,
    LENGTH,
    MAGIC,
    MAX_UNPACKED_BYTES,
    SCALAR,
    SEGMENT,
    SEGMENT_REFERENCE,
    SERIES,
    TENSOR,
    TEXTS,
    TUPLE,
    VERSION,
    Buffer,
    EnvelopeError,
    MissingPackageError,
)
from callboard._envelope.texts import PADDING_BYTES, read_texts


class Decoder:
    """Reads envelopes, one at a time. Arrays are read-only views of the buffer, which must not change afterwards."""

    def __init__(
        self, max_unpacked_bytes: int = MAX_UNPACKED_BYTES, *, is_as_sent: bool = False, unpacks: bool = False
    ) -> None:
        """`max_unpacked_bytes` bounds what the data frames of one envelope unpack to.

        With `is_as_sent` they have the types of the library that has sent them, else of pyarrow. With
        `unpacks`, frames that stand for other values become those: only for calls of an evaluation relay.
        """
        self.is_as_sent, self.unpacks = is_as_sent, unpacks
        self._max_unpacked_bytes = max_unpacked_bytes
        self._tree = msgspec.msgpack.Decoder(ext_hook=self._extension)
        self._segments: list[memoryview] = []
        self._next = 0
        self._padding = 0
        self._room = Room(max_unpacked_bytes)
        self._kinds: dict[int, Callable[[memoryview], Any]] = {
            TUPLE: self._tuple,
            SCALAR: _scalar,
            TENSOR: lambda data: _tensor(*_array_header(data)),
            TEXTS: lambda data: self._texts(*_array_header(data)),
            FRAME: lambda data: read_frame(data, self._room, self.is_as_sent, self.unpacks),
            SERIES: lambda data: read_series(data, self._room, self.is_as_sent),
            SEGMENT: self._segment,
        }

    def decode(self, buffer: Buffer) -> Any:
        tree, self._segments = _split(buffer)
        self._next, self._padding, self._room = 0, PADDING_BYTES, Room(self._max_unpacked_bytes)
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
        if len(data) < SEGMENT_REFERENCE.size:
            raise EnvelopeError("a reference to a segment is too short")
        kind, number = SEGMENT_REFERENCE.unpack_from(data)
        if number != self._next or number >= len(self._segments):
            raise EnvelopeError(f"segment {number} where {self._next} of {len(self._segments)} comes next")
        segment = self._segments[number]
        self._next += 1
        if kind in (TENSOR, TEXTS):
            code, shape, rest = _array_header(data[SEGMENT_REFERENCE.size :])
            _no_more(rest)
            return _tensor(code, shape, segment) if kind == TENSOR else self._texts(code, shape, segment)
        _no_more(data[SEGMENT_REFERENCE.size :])
        if kind == BYTES:
            return bytes(segment)
        if kind in (FRAME, SERIES):
            return self._kinds[kind](segment)
        raise EnvelopeError(f"a segment of kind {kind} is not supported")

    def _texts(self, code: int, shape: tuple[int, ...], data: memoryview) -> np.ndarray[Any, Any]:
        array, self._padding = read_texts(code, shape, data, self._padding)
        return array


def decode(
    buffer: Buffer, max_unpacked_bytes: int = MAX_UNPACKED_BYTES, *, is_as_sent: bool = False, unpacks: bool = False
) -> Any:
    """Decodes one envelope: see `Decoder`."""
    return Decoder(max_unpacked_bytes, is_as_sent=is_as_sent, unpacks=unpacks).decode(buffer)


def _split(buffer: Buffer) -> tuple[Buffer, list[memoryview]]:
    """The tree and the segments. Every length is held against the bytes that are there."""
    if len(buffer) < HEADER.size:
        raise EnvelopeError(f"{len(buffer)} bytes are shorter than the header of an envelope")
    magic, version, flags, zero, tree_bytes, count, total = HEADER.unpack_from(buffer)
    if magic != MAGIC:
        raise EnvelopeError("the bytes do not begin as an envelope")
    if version != VERSION or flags or zero:
        raise EnvelopeError(f"envelope version {version}, flags {flags}: this reader knows version 1, flags 0")
    if total != len(buffer):
        raise EnvelopeError(f"an envelope of {total} bytes in {len(buffer)} bytes")
    start = HEADER.size + 8 * count
    end = start + tree_bytes
    if end > total:
        raise EnvelopeError("the lengths exceed the envelope")
    if not count and end == total and type(buffer) is bytes:
        # Most items: a copy of a few bytes is cheaper than a view of them.
        return buffer[start:end], []
    view = memoryview(buffer).toreadonly()
    tree = view[start:end]
    segments: list[memoryview] = []
    for (length,) in LENGTH.iter_unpack(view[HEADER.size : start]):
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
    if len(data) < ARRAY_HEADER.size:
        raise EnvelopeError("the header of an array is too short")
    code, rank = ARRAY_HEADER.unpack_from(data)
    end = ARRAY_HEADER.size + 8 * rank
    if len(data) < end:
        raise EnvelopeError("the header of an array is too short")
    return code, struct.unpack_from(f"<{rank}Q", data, ARRAY_HEADER.size), data[end:]


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
    if code not in DTYPES:
        raise EnvelopeError(f"dtype code {code} is not known")
    return DTYPES[code]


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
    except (ValueError, OverflowError) as error:
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
