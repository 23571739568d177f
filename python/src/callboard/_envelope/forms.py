"""Which types say that their values are written in another form: keys that are no texts, and sets.

A map key is text on the wire, and a set is a list. Where a type says what they were, a reader with the same type makes
them again; elsewhere they would change in silence, and are refused.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import re
import types
import typing
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from callboard._envelope.frames import LIBRARIES

# The forms that a type takes, as flags; `FRAMES` are those of a library that it names. `PACKED` is no hint's: outputs
# for a gateway of evaluations have it.
KEYS, SETS, FRAMES, PACKED = 1, 2, 4, 8

# Hints that cannot be read are texts.
_TEXT_OF_SETS = re.compile(r"\b(?:frozen)?set\b|\b(?:Abstract|Frozen|Mutable)?Set\b")
_TEXT_OF_KEYS = re.compile(r"\b(?:dict|Dict|Mapping)\[\s*(?:int|float|bool)\b")


def forms_of(hint: Any) -> int:
    """The flags of a type or hint."""
    try:
        return _known(hint)
    except TypeError:
        # Notes of `Annotated` may be lists.
        return _find(hint, set())


@functools.lru_cache(maxsize=1024)
def _known(hint: Any) -> int:
    return _find(hint, set())


def _find(hint: Any, seen: set[Any]) -> int:
    if isinstance(hint, str):
        return (SETS if _TEXT_OF_SETS.search(hint) else 0) | (KEYS if _TEXT_OF_KEYS.search(hint) else 0)
    hint = _meaning(hint)
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return 0
    found = 0
    if isinstance(origin, type):
        if origin.__module__.partition(".")[0] in LIBRARIES:
            return FRAMES
        if issubclass(origin, collections.abc.Set):
            found |= SETS
        if issubclass(origin, collections.abc.Mapping) and arguments and not _is_text(arguments[0]):
            found |= KEYS
        if origin not in seen and _has_fields(origin):
            seen.add(origin)
            for each in _fields(origin):
                found |= _find(each, seen)
    for each in arguments[:1] if origin is Annotated else arguments:
        found |= _find(each, seen)
    return found


def _meaning(hint: Any) -> Any:
    """What `type X = ...`, `NewType` and the stand-ins of hints stand for."""
    while True:
        if type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif hasattr(hint, "__stands_for__"):
            hint = hint.__stands_for__
        else:
            return hint


def _has_fields(kind: type) -> bool:
    return (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, msgspec.Struct)
        or typing.is_typeddict(kind)
        or hasattr(kind, "model_fields")
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )


def _fields(kind: Any) -> list[Any]:
    if isinstance(models := getattr(kind, "model_fields", None), dict):
        return [field.annotation for field in models.values()]
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except Exception:
        # Names of a function that has ended.
        return list(getattr(kind, "__annotations__", {}).values())


def _is_text(hint: Any) -> bool:
    """Whether keys of this hint are texts. An open one says nothing."""
    hint = _meaning(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or hint is object or isinstance(hint, (typing.TypeVar, str)):
        return True
    if origin is Annotated:
        return _is_text(arguments[0])
    if origin in (Union, types.UnionType):
        return all(map(_is_text, arguments))
    if origin is Literal:
        return all(isinstance(each, str) for each in arguments)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return all(isinstance(each.value, str) for each in hint)
    return isinstance(hint, type) and issubclass(hint, str)
