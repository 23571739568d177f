"""Lists as NumPy's arrays and arrays as lists, at a bounded cost.

Both forms can take many times the bytes of an input, and the hint decides only afterwards whether it is taken.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, NewType, TypeAlias, TypeVar, get_args, get_origin

import numpy as np

from callboard._envelope import text_dtype

# As lists, arrays take up to 40 times their bytes. The first element of a larger one tells whether a list is wanted.
FIRST = 1024
# The part of a message of msgspec that an array cut short may be the cause of.
OF_LENGTH = "of length"

_NUMBERS = {bool, int, float, complex}

# The lengths that each axis may have, and None where it may have any.
Axes: TypeAlias = tuple[tuple[int, ...] | None, ...]


class WrongArray(ValueError):
    """The value is no array of this kind."""


def plain(value: Any, most: float = math.inf) -> Any:
    """NumPy's arrays and scalars as lists and numbers, for hints such as `list[float]`; else the value itself.

    An array of more than `most` elements is a list of its first one.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return (value if value.size <= most else value[(slice(1),) * value.ndim]).tolist()
    if isinstance(value, (list, tuple)):
        items = [plain(item, most) for item in value]
        changed = any(new is not old for new, old in zip(items, value, strict=True))
        return type(value)(items) if changed else value
    if isinstance(value, dict):
        entries = {key: plain(item, most) for key, item in value.items()}
        return entries if any(entries[key] is not value[key] for key in value) else value
    return value


def has_large(value: Any) -> bool:
    """Whether there is an array that `plain` cuts short."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(has_large, value.values() if isinstance(value, dict) else value))
    return isinstance(value, np.ndarray) and value.size > FIRST


def array_of_lists(value: Any) -> np.ndarray[Any, Any]:
    """`np.asarray`, but one long text among many is not what all of them are padded to."""
    count = longest = size = 0
    rest = [value]
    while rest:
        each = rest.pop()
        if isinstance(each, (list, tuple)):
            if not _NUMBERS.issuperset(map(type, each)):
                rest += each
        elif isinstance(each, bytes):
            raise WrongArray("Expected an array of numbers")
        elif isinstance(each, str) or (isinstance(each, np.ndarray) and each.dtype.kind in "UT"):
            texts = [each] if isinstance(each, str) else each.reshape(-1).tolist()
            count, size = count + len(texts), size + sum(map(len, texts))
            longest = max(longest, max(map(len, texts), default=0))
    return np.array(value, text_dtype(count, longest, size) if count else None)


def column_of(value: Any) -> Any:
    """A column of a frame as Arrow takes it: a list that is not of numbers as it is."""
    return value if isinstance(value, list) and not _NUMBERS.issuperset(map(type, value)) else np.asarray(value)


# ---- Types of arrays -------------------------------------------------------------------------------------------------


def array_dtype(hint: Any) -> Any:
    """The scalar type of `NDArray[np.float32]`; None if it is open."""
    arguments = get_args(hint)
    element = get_args(arguments[-1]) if arguments else ()
    scalar = element[0] if element else None
    return scalar if isinstance(scalar, type) and scalar is not np.generic else None


def array_axes(hint: Any) -> Axes | None:
    """The axes of `np.ndarray[tuple[Literal[8], int], np.dtype[np.float32]]`; None if any shape will do."""
    arguments = get_args(hint)
    shape = arguments[0] if arguments else Any
    axes = get_args(shape)
    if get_origin(shape) is not tuple or Ellipsis in axes:
        return None
    # That of Python 3.10 for `tuple[()]`.
    return () if axes == ((),) else tuple(_lengths(axis, hint) for axis in axes)


def _lengths(axis: Any, hint: Any) -> tuple[int, ...] | None:
    lengths = get_args(axis)
    if get_origin(axis) is Literal and all(type(each) is int and each >= 0 for each in lengths):
        return lengths
    if axis is Any or isinstance(axis, (TypeVar, NewType)) or (isinstance(axis, type) and issubclass(axis, int)):
        return None
    raise TypeError(f"the type `{hint}`: an axis is an `int` or a `Literal` of lengths, and not `{axis}`")


def shape_text(axes: Axes) -> str:
    """A shape in words: `(8, n)`."""
    lengths = ["n" if each is None else " or ".join(map(str, each)) for each in axes]
    return f"({', '.join(lengths)}{',' if len(axes) == 1 else ''})"


def may_agree(one: Axes, other: Axes) -> bool:
    """Whether an array may have both shapes."""
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(a is None or b is None or set(a) & set(b) for a, b in pairs)


@functools.lru_cache(maxsize=1024)
def _array_type(hint: Any) -> tuple[Any, Axes | None]:
    return array_dtype(hint), array_axes(hint)


def array_for(hint: Any, value: Any) -> np.ndarray[Any, Any]:
    """`to_array` with the dtype of a hint, and of its shape."""
    scalar, axes = _array_type(hint)
    array = to_array(value, scalar)
    if axes is not None and not (array.ndim == len(axes) and all(map(_allows, axes, array.shape))):
        raise WrongArray(f"Expected an array of shape {shape_text(axes)}, got {array.shape}")
    return array


def _allows(lengths: tuple[int, ...] | None, length: int) -> bool:
    return lengths is None or length in lengths


def to_array(value: Any, scalar: Any) -> np.ndarray[Any, Any]:
    """An array of a dtype. An array must have it already; numbers in lists are converted if nothing is lost."""
    given = isinstance(value, (np.ndarray, np.generic))
    try:
        array = np.asarray(value) if given else array_of_lists(value)
    except ValueError:
        raise WrongArray("Expected an array: the lists differ in length") from None
    if not given and array.dtype.kind not in "biufcUT":
        raise WrongArray("Expected an array of numbers")
    if scalar is None or issubclass(array.dtype.type, scalar):
        return array
    if given:
        raise WrongArray(f"Expected an array of {scalar.__name__}, got {array.dtype}: `astype` converts it")
    if not _converts(array, scalar):
        raise WrongArray(f"Expected an array of {scalar.__name__}, got {array.dtype} that does not fit")
    return array.astype(concrete(scalar))


def concrete(scalar: Any) -> Any:
    """`np.floating` and the like have no dtype of their own."""
    if scalar in (np.floating, np.inexact, np.number):
        return np.float64
    return np.int64 if scalar in (np.integer, np.signedinteger) else scalar


def _converts(array: np.ndarray[Any, Any], scalar: Any) -> bool:
    if array.size == 0:
        return True
    kind = array.dtype.kind
    dtype = np.dtype(concrete(scalar))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return kind in "iu" and int(array.min()) >= limits.min and int(array.max()) <= limits.max
    # bfloat16 of ml_dtypes has the kind V.
    return kind in {"f": "iuf", "V": "iuf", "c": "iufc"}.get(dtype.kind, dtype.kind)
