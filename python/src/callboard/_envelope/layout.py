"""The structures, codes, limits and errors that the writer and the reader of envelopes share."""

from __future__ import annotations

import struct

import numpy as np

Buffer = bytes | bytearray | memoryview

MAGIC = b"\x89CBE"
VERSION = 1
ALIGNMENT = 64
# Leaves of this size and more become segments.
SEGMENT_BYTES = 1024
# The most bytes that the frames of one value may unpack to, unless the reader says otherwise.
MAX_UNPACKED_BYTES = 1 << 30
# The deepest nesting that either side follows.
MAX_DEPTH = 512

HEADER = struct.Struct("<4sBBHIIQ")
LENGTH = struct.Struct("<Q")
SEGMENT_REFERENCE = struct.Struct("<B3xI")
ARRAY_HEADER = struct.Struct("<BB6x")

# Extension types of MessagePack; the kind of a segment is one of them, or `BYTES`.
TUPLE, SCALAR, TENSOR, TEXTS, FRAME, SERIES, SEGMENT = 1, 2, 3, 4, 5, 6, 7
BYTES = 0
# Codes of dtypes.
TEXTS_CODE = 64
BF16_CODE = 11
CODES = {
    "bool": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7, "uint32": 8, "uint64": 9,
    "float16": 10, "bfloat16": BF16_CODE, "float32": 12, "float64": 13, "complex64": 14, "complex128": 15,
}  # fmt: skip
DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in CODES.items() if code != BF16_CODE}


class EnvelopeError(ValueError):
    """The bytes are not an envelope that this reader knows."""


class TooLargeError(EnvelopeError):
    """The bytes unpack to more than the limit of the reader."""


class MissingPackageError(TypeError):
    """The value is written or read by a package that is not installed here. The message names it."""


class Unwritable(TypeError):
    """A value without a form. Its place is put together on the way up."""

    def __init__(self, message: str, cure: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = ""
        # The value to send instead. The message has it behind the place.
        self.cure = cure


def type_name(value: object) -> str:
    """The type of a value as errors name it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
