"""Classes with fields that msgspec does not read, or does not make as the class itself does.

Such a class is read as a Struct of the same fields, and then called with them. It is one with a union or a limit of
pydantic in a field, or an attrs class with converters or other names of its arguments; and where objects are taken for
a NamedTuple, each NamedTuple.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import msgspec

from callboard._unions import StandIn

# The default of a key that a TypedDict may lack.
_ABSENT = msgspec.UNSET


class Field(typing.NamedTuple):
    """A field: its name in an input, that of the argument, its hint, and its default, which a function makes."""

    name: str
    argument: str
    hint: Any
    default: Callable[[], Any] | None = None
    # Shown in the schema.
    shown: Any = msgspec.NODEFAULT


def is_record(kind: Any) -> bool:
    return isinstance(kind, StandIn) and hasattr(kind, "structs")


def is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def has_other_arguments(kind: Any) -> bool:
    """Whether it is an attrs class that changes its arguments, or has other names for them than its fields."""
    fields = getattr(kind, "__attrs_attrs__", ())
    return any(field.converter is not None or getattr(field, "alias", field.name) != field.name for field in fields)


def fields_of(kind: Any) -> list[Field] | None:
    """The fields of a class whose hints can be read. None of another type."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception:
        # msgspec reads the names of a function that has not ended, or says what is wrong.
        return None
    if not isinstance(kind, type):
        return None
    if typing.is_typeddict(kind):
        return [_key(name, hint, name in kind.__required_keys__) for name, hint in hints.items()]  # type: ignore[attr-defined]
    if is_named_tuple(kind):
        defaults = kind._field_defaults  # type: ignore[attr-defined]
        none = dataclasses.MISSING
        return [_field(name, name, hints.get(name, Any), defaults.get(name, none)) for name in kind._fields]  # type: ignore[attr-defined]
    if issubclass(kind, msgspec.Struct):
        return [
            _field(each.encode_name, each.name, hints[each.name], each.default, each.default_factory)
            for each in msgspec.structs.fields(kind)
        ]
    if dataclasses.is_dataclass(kind):
        return [
            _field(each.name, each.name, hints[each.name], each.default, each.default_factory)
            for each in dataclasses.fields(kind)
            if each.init
        ]
    if hasattr(kind, "__attrs_attrs__"):
        return _fields_of_attrs(kind, hints)
    return None


def _fields_of_attrs(kind: Any, hints: dict[str, Any]) -> list[Field]:
    found = []
    for each in kind.__attrs_attrs__:
        default: Any = each.default
        factory: Any = dataclasses.MISSING
        if type(default).__name__ == "Factory":
            # One that takes the object is run by the class itself.
            default, factory = dataclasses.MISSING, _absent if default.takes_self else default.factory
        elif repr(default) == "NOTHING":
            default = dataclasses.MISSING
        if each.init:
            argument = getattr(each, "alias", each.name)
            found.append(_field(each.name, argument, hints.get(each.name, Any), default, factory))
    return found


def _key(name: str, hint: Any, required: bool) -> Field:
    while (form := getattr(get_origin(hint), "_name", None)) in ("Required", "NotRequired", "ReadOnly"):
        required = required if form == "ReadOnly" else form == "Required"
        (hint,) = get_args(hint)
    return Field(name, name, hint) if required else Field(name, name, hint, _absent)


def _field(name: str, argument: str, hint: Any, default: Any, factory: Any = dataclasses.MISSING) -> Field:
    none = (dataclasses.MISSING, msgspec.NODEFAULT)
    if is_pydantic_field(default):
        hint = Annotated[hint, default]
        if default.is_required():
            return Field(name, argument, hint)
        default, factory = default.default, default.default_factory or dataclasses.MISSING
    if not any(factory is each for each in none):
        return Field(name, argument, hint, factory)
    if any(default is each for each in none):
        return Field(name, argument, hint)
    shown = default if isinstance(default, (str, int, float, bool, type(None))) else msgspec.NODEFAULT
    return Field(name, argument, hint, functools.partial(_identity, default), shown)


def is_pydantic_field(default: Any) -> bool:
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(default).__mro__]
    return "pydantic.fields.FieldInfo" in kinds


def _absent() -> Any:
    return _ABSENT


def _identity(value: Any) -> Any:
    return value


def stand_in(kind: Any) -> Any:
    """The stand-in of a class, whose fields `complete` sets."""
    return StandIn(kind.__name__, (), {"__stands_for__": kind, "__module__": "", "__qualname__": kind.__qualname__})


def complete(record: Any, fields: list[Field], *, objects: bool) -> None:
    kind = record.__stands_for__
    config = getattr(kind, "__struct_config__", None)
    options: dict[str, Any] = {}
    if config is not None:
        options = {name: getattr(config, name) for name in ("tag", "tag_field", "forbid_unknown_fields", "array_like")}
    if is_named_tuple(kind):
        options = {"array_like": True, "forbid_unknown_fields": True}
    record.arguments = [field.argument for field in fields]
    record.structs = [_struct(kind, fields, options)]
    if is_named_tuple(kind) and objects:
        record.structs.append(_struct(kind, fields, {"forbid_unknown_fields": True}))


def _struct(kind: Any, fields: list[Field], options: dict[str, Any]) -> Any:
    made: list[Any] = []
    for place, field in enumerate(fields):
        default: dict[str, Any] = {}
        if field.shown is not msgspec.NODEFAULT:
            default = {"default": field.shown}
        elif field.default is not None:
            default = {"default_factory": field.default}
        # A key may be no identifier.
        made.append((f"field_{place}", field.hint, msgspec.field(name=field.name, **default)))
    text = kind.__doc__ or ""
    is_generated = text.startswith((f"{kind.__name__}(", "Method generated by attrs"))
    space = {} if is_generated or not text else {"__doc__": text}
    kw_only = not options.get("array_like")
    return msgspec.defstruct(kind.__name__, made, namespace=space, kw_only=kw_only, **options)


def struct_for(record: Any, value: Any) -> Any:
    """The Struct that this value is read as."""
    return record.structs[1 if len(record.structs) > 1 and isinstance(value, dict) else 0]


def made_of(record: Any, struct: Any) -> Any:
    """An object of the class with the fields of the Struct. Raises what the class raises."""
    values = [getattr(struct, name) for name in struct.__struct_fields__]
    found = {name: value for name, value in zip(record.arguments, values, strict=True) if value is not _ABSENT}
    return record.__stands_for__(**found)
