"""Whether an output has the type that its hint says. Members of lists, and of maps that stand for no class, are not
looked at."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
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
_LISTS = frozenset((list, tuple, set, frozenset))

Encode = Callable[[Any], Sequence[Buffer]]


def encoder(hint: Any, forms: int, convert: Callable[[Any, Any], Any], name: Callable[[Any], str]) -> Encode:
    """The encoder of the outputs of this hint, whose forms are these. It raises `TypeError` for one of another type.

    Nearly all outputs have exactly a type that fits. A text, number or None in the place of something else is converted
    as its caller would convert it, and so is everything in the place of one, and a map in the place of a class.
    """
    kinds = _kinds(hint)
    if kinds is None:
        return functools.partial(encode_pieces, forms=forms) if forms else encode_pieces
    fitting, is_scalar = kinds
    looked_at = _looked_at(hint)

    def checked(output: Any) -> Sequence[Buffer]:
        kind = type(output)
        if kind not in fitting and (is_scalar or kind in looked_at):
            _check(output, hint, convert, name)
        return encode_pieces(output, forms)

    return checked


def _check(output: Any, hint: Any, convert: Callable[[Any, Any], Any], name: Callable[[Any], str]) -> None:
    if type(output) is dict:
        # Nearly all of them fit as they are.
        with contextlib.suppress(ValueError, TypeError):
            convert(output, hint)
            return
    try:
        convert(decode(encode(output)), hint)
    except (ValueError, TypeError) as error:
        kind = type(output).__qualname__
        # The fields that are wrong.
        what = f": {error}" if "$" in str(error).replace("`$`", "") else ""
        raise TypeError(f"a value of type `{kind}` is not what the hint `-> {name(hint)}` says{what}") from None


def _looked_at(hint: Any) -> frozenset[Any]:
    """The types of outputs that are looked at where they do not fit: a map may stand for a class, but no list does, nor
    one of both for the other."""
    found = _PLAIN
    if _every(_is_map_or_class, hint):
        found |= _LISTS
    if _every(_LISTS.__contains__, hint) or not _every(lambda kind: not _has_fields(kind), hint):
        found |= {dict}
    return found


def _every(holds: Callable[[Any], bool], hint: Any) -> bool:
    """Whether this holds for each class of this hint that is no scalar."""
    kind = get_origin(hint) or hint
    if kind in _SCALARS:
        return True
    if kind in (Annotated, Union, types.UnionType):
        return all(_every(holds, each) for each in get_args(hint)[: 1 if kind is Annotated else None])
    return holds(kind)


def _is_map_or_class(kind: Any) -> bool:
    return kind is dict or _has_fields(kind)


def _has_fields(kind: Any) -> bool:
    """Whether a map may stand for it."""
    return (
        typing.is_typeddict(kind)
        or dataclasses.is_dataclass(kind)
        or hasattr(kind, "model_fields")
        or hasattr(kind, "__struct_fields__")
    )


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
