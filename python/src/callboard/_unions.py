"""Unions that msgspec does not tell apart, such as of two models, dataclasses or TypedDicts.

With a model of pydantic among its types, pydantic decides, also by a discriminator. Else it is the first type that the
value fits, of several the first with a field for each key of the value.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import enum
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Union, get_origin

import msgspec


class StandIn(type):
    """The class of the stand-ins, which msgspec takes for types of their own."""

    members: tuple[Any, ...]
    # The hint that it is in the place of.
    __stands_for__: Any

    def __instancecheck__(cls, value: Any) -> bool:
        # The converted values are checked already.
        return True


class Misfits(list[tuple[str, str]]):
    """The errors of a value as each of the types: places and texts."""


def is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def is_stand_in(kind: Any) -> bool:
    return isinstance(kind, StandIn)


def decidable(hint: Any, members: tuple[Any, ...], name: Callable[[Any], str]) -> Any:
    """A union as msgspec takes it. `members` are its types, as they are converted."""
    union: Any = Union[members]  # noqa: UP007 - the parts are only known here
    if get_origin(hint) is not Annotated:
        try:
            msgspec.msgpack.Decoder(union)
            return union
        except TypeError:
            pass
        except NameError:
            return union
    return _stand_in(hint, members, " | ".join(map(name, members)), by_pydantic=any(map(is_model, members)))


def of_pydantic(kind: Any) -> Any:
    """A dataclass of pydantic, or a type such as `SecretStr`, as one that pydantic reads; None of other types."""
    is_dataclass = dataclasses.is_dataclass(kind) and hasattr(kind, "__pydantic_validator__")
    if not isinstance(kind, type) or is_model(kind) or is_stand_in(kind):
        return None
    if not is_dataclass and (not hasattr(kind, "__get_pydantic_core_schema__") or _is_of_msgspec(kind)):
        return None
    try:
        return _stand_in(kind, (kind,), kind.__qualname__, by_pydantic=True)
    except ImportError:
        return None


def _is_of_msgspec(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or issubclass(kind, (msgspec.Struct, enum.Enum, str, int, float, bytes, dict))


def _stand_in(hint: Any, members: tuple[Any, ...], name: str, *, by_pydantic: bool) -> Any:
    space: dict[str, Any] = {"members": members, "__stands_for__": hint, "__module__": "", "__qualname__": name}
    if by_pydantic:
        space |= _by_pydantic(hint)
    return StandIn(name, (), space)


def has_discriminator(notes: list[Any]) -> bool:
    return any(getattr(note, "discriminator", None) is not None for note in notes)


def is_model(kind: Any) -> bool:
    """Whether it has the methods of a model of pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def _by_pydantic(hint: Any) -> dict[str, Any]:
    """The methods of a model that is any of them."""
    import pydantic

    # A single type has a configuration of its own.
    config: Any = None if isinstance(hint, type) else {"arbitrary_types_allowed": True}
    adapter: Any = pydantic.TypeAdapter(hint, config=config)
    return {
        "model_validate": staticmethod(adapter.validate_python),
        "model_json_schema": staticmethod(adapter.json_schema),
    }


def first_fit(
    kind: Any, value: Any, convert: Callable[[Any, Any], Any], fields: Callable[[Any], frozenset[str]]
) -> Any:
    """The value as one of the types, or why it is none of them."""
    found: list[Any] = []
    wrong = Misfits()
    for member in kind.members:
        converted, places = _as_member(member, value, convert)
        if places is not None:
            name = getattr(member, "__qualname__", str(member))
            # The innermost name says most.
            texts = [text if text.startswith("as `") else f"as `{name}`: {text}" for _, text in places]
            wrong += zip((place.removeprefix("$") for place, _ in places), texts, strict=True)
            continue
        if not isinstance(value, dict) or fields(member).issuperset(value):
            return converted
        found.append(converted)
    # In types that contain themselves, several members have all the misfits of the next level, which say most.
    return found[0] if found else Misfits([*dict.fromkeys(wrong)][-_MAX_MISFITS:])


_MAX_MISFITS = 32
# What values became as the members of unions, or why not, while the outermost one is read. Without it, each level of
# types that contain themselves would be read once for each member of the level above, and so on.
_known: contextvars.ContextVar[dict[tuple[int, int], Any] | None] = contextvars.ContextVar(
    "callboard_members", default=None
)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """While an outermost union is read, or one inside of it."""
    if _known.get() is not None:
        yield
        return
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def _as_member(member: Any, value: Any, convert: Callable[[Any, Any], Any]) -> tuple[Any, list[tuple[str, str]] | None]:
    """The value as this type, and what is wrong with it."""
    known, key = _known.get(), (id(value), id(member))
    if known is not None and key in known:
        return known[key][:2]  # type: ignore[no-any-return]
    found: tuple[Any, Any]
    try:
        found = convert(value, member), None
    except ValueError as error:
        found = None, getattr(error, "fields", None) or [("$", str(error))]
    if known is not None:
        # The value stays alive, and so its id is of no other one.
        known[key] = (*found, value)
    return found
