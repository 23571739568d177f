"""Arrays of texts, at a bounded cost.

NumPy's `<U…` pads each text to the longest one and drops final zeros. An array that would take much more than its
bytes is a `StringDType` instead, which keeps each text as long as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from callboard._envelope.layout import TEXTS_CODE, EnvelopeError

# The most that a padded array takes, for each of its bytes. ASCII texts of one length take less than this.
_MOST_FOR_A_BYTE = 4
# The bytes that padding may take beyond that, in all arrays of an envelope together. So short arrays have the dtype
# that users know.
PADDING_BYTES = 1 << 20
# NumPy 1 has no such dtype: there each text is an object of Python, and the dtype is marked as a dtype of texts.
_OBJECTS: Any = np.dtype(object, metadata={"callboard": "texts"})
_VARIABLE: Any = getattr(getattr(np, "dtypes", None), "StringDType", lambda: _OBJECTS)()
# How many texts are Python objects at the same time.
_BLOCK = 4096


def read_texts(code: int, shape: tuple[int, ...], data: memoryview, room: int) -> tuple[np.ndarray[Any, Any], int]:
    """The array, and what is left of the room for padding: see `PADDING_BYTES`."""
    count = math.prod(shape)
    if code != TEXTS_CODE or count > len(data) // 8:
        raise EnvelopeError(f"an array of texts with shape {shape} in {len(data)} bytes")
    ends = np.frombuffer(data, "<u8", count) if count else np.empty(0, "<u8")
    starts = np.concatenate((np.zeros(min(count, 1), "<u8"), ends[:-1]))
    raw = data[8 * count :]
    if (ends < starts).any() or (count and int(ends[-1]) > len(raw)):
        raise EnvelopeError("a text ends outside of its array")
    if (int(ends[-1]) if count else 0) != len(raw):
        raise EnvelopeError("more bytes than the texts have")
    try:
        dtype, room = _dtype(starts, ends, raw, len(data), room)
        array = np.empty(count, dtype)
        for first, texts in _decoded(starts, ends, raw):
            array[first : first + len(texts)] = texts
        array = array.reshape(shape)
    except UnicodeDecodeError as error:
        raise EnvelopeError(f"a text is not UTF-8: {error}") from None
    except (ValueError, OverflowError) as error:
        raise EnvelopeError(str(error)) from None
    array.flags.writeable = False
    return array, room


def _dtype(
    starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], raw: memoryview, size: int, room: int
) -> tuple[Any, int]:
    """The dtype of the array, and the room that is left."""
    letters = np.frombuffer(raw, np.uint8) if len(raw) else np.empty(0, np.uint8)
    if not letters[ends[ends > starts] - 1].all():
        return _VARIABLE, room
    if letters.max(initial=0) < 0x80:
        longest = int((ends - starts).max(initial=0))
    else:
        longest = max(max(map(len, texts)) for _, texts in _decoded(starts, ends, raw))
    left = _left(len(ends), longest, size, room)
    return (_VARIABLE, room) if left < 0 else (np.dtype(f"<U{longest}"), left)


def text_dtype(count: int, longest: int, size: int) -> Any:
    """The dtype of an array of `count` texts, which have `size` characters together."""
    return _VARIABLE if _left(count, longest, 8 * count + size, PADDING_BYTES) < 0 else np.str_


def has_texts(array: np.ndarray[Any, Any]) -> bool:
    """Whether all elements are texts by the dtype of the array."""
    return array.dtype.kind in "UT" or (array.dtype.metadata or {}).get("callboard") == "texts"


def _left(count: int, longest: int, size: int, room: int) -> int:
    """The room for padding after a padded array of `count` texts in `size` bytes. Below 0, it must not be padded."""
    return room - max(0, 4 * count * longest - _MOST_FOR_A_BYTE * size)


def _decoded(
    starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], raw: memoryview
) -> Iterator[tuple[int, list[str]]]:
    """The texts in blocks, each with the number of its first one."""
    for first in range(0, len(ends), _BLOCK):
        block = slice(first, first + _BLOCK)
        begin, end = int(starts[first]), int(ends[block][-1])
        part = bytes(raw[begin:end])
        places = zip((starts[block] - begin).tolist(), (ends[block] - begin).tolist(), strict=True)
        yield first, [part[start:end].decode() for start, end in places]
