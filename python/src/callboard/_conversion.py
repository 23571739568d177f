"""Decoded values as the type of a hint, and what is wrong with those that do not fit, by their places."""

from __future__ import annotations

import functools
import io
import json
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import msgspec
import numpy as np

from callboard import _media, _torch
from callboard._arrays import FIRST, OF_LENGTH, WrongArray, array_for, column_of, has_large, plain, to_array
from callboard._envelope import series_table
from callboard._envelope.frames import (
    LIBRARIES,
    column_of_frame,
    is_frame_or_series,
    pandas_frame,
    polars_frame,
    table_of,
    unmarked,
)
from callboard._exceptions import InvalidInput
from callboard._records import is_record, made_of, struct_for
from callboard._schema import schema
from callboard._type_hints import name_of, normal, unaliased, with_objects
from callboard._unions import Misfits, first_fit, is_model, is_stand_in, is_union, remembering

# The inputs that need no conversion if they have exactly the type of the hint.
_EXACT = (str, int, float, bool, bytes)


def convert(value: Any, hint: Any) -> Any:
    """A decoded value as the type of a hint. Raises `InvalidInput` with the place in the input."""
    if hint is Any or (type(value) is hint and hint in _EXACT):
        return value
    try:
        return msgspec.convert(value, hint, str_keys=True, dec_hook=from_plain)
    except (msgspec.ValidationError, AttributeError, RecursionError):
        try:
            return _convert_in_other_forms(value, hint)
        except InvalidInput as error:
            raise _with_key(error, value, hint) from error.__cause__


# The maps above a wrong value whose keys are looked for: each member of them is converted once more.
_MAPS = 3
# Characters of a key.
_SHOWN_KEY = 64


def _with_key(error: InvalidInput, value: Any, hint: Any) -> InvalidInput:
    """The same with the keys of maps, for which msgspec writes `[...]`."""
    ((place, message), *others) = error.fields
    if others or not 0 < place.count("[...]") <= _MAPS:
        return error
    try:
        place = _named(place, value, hint)
    except Exception:
        # The text of a validator may look like a place, and a hint may be none that is walked through.
        return error
    return InvalidInput(f"{message} - at `{place}`", [(place, message)])


def _named(place: str, value: Any, hint: Any) -> str:
    named = "$"
    for step in re.findall(r"\[\.\.\.]|\[\d+]|\.[^.\[]+", place):
        hint = _hint_at(hint, step)
        if step == "[...]":
            key = next(key for key, member in value.items() if not _fits(member, hint))
            named += f"[{json.dumps(str(key)[:_SHOWN_KEY], ensure_ascii=False)}]"
        else:
            key = int(step[1:-1]) if step.startswith("[") else step[1:]
            named += step
        value = value[key]
    return named


def _hint_at(hint: Any, step: str) -> Any:
    """The hint of a member. Raises `LookupError` where it depends on the value."""
    hint = unaliased(hint)
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if is_union(hint):
        (hint,) = [each for each in get_args(hint) if each is not type(None)]
    members = get_args(hint)
    if step == "[...]":
        return members[1]
    if not step.startswith("["):
        return typing.get_type_hints(hint, include_extras=True)[step[1:]]
    if get_origin(hint) is tuple and members[-1] is not ...:
        return members[int(step[1:-1])]
    return members[0]


def _fits(value: Any, hint: Any) -> bool:
    try:
        _convert_in_other_forms(value, hint)
    except InvalidInput:
        return False
    return True


def from_text(text: str | list[str], hint: Any) -> Any:
    """A text of a request, or several, as numbers and the like. Raises as `convert`."""
    try:
        return msgspec.convert(text, hint, strict=False, dec_hook=from_plain)
    except msgspec.ValidationError as error:
        found = _invalid(error, hint)
        raise InvalidInput(_of_text(str(found)), [(place, _of_text(told)) for place, told in found.fields]) from error


def _of_text(message: str) -> str:
    """What is wrong with a text, which is what all parts of a request are."""
    return message.replace("Expected `bool`, got `str`", "Expected `true` or `false`").replace(
        ", got `str`", ", got another text"
    )


def _convert_in_other_forms(value: Any, hint: Any) -> Any:
    try:
        try:
            return _convert(value, hint)
        except InvalidInput:
            # An array in the place of a NamedTuple is read faster, and comes more often.
            wider = with_objects(hint)
            if wider is hint or not _has_objects(value):
                raise
            return _convert(value, wider)
    except RecursionError:
        message = "Expected less nesting"
        raise InvalidInput(message, [("$", message)]) from None


def _has_objects(value: Any) -> bool:
    """Whether there is a map in a value."""
    found = [value]
    while found:
        each = found.pop()
        if isinstance(each, dict):
            return True
        if isinstance(each, (list, tuple)):
            found.extend(each)
    return False


def _convert(value: Any, hint: Any) -> Any:
    """The value as it is, or with its arrays as lists."""
    try:
        return msgspec.convert(value, hint, str_keys=True, dec_hook=from_plain)
    except msgspec.ValidationError as error:
        # An array of another dtype is an error, though its numbers might fit. A model has tried both.
        if isinstance(error.__cause__, (WrongArray, _WrongFields)):
            raise _invalid(error, hint) from error
        short = plain(value, FIRST)
        if short is value:
            raise _invalid(error, hint) from error
    except AttributeError as error:
        # To msgspec an array or a frame is a map, because it has indices.
        if error.name != "keys":
            raise
        short = plain(value, FIRST)
        if short is value:
            message = f"Expected `object`, got `{type(error.obj).__name__}`"
            raise InvalidInput(message, [("$", message)]) from error
    try:
        converted = msgspec.convert(short, hint, str_keys=True, dec_hook=from_plain)
        if not has_large(value):
            return converted
    except msgspec.ValidationError as error:
        if not (has_large(value) and OF_LENGTH in str(error)):
            raise _invalid(error, hint) from error
    try:
        return msgspec.convert(plain(value), hint, str_keys=True, dec_hook=from_plain)
    except msgspec.ValidationError as error:
        raise _invalid(error, hint) from error


def converter(hint: Any) -> Callable[[Any], Any]:
    """`convert` to this hint. msgspec keeps what it has read of a Struct, and reads any other hint at each call."""
    holder = holder_of(hint)

    def converted(value: Any) -> Any:
        if hint is Any or (type(value) is hint and hint in _EXACT):
            return value
        try:
            return msgspec.convert((value,), holder, str_keys=True, dec_hook=from_plain).value
        except (msgspec.ValidationError, AttributeError, RecursionError):
            # It names the place.
            return convert(value, hint)

    return converted


def holder_of(hint: Any) -> Any:
    """A Struct of one value."""
    return msgspec.defstruct("Value", [("value", hint)], array_like=True)


def output_hint(hint: Any) -> Any:
    """The hint of `returns=`, as `convert` takes it. Raises `TypeError` if it is no type of values."""
    try:
        hash(hint)
    except TypeError:
        # Notes of `Annotated` may be lists.
        return _checked_hint(hint)
    return _known_hint(hint)


def _checked_hint(hint: Any) -> Any:
    found = normal(hint)
    try:
        msgspec.msgpack.Decoder(found)
    except (TypeError, NameError) as error:
        raise TypeError(f"returns={hint!r}: {error}") from error
    return found


# Most callers ask for a few types, again and again.
_known_hint = functools.lru_cache(maxsize=256)(_checked_hint)


def unreadable_output(route: str, hint: Any, error: InvalidInput) -> tuple[str, dict[str, Any]]:
    """The message and details of an output that its caller cannot read as this hint. Its input is not to blame."""
    message = f"route `{route}` gives a value that cannot be read as `{name_of(hint)}`: {error}"
    return message, {"fields": [{"path": path, "message": text} for path, text in error.fields]}


def _invalid(error: msgspec.ValidationError, hint: Any) -> InvalidInput:
    message, _, place = str(error).rpartition(" - at `")
    message, place = (message, place.rstrip("`")) if message else (str(error), "$")
    missing = re.fullmatch(r"Object missing required field `(.*)`", message)
    cause = error.__cause__
    if isinstance(cause, _WrongFields):
        found = [(place + inner, text) for inner, text in cause.fields]
    elif missing:
        found = [(f"{place}.{missing[1]}", message)]
    elif message.startswith(("Invalid enum value", "Object contains unknown field")):
        found = [(place, message + _expected(schema(hint), place.removeprefix("$")))]
    else:
        found = [(place, message)]
    return InvalidInput("; ".join(f"{text} - at `{path}`" for path, text in found), found)


def _expected(node: Any, place: str) -> str:
    """The values or fields that a schema takes at this place. They are not found in a union."""
    for step in re.findall(r"\[[^]]*\]|[^.\[]+", place):
        if step == "[...]":
            node = node.get("additionalProperties")
        else:
            node = node.get("items") if step.startswith("[") else node.get("properties", {}).get(step)
        if not isinstance(node, dict):
            return ""
    if "enum" in node:
        return f", expected one of {', '.join(map(repr, node['enum']))}"
    names = [f"`{name}`" for name in node.get("properties", ())]
    return f", expected {', '.join(names)}" if names else ""


def from_plain(hint: Any, value: Any) -> Any:
    """The hook for types that msgspec does not know."""
    origin = get_origin(hint) or hint
    if origin is np.ndarray:
        return array_for(hint, value)
    if _media.is_file(origin):
        return _media.convert(origin, value)
    if origin is io.BytesIO and isinstance(value, (bytes, str)):
        try:
            return io.BytesIO(msgspec.convert(value, bytes))
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None
    if isinstance(origin, type) and _torch.is_tensor(origin) and not isinstance(value, origin):
        was_list = not isinstance(value, (np.ndarray, np.generic))
        return _torch.from_array(to_array(value, None), was_list=was_list)
    if isinstance(origin, type) and not is_stand_in(origin) and isinstance(value, origin):
        return value
    if is_model(origin):
        return _to_model(origin, value)
    if is_stand_in(origin):
        if is_record(origin):
            return _to_record(origin, value)
        with remembering():
            found = first_fit(origin, value, _convert, _names_in)
        if isinstance(found, Misfits):
            raise _WrongFields(found)
        return found
    if isinstance(origin, type) and issubclass(origin, np.generic):
        return to_array(value, origin)[()]
    if isinstance(origin, type) and origin.__module__.partition(".")[0] in LIBRARIES:
        return _to_frame(origin, value)
    raise TypeError(f"Expected `{name_of(origin)}`, got `{type(value).__name__}`")


class _WrongFields(ValueError):
    """All that is wrong in a model of pydantic, or in a union: places from there on, and texts."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in fields))
        self.fields = fields


def _to_record(record: Any, value: Any) -> Any:
    try:
        struct = _convert(value, struct_for(record, value))
    except InvalidInput as error:
        raise _WrongFields([(place.removeprefix("$"), text) for place, text in error.fields]) from error
    try:
        return made_of(record, struct)
    except (ValueError, TypeError) as error:
        # Its converters and validators, as of any class that msgspec makes.
        raise _WrongFields([("", str(error))]) from error


def _names_in(kind: Any) -> frozenset[str]:
    """The fields of a type."""
    try:
        return _known_names(kind)
    except TypeError:
        # Notes of `Annotated` may be lists.
        return _find_names(kind)


def _find_names(kind: Any) -> frozenset[str]:
    return frozenset(schema(kind).get("properties", ()))


# Asked for each value of a union, and its schema takes longer than the value.
_known_names = functools.lru_cache(maxsize=1024)(_find_names)


def _step(key: Any) -> str:
    return f"[{key}]" if isinstance(key, int) else f".{key}"


def _to_model(model: Any, value: Any) -> Any:
    """A field may be an array, or a list that was sent as one."""
    found, wrong = _validated(model, value)
    if wrong is None:
        return found
    short = plain(value, FIRST)
    if short is value:
        raise _WrongFields(wrong)
    found, wrong_short = _validated(model, short)
    if has_large(value) and (wrong_short is None or any(isinstance(text, _Length) for _, text in wrong_short)):
        found, wrong_short = _validated(model, plain(value))
    if wrong_short is None:
        return found
    raise _WrongFields(min(wrong, wrong_short, key=len))


def _validated(model: Any, value: Any) -> tuple[Any, list[tuple[str, str]] | None]:
    """A model, or what is wrong with the value."""
    try:
        return model.model_validate(value), None
    except ValueError as error:
        if not hasattr(error, "errors"):
            raise
        errors = error.errors(include_url=False)
    found = []
    for each in errors:
        place, text = list(each["loc"]), each["msg"]
        if is_stand_in(model) and len(model.members) > 1 and place:
            text = f"as `{place.pop(0)}`: {text}"
        # If an array is not taken, its list may be, or the other way round.
        found.append(("".join(map(_step, place)), text if "too_" not in each["type"] else _Length(text)))
    return None, found


class _Length(str):
    """The text of an error that an array cut short may be the cause of."""


def _to_frame(origin: Any, value: Any) -> Any:
    """An Arrow table, or a map of columns, as a frame of the library of the hint."""
    import pyarrow

    library, table, is_series = origin.__module__.partition(".")[0], None, False
    if isinstance(value, list) and all(type(row) is dict for row in value):
        value = _columns(value)
    if isinstance(value, dict):
        table = pyarrow.table({name: column_of(column) for name, column in value.items()})
    elif isinstance(value, pyarrow.Table):
        table = value
    elif isinstance(value, pyarrow.ChunkedArray):
        is_series, table = True, series_table(value)
    elif is_frame_or_series(value):
        is_series, table = table_of(pyarrow, value)
    if table is not None:
        try:
            frame = {"pandas": pandas_frame, "polars": polars_frame}.get(library, unmarked)(table)
        except Exception as error:
            # Neither library says which exceptions it raises for a type that it does not have.
            raise TypeError(f"Expected `{name_of(origin)}`, got a table that cannot be one: {error}") from error
        value = column_of_frame(frame, library) if is_series else frame
    if not isinstance(value, origin):
        raise TypeError(f"Expected `{name_of(origin)}`, got `{type(value).__name__}`")
    return value


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A list of records as columns. A field that a record lacks is missing there."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    # Records that have nothing in common would become a table that is mostly empty.
    if len(names) * len(rows) > 1024 + 4 * sum(map(len, rows)):
        raise TypeError(f"Expected records with the same fields, got {len(names)} names in {len(rows)} records")
    return {name: [row.get(name) for row in rows] for name in names}
