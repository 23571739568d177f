"""Unions that msgspec does not tell apart, such as of two models, dataclasses or TypedDicts.

With a model of pydantic among its types, pydantic decides, also by a discriminator. Else it is the first type that the
value fits, of several the first with a field for each key of the value.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Annotated, Any, Union, get_origin

import msgspec


class _Union(type):
    """The class of the stand-ins, which msgspec takes for types of their own."""

    members: tuple[Any, ...]

    def __instancecheck__(cls, value: Any) -> bool:
        # The converted values are checked already.
        return True


class Misfits(list[tuple[str, str]]):
    """The errors of a value as each of the types: places and texts."""


def is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def is_stand_in(kind: Any) -> bool:
    return isinstance(kind, _Union)


def decidable(hint: Any, members: tuple[Any, ...], name: Callable[[Any], str]) -> Any:
    """A union as msgspec takes it. `members` are its types, as they are converted."""
    union: Any = Union.__getitem__(members)
    if get_origin(hint) is not Annotated:
        try:
            msgspec.msgpack.Decoder(union)
            return union
        except TypeError:
            pass
        except NameError:
            return union
    space: dict[str, Any] = {"members": members, "__module__": "", "__qualname__": " | ".join(map(name, members))}
    if any(map(is_model, members)):
        space |= _by_pydantic(hint)
    return _Union(space["__qualname__"], (), space)


def has_discriminator(notes: list[Any]) -> bool:
    return any(getattr(note, "discriminator", None) is not None for note in notes)


def is_model(kind: Any) -> bool:
    """Whether it has the methods of a model of pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def _by_pydantic(hint: Any) -> dict[str, Any]:
    """The methods of a model that is any of them."""
    import pydantic

    adapter: Any = pydantic.TypeAdapter(hint, config={"arbitrary_types_allowed": True})
    return {
        "model_validate": staticmethod(adapter.validate_python),
        "model_json_schema": staticmethod(adapter.json_schema),
    }


def first_fit(kind: Any, value: Any, convert: Callable[[Any, Any], Any], fields: Callable[[Any], set[str]]) -> Any:
    """The value as one of the types, or why it is none of them."""
    found: list[Any] = []
    wrong = Misfits()
    for member in kind.members:
        try:
            converted = convert(value, member)
        except ValueError as error:
            places = getattr(error, "fields", None) or [("$", str(error))]
            name = getattr(member, "__qualname__", str(member))
            wrong += [(place.removeprefix("$"), f"as `{name}`: {text}") for place, text in places]
            continue
        if not isinstance(value, dict) or fields(member).issuperset(value):
            return converted
        found.append(converted)
    return found[0] if found else wrong
