"""Type hints as the schema of a route: how an input becomes arguments, and the JSON Schema of both sides.

A hint may be a builtin type, a dataclass, a TypedDict, a `msgspec.Struct`, a model of pydantic, `np.ndarray` or
`NDArray[np.float32]`, a file such as `Image`, and any of these inside of lists, maps, `Optional` and so on.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import io
import json
import operator
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import numpy as np

from callboard import _media, _torch
from callboard._api import Context, InvalidInput
from callboard._arrays import FIRST, OF_LENGTH, WrongArray, array_of_lists, column_of, has_large, plain
from callboard._envelope import FRAMES, forms_of, series_table
from callboard._envelope.frames import (
    LIBRARIES,
    column_of_frame,
    is_frame_or_series,
    pandas_frame,
    polars_frame,
    table_of,
    unmarked,
)
from callboard._outputs import encoder
from callboard._unions import Misfits, decidable, first_fit, has_discriminator, is_model, is_stand_in, is_union

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_ITERATORS = (collections.abc.Iterator, collections.abc.Generator)
_ASYNC_ITERATORS = (collections.abc.AsyncIterator, collections.abc.AsyncGenerator)
# The inputs that need no conversion if they have exactly the type of the hint.
_EXACT = (str, int, float, bool, bytes)


class Signature:
    """What a method or function takes and returns. `TypeError` says which hint cannot be served."""

    def __init__(self, fn: Callable[..., Any], where: str, *, drop_self: bool, batched: bool) -> None:
        inner = inspect.unwrap(fn)
        parameters = list(inspect.signature(inner).parameters.values())[1 if drop_self else 0 :]
        hints = _hints(inner, where)
        self.where = where
        self.batched = batched
        self.context: str | None = None
        self.hints: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        for parameter in parameters:
            self._take(parameter, hints.get(parameter.name, Any))
        returned = _unaliased(hints.get("return", Any))
        origin = get_origin(returned) or returned
        self.is_async = (
            inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner) or origin in _ASYNC_ITERATORS
        )
        self.streams = (
            inspect.isgeneratorfunction(inner)
            or inspect.isasyncgenfunction(inner)
            or origin in _ITERATORS
            or origin in _ASYNC_ITERATORS
        )
        if batched and self.streams:
            raise TypeError(f"{where}: a batched method cannot yield: it returns one list")
        if batched and not self.hints:
            raise TypeError(f"{where}: a batched method takes a list, but there is no parameter")
        self.output = self._output(returned)
        # What encodes the outputs, with what the hints say of keys and sets.
        self.encode_output = encoder(self.output, forms_of(self.output), convert, _name)
        # The body is one value, or an object of all parameters. A form has fields, so a file has a name, too.
        self.is_value = len(self.hints) == 1 and not any(map(_media.has_file, self.hints.values()))
        self._struct = None if self.is_value else self._arguments_struct()
        self._convert = [(name, converter(hint)) for name, hint in self.hints.items()] if self.is_value else []
        lists = [(name, types.GenericAlias(list, hint)) for name, hint in self.hints.items() if self.is_value]
        self._all = [(name, _holder(inputs)) for name, inputs in lists]
        files = [name for name, hint in self.hints.items() if _media.is_file(hint)]
        others = set(self.hints) - set(files) - set(self.defaults)
        # The parameter that a body without fields is.
        self.file = files[0] if len(files) == 1 and not others else None

    def _take(self, parameter: inspect.Parameter, hint: Any) -> None:
        name, place = parameter.name, f"{self.where}: the parameter `{parameter.name}`"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{place} has no name in the body: use plain parameters")
        if _is_context(hint) or (name == "context" and hint is Any):
            self.context = name
            return
        if self.batched:
            hint = _item_of(_unaliased(hint), place)
        hint, default = _field_of(hint, parameter.default, name, place)
        hint = _normal(hint)
        _check(hint, place)
        self.hints[name] = hint
        if default is not parameter.empty:
            self.defaults[name] = default

    def _output(self, returned: Any) -> Any:
        if self.streams:
            return _normal((*get_args(returned), Any)[0])
        hint = _item_of(returned, f"{self.where}: its result", lenient=True) if self.batched else returned
        return _normal(_without_exceptions(_unaliased(hint)))

    def _arguments_struct(self) -> type[msgspec.Struct]:
        fields: list[Any] = []
        for name, hint in self.hints.items():
            if name in self.defaults:
                constant = functools.partial(_identity, self.defaults[name])
                fields.append((name, hint, msgspec.field(default_factory=constant)))
            else:
                fields.append((name, hint))
        return msgspec.defstruct("Input", fields, forbid_unknown_fields=True, kw_only=True)

    @property
    def input_forms(self) -> int:
        return functools.reduce(operator.or_, map(forms_of, self.hints.values()), 0)

    @property
    def takes_frames_as_sent(self) -> bool:
        """Whether no hint names a library of frames."""
        return not self.input_forms & FRAMES

    # ---- Inputs ------------------------------------------------------------------------------------------------------

    def arguments(self, value: Any) -> dict[str, Any]:
        """The arguments by name. Raises `InvalidInput` with the place in the input."""
        if self._struct is None:
            ((name, converted),) = self._convert
            try:
                return {name: converted(value)}
            except InvalidInput as error:
                if isinstance(value, dict) and list(value) == [name]:
                    # What most people send first.
                    rule = f"the body is the value of the one parameter `{name}`, without its name"
                    raise InvalidInput(f"{error}: {rule}", error.fields) from error
                raise
        if value is None and not self.hints:
            return {}
        if self.file and (not isinstance(value, dict) or ("url" not in self.hints and _media.url_of(value))):
            value = {self.file: value}
        struct = convert(value, self._struct)
        return {name: getattr(struct, name) for name in self.hints}

    def all_arguments(self, values: list[Any]) -> list[dict[str, Any]] | None:
        """`arguments` of several inputs in one step. None if one of them cannot be converted, or if there are several
        parameters."""
        for name, holder in self._all:
            try:
                converted = msgspec.convert((values,), holder, str_keys=True, dec_hook=_from_plain).value
            except Exception:
                # Each by itself shows which one.
                return None
            return [{name: value} for value in converted]
        return None

    # ---- Schemas -----------------------------------------------------------------------------------------------------

    def input_schema(self) -> dict[str, Any]:
        if self.is_value:
            return schema(next(iter(self.hints.values())))
        properties = {name: schema(hint) for name, hint in self.hints.items()}
        for name, default in self.defaults.items():
            if _is_json(default):
                properties[name] = {**properties[name], "default": default}
        required = [name for name in self.hints if name not in self.defaults]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def raw_body(self) -> dict[str, Any] | None:
        """The parameter that a body of one of these media types is."""
        if self.file is None:
            return None
        media_range = _media.media_range_of(self.hints[self.file])
        return {"field": self.file, "media_types": list(dict.fromkeys((media_range, _media.BYTES)))}

    def output_schema(self) -> dict[str, Any]:
        try:
            return schema(self.output)
        except TypeError:
            return {}


def _is_context(hint: Any) -> bool:
    """Whether a parameter of this hint gets the call. It may be optional, for code that calls the function itself."""
    kinds = get_args(hint) if is_union(hint) else (hint,)
    return [kind for kind in kinds if kind is not type(None)] in ([Context], [list[Context]])


def _identity(value: Any) -> Any:
    return value


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _hints(fn: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise TypeError(f"{where}: a type hint cannot be read: {error}") from error


def _item_of(hint: Any, place: str, *, lenient: bool = False) -> Any:
    """The type of one item of a batch."""
    if hint is Any or hint is list:
        return Any
    if get_origin(hint) in _LISTS:
        return (*get_args(hint), Any)[0]
    if lenient:
        return Any
    raise TypeError(f"{place} of a batched method must be a list, such as `list[str]`, not `{_name(hint)}`")


def _without_exceptions(hint: Any) -> Any:
    """`Label | Exception` as `Label`: an exception in an item's place is no output."""
    if not is_union(hint):
        return hint
    kept = [each for each in get_args(hint) if not (isinstance(each, type) and issubclass(each, BaseException))]
    return Union[tuple(kept)] if kept else Any  # noqa: UP007 - the parts are only known here


def _name(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def _normal(hint: Any) -> Any:
    """The hint without aliases, and with `pydantic.Field(ge=0)` inside of `Annotated` as ours."""
    hint = _unaliased(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, *notes = arguments
        if has_discriminator(notes):
            return decidable(hint, tuple(map(_normal, get_args(kind))), _name)
        return Annotated[(_normal(kind), *map(_limits, notes))]
    if origin in (list, dict, tuple, set, frozenset) and arguments:
        return origin[tuple(map(_normal, arguments))]
    if is_union(hint):
        return decidable(hint, tuple(map(_normal, arguments)), _name)
    return hint


def _field_of(hint: Any, default: Any, name: str, place: str) -> tuple[Any, Any]:
    """The hint and the default of a parameter whose default is a `Field(5, ge=0)` of pydantic."""
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(default).__mro__]
    if "pydantic.fields.FieldInfo" not in kinds:
        if isinstance(default, msgspec.Meta):
            raise TypeError(f"{place}: its default is a `Field`: write `{name}: Annotated[{_name(hint)}, cb.Field(…)]`")
        return hint, default
    if default.default_factory is not None or default.alias is not None or default.validation_alias is not None:
        raise TypeError(
            f"{place}: its default is a `Field` with an alias or a factory: write `{name}: Annotated[{_name(hint)}, "
            "cb.Field(ge=0)] = 5`"
        )
    empty = inspect.Parameter.empty
    return Annotated[hint, default], empty if default.is_required() else default.default


def _unaliased(hint: Any) -> Any:
    """What `type X = ...` stands for. `NDArray` is such an alias in newer releases of NumPy."""
    alias = get_origin(hint) or hint
    while type(alias).__name__ == "TypeAliasType":
        arguments = get_args(hint)
        hint = alias.__value__[arguments] if arguments else alias.__value__
        alias = get_origin(hint) or hint
    return hint


def _limits(note: Any) -> Any:
    if type(note).__module__.partition(".")[0] not in ("pydantic", "annotated_types"):
        return note
    rules = [note, *getattr(note, "metadata", ())]
    names = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "title", "description")
    found = {
        name: getattr(rule, name, None) for name in names for rule in rules if getattr(rule, name, None) is not None
    }
    return msgspec.Meta(**found)


def _check(hint: Any, place: str) -> None:
    """Refuses a hint that no input can be converted to."""
    try:
        schema(hint)
    except (TypeError, NameError) as error:
        # That of a parameter is decided here, but not one inside of another type.
        cure = ": make the type around it a model of pydantic" if str(error).startswith("Type unions") else ""
        raise TypeError(f"{place}: {error}{cure}") from error


# ---- Conversion ------------------------------------------------------------------------------------------------------


def convert(value: Any, hint: Any) -> Any:
    """A decoded value as the type of a hint. Raises `InvalidInput` with the place in the input."""
    if hint is Any or (type(value) is hint and hint in _EXACT):
        return value
    try:
        return msgspec.convert(value, hint, str_keys=True, dec_hook=_from_plain)
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
        converted = msgspec.convert(short, hint, str_keys=True, dec_hook=_from_plain)
        if not has_large(value):
            return converted
    except msgspec.ValidationError as error:
        if not (has_large(value) and OF_LENGTH in str(error)):
            raise _invalid(error, hint) from error
    try:
        return msgspec.convert(plain(value), hint, str_keys=True, dec_hook=_from_plain)
    except msgspec.ValidationError as error:
        raise _invalid(error, hint) from error


def converter(hint: Any) -> Callable[[Any], Any]:
    """`convert` to this hint. What msgspec has read of a Struct it keeps; any other hint it reads at each call."""
    holder = _holder(hint)

    def converted(value: Any) -> Any:
        if hint is Any or (type(value) is hint and hint in _EXACT):
            return value
        try:
            return msgspec.convert((value,), holder, str_keys=True, dec_hook=_from_plain).value
        except (msgspec.ValidationError, AttributeError):
            # It names the place.
            return convert(value, hint)

    return converted


def _holder(hint: Any) -> Any:
    """A Struct of one value."""
    return msgspec.defstruct("Value", [("value", hint)], array_like=True)


def output_hint(hint: Any) -> Any:
    """What a caller asks for by `returns=`, as `convert` takes it. Raises `TypeError` if it is no type of values."""
    try:
        hash(hint)
    except TypeError:
        # Notes of `Annotated` may be lists.
        return _checked_hint(hint)
    return _known_hint(hint)


def _checked_hint(hint: Any) -> Any:
    normal = _normal(hint)
    try:
        msgspec.msgpack.Decoder(normal)
    except (TypeError, NameError) as error:
        raise TypeError(f"returns={hint!r}: {error}") from error
    return normal


# Most callers ask for a few types, again and again.
_known_hint = functools.lru_cache(maxsize=256)(_checked_hint)


def unreadable_output(route: str, hint: Any, error: InvalidInput) -> tuple[str, dict[str, Any]]:
    """The message and details of an output that its caller cannot read as this hint. Its input is not to blame."""
    message = f"route `{route}` gives a value that cannot be read as `{_name(hint)}`: {error}"
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
    """What a schema takes at this place: values or fields. It is not found in a union."""
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


def _from_plain(hint: Any, value: Any) -> Any:
    """The hook for types that msgspec does not know."""
    origin = get_origin(hint) or hint
    if origin is np.ndarray:
        return to_array(value, array_dtype(hint))
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
        found = first_fit(origin, value, convert, _names_in)
        if isinstance(found, Misfits):
            raise _WrongFields(found)
        return found
    if isinstance(origin, type) and issubclass(origin, np.generic):
        return to_array(value, origin)[()]
    if isinstance(origin, type) and origin.__module__.partition(".")[0] in LIBRARIES:
        return _to_frame(origin, value)
    raise TypeError(f"Expected `{_name(origin)}`, got `{type(value).__name__}`")


def array_dtype(hint: Any) -> Any:
    """The scalar type of `NDArray[np.float32]`; None if it is open."""
    arguments = get_args(hint)
    element = get_args(arguments[-1]) if arguments else ()
    scalar = element[0] if element else None
    return scalar if isinstance(scalar, type) and scalar is not np.generic else None


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
        raise WrongArray(f"Expected an array of {scalar.__name__}, got {array.dtype}")
    if not _converts(array, scalar):
        raise WrongArray(f"Expected an array of {scalar.__name__}, got {array.dtype} that does not fit")
    return array.astype(_concrete(scalar))


def _concrete(scalar: Any) -> Any:
    """`np.floating` and the like have no dtype of their own."""
    if scalar in (np.floating, np.inexact, np.number):
        return np.float64
    return np.int64 if scalar in (np.integer, np.signedinteger) else scalar


def _converts(array: np.ndarray[Any, Any], scalar: Any) -> bool:
    if array.size == 0:
        return True
    kind = array.dtype.kind
    dtype = np.dtype(_concrete(scalar))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return kind in "iu" and int(array.min()) >= limits.min and int(array.max()) <= limits.max
    # bfloat16 of ml_dtypes has the kind V.
    return kind in {"f": "iuf", "V": "iuf", "c": "iufc"}.get(dtype.kind, dtype.kind)


class _WrongFields(ValueError):
    """All that is wrong in a model of pydantic, or in a union: places from there on, and texts."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in fields))
        self.fields = fields


def _names_in(kind: Any) -> set[str]:
    """The fields of a type."""
    return set(schema(kind).get("properties", ()))


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
        if is_stand_in(model) and place:
            text = f"as `{place.pop(0)}`: {text}"
        # Where an array or its list is not taken, the other one may be.
        found.append(("".join(map(_step, place)), text if "too_" not in each["type"] else _Length(text)))
    return None, found


class _Length(str):
    """The text of an error that an array cut short may be the cause of."""


def _to_frame(origin: Any, value: Any) -> Any:
    """An Arrow table, or a map of columns, as a frame of the library of the hint."""
    import pyarrow

    library, table, is_series = origin.__module__.partition(".")[0], None, False
    if isinstance(value, list) and value and all(type(row) is dict for row in value):
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
            raise TypeError(f"Expected `{_name(origin)}`, got a table that cannot be one: {error}") from error
        value = column_of_frame(frame, library) if is_series else frame
    if not isinstance(value, origin):
        raise TypeError(f"Expected `{_name(origin)}`, got `{type(value).__name__}`")
    return value


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A list of records as columns. A field that a record lacks is missing there."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    # Records that have nothing in common would become a table that is mostly empty.
    if len(names) * len(rows) > 1024 + 4 * sum(map(len, rows)):
        raise TypeError(f"Expected records with the same fields, got {len(names)} names in {len(rows)} records")
    return {name: [row.get(name) for row in rows] for name in names}


# ---- JSON Schema -----------------------------------------------------------------------------------------------------


def schema(hint: Any) -> dict[str, Any]:
    """The JSON Schema of a hint, without `$ref`. A type that contains itself is left open."""
    (found,), definitions = msgspec.json.schema_components([_named_arrays(hint)], schema_hook=_schema_hook)
    inlined: dict[str, Any] = _inline(found, definitions, ())
    return inlined


def _named_arrays(hint: Any) -> Any:
    """The hint with its arrays annotated by their dtype, which msgspec does not look at."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is np.ndarray or origin is np.ndarray:
        scalar = array_dtype(hint)
        description = f"an array of {scalar.__name__}" if scalar else "an array"
        example = np.ones(2, _concrete(scalar) if scalar else np.float64).tolist()
        # Shown in the documentation, where nothing says how many axes it has.
        examples = [example] if isinstance(example[0], bool | int | float) else None
        return Annotated[np.ndarray, msgspec.Meta(description=description, examples=examples)]
    if origin in (list, dict, tuple, set, frozenset):
        return origin[tuple(_named_arrays(each) for each in arguments)] if arguments else hint
    if is_union(hint):
        return Union[tuple(_named_arrays(each) for each in arguments)]  # noqa: UP007 - the parts are only known here
    return hint


def _schema_hook(kind: type) -> dict[str, Any]:
    if kind is np.ndarray:
        return {"type": "array"}
    if _media.is_file(kind):
        return _media.schema(kind)
    if kind is io.BytesIO:
        return schema(bytes)
    if _torch.is_tensor(kind):
        return {"type": "array", "description": "an array, as a tensor of PyTorch"}
    if is_stand_in(kind) and not is_model(kind):
        return {"anyOf": [schema(member) for member in kind.members]}  # type: ignore[attr-defined]
    if is_model(kind):
        model = _model_schema(kind)
        return _inline(model, model.pop("$defs", {}), ())  # type: ignore[no-any-return]
    if issubclass(kind, np.bool_):
        return {"type": "boolean"}
    if issubclass(kind, np.generic):
        return {"type": "integer" if issubclass(kind, np.integer) else "number"}
    if kind.__module__.partition(".")[0] in LIBRARIES:
        return {"description": f"{kind.__module__.partition('.')[0]}.{kind.__name__}"}
    reason = f"the type `{kind.__module__}.{kind.__qualname__}` cannot be made from an input"
    if any(base.__module__.startswith("pydantic.v1") for base in kind.__mro__):
        reason += ": it is a model of pydantic 1, and models of pydantic 2 are needed"
    raise TypeError(reason)


def _model_schema(kind: Any) -> dict[str, Any]:
    model: dict[str, Any]
    if not hasattr(kind, "__pydantic_core_schema__") and not is_stand_in(kind):
        # A class that only looks like a model.
        model = kind.model_json_schema()
        return model
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        model = kind.model_json_schema(schema_generator=_schema_generator())
        return model
    except PydanticInvalidForJsonSchema as error:
        raise TypeError(f"the type `{kind.__module__}.{kind.__qualname__}` has no schema: {error.message}") from error


@functools.lru_cache(maxsize=1)
def _schema_generator() -> Any:
    """The generator of pydantic's schemas that knows arrays."""
    from pydantic.json_schema import GenerateJsonSchema

    class WithArrays(GenerateJsonSchema):
        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Any:
            if schema.get("cls") is np.ndarray:
                return {"type": "array"}
            return super().handle_invalid_for_json_schema(schema, error_info)

        def decimal_schema(self, schema: Any) -> Any:
            # By this format, and no number beside it, the node keeps the digits of a number.
            return {"type": "string", "format": "decimal"}

    return WithArrays


def _inline(node: Any, definitions: dict[str, Any], open_names: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_inline(each, definitions, open_names) for each in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return {
            key: _inline(value, definitions, open_names) for key, value in node.items() if not _is_mapping(key, value)
        }
    name = reference.rpartition("/")[2]
    rest = {key: value for key, value in node.items() if key != "$ref"}
    if name in open_names or name not in definitions:
        return rest
    return {**_inline(definitions[name], definitions, (*open_names, name)), **rest}


def _is_mapping(key: str, value: Any) -> bool:
    """Whether this is OpenAPI's `discriminator`, which refers to definitions, and no field of that name."""
    return key == "discriminator" and isinstance(value, dict) and "propertyName" in value
