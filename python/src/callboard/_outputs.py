"""Whether an output has the type that its hint says. Members of lists and maps are not looked at."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

from callboard._envelope import Buffer, decode, encode, encode_pieces
from callboard._media import File

_INTEGERS = {np.dtype(code).type for code in "bhilqBHILQ"}
_FLOATS = {np.dtype(code).type for code in "efdg"}
# The types that fit each hint for sure. A scalar of NumPy is sent with its dtype, and read as a number.
_SCALARS: dict[Any, set[Any]] = {
    bool: {bool, np.bool_},
    int: {int, *_INTEGERS},
    float: {float, int, *_FLOATS, *_INTEGERS},
    str: {str, np.str_},
    bytes: {bytes},
    type(None): {type(None)},
}
# Outputs of these types are never maps or lists, nor objects that become one.
_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))

Encode = Callable[[Any], Sequence[Buffer]]


def encoder(hint: Any, forms: int, convert: Callable[[Any, Any], Any], name: Callable[[Any], str]) -> Encode:
    """The encoder of the outputs of this hint, whose forms are these. It raises `TypeError` for one of another type.

    Nearly all outputs have exactly a type that fits. A text, number or None in the place of something else is converted
    as its caller would convert it, and so is everything in the place of one.
    """
    kinds = _kinds(hint)
    if kinds is None:
        return functools.partial(encode_pieces, forms=forms) if forms else encode_pieces
    fitting, is_scalar = kinds

    def checked(output: Any) -> Sequence[Buffer]:
        kind = type(output)
        if kind not in fitting and (is_scalar or kind in _PLAIN):
            _check(output, hint, convert, name)
        return encode_pieces(output, forms)

    return checked


def _check(output: Any, hint: Any, convert: Callable[[Any, Any], Any], name: Callable[[Any], str]) -> None:
    sent = decode(encode(output))
    try:
        convert(sent, hint)
    except (ValueError, TypeError):
        kind = type(output).__qualname__
        raise TypeError(f"a value of type `{kind}` is not what the hint `-> {name(hint)}` says") from None


def _kinds(hint: Any) -> tuple[frozenset[Any], bool] | None:
    """The types of outputs that fit for sure, and whether those of all others are looked at. None: any output fits."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _kinds(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        found = [_kinds(each) for each in get_args(hint)]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        return frozenset().union(*(fitting for fitting, _ in known)), all(is_scalar for _, is_scalar in known)
    if origin is Literal:
        return frozenset(map(type, get_args(hint))), True
    if hint in _SCALARS:
        return frozenset(_SCALARS[hint]), True
    kind = origin or hint
    if hint is Any or kind is object or not isinstance(kind, type):
        return None
    return frozenset((kind, bytes) if issubclass(kind, File) else (kind,)), False
