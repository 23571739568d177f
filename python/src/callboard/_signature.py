"""The signature of a route, read from the type hints of its code: how an input becomes arguments.

A hint may be a builtin type, a dataclass, a TypedDict, a `msgspec.Struct`, a model of pydantic, `np.ndarray` or
`NDArray[np.float32]`, a file such as `Image`, and any of these inside of lists, maps, `Optional` and so on.
"""

from __future__ import annotations

import collections.abc
import contextlib
import copy
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from callboard import _media
from callboard._auth import AUTH_ROUTE
from callboard._context import Context
from callboard._conversion import convert, converter, from_plain, holder_of
from callboard._elsewhere import PARAMETERS, cure_of_hint, cure_of_part
from callboard._envelope import FRAMES, PACKED, decode, encode, forms_of
from callboard._exceptions import InvalidInput
from callboard._options import path_parameters
from callboard._outputs import Encode, encoder
from callboard._records import is_pydantic_field
from callboard._request import Argument, Form, Part, PathParameter, Query, has_part, is_json, split
from callboard._response import Response
from callboard._schema import schema
from callboard._type_hints import name_of, normal, unaliased, with_objects
from callboard._unions import is_union

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_ITERATORS = (collections.abc.Iterator, collections.abc.Generator)
_UNCHANGEABLE = (str, int, float, bool, bytes, type(None))
_ASYNC_ITERATORS = (collections.abc.AsyncIterator, collections.abc.AsyncGenerator)


class Signature:
    """The parameters and the result of a method or function. `TypeError` says which hint cannot be served."""

    def __init__(
        self,
        fn: Callable[..., Any],
        where: str,
        *,
        drop_self: bool,
        batched: bool,
        path: str = "",
        methods: tuple[str, ...] = (),
        implied: tuple[str, ...] = (),
    ) -> None:
        inner = inspect.unwrap(fn)
        parameters = list(inspect.signature(inner).parameters.values())[1 if drop_self else 0 :]
        hints = _hints(inner, where)
        self.where = where
        self.batched = batched
        self.context: str | None = None
        # What is a part of the request, and what is in the body.
        self.request: list[Argument] = []
        self._path, self._is_get = path, "GET" in methods
        # Whether an argument is named as a field of the body.
        self._has_fields = False
        self.hints: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        for parameter in parameters:
            self._take(parameter, hints.get(parameter.name, Any))
        missing = set(path_parameters(path)) - {each.name for each in self.request if each.part.place == "path"}
        # Parameters of the path that the code need not have.
        self.implied = [Argument(name, PathParameter(path), str, []) for name in implied if name in missing]
        missing -= set(implied)
        if missing:
            raise TypeError(f"{where}: the path {path} has `{min(missing)}`, and no parameter is called so")
        returned = unaliased(hints.get("return", Any))
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
        if batched and not self.hints and not self.request:
            raise TypeError(f"{where}: a batched method takes a list, but there is no parameter")
        # Whether its code chooses the media type of its answers.
        self.returns_response = False
        self.output = self._output(returned)
        # Encodes the outputs, with the types of keys and sets in the hints.
        self.encode_output = encoder(self.output, forms_of(self.output), convert, name_of)
        # The body is one value, or an object of all parameters. A form has fields, so a file has a name, too.
        has_names = self._has_fields or any(map(_media.has_file, self.hints.values()))
        self.is_value = len(self.hints) == 1 and not has_names
        self._struct = None if self.is_value else self._arguments_struct()
        self._convert = [(name, converter(hint)) for name, hint in self.hints.items()] if self.is_value else []
        lists = [(name, types.GenericAlias(list, hint)) for name, hint in self.hints.items() if self.is_value]
        self._all = [(name, holder_of(inputs)) for name, inputs in lists]
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
        if isinstance(hint, type) and issubclass(hint, Response):
            raise TypeError(f"{place}: the answer is `context.response`, of a parameter `context: cb.Context`")
        self._check_place(hint, place)
        part, hint = split(hint)
        if isinstance(part, Form):
            if self._is_get:
                raise TypeError(f"{place}: a GET has no form: it is a query parameter without `cb.Form()`")
            self._has_fields, part = True, None
        elif part is None and name in path_parameters(self._path):
            part = PathParameter(self._path)
        elif part is None and self._is_get:
            part = Query()
        if self.batched:
            hint = _item_of(unaliased(hint), place)
        for note in (parameter.default, *getattr(hint, "__metadata__", ())):
            cure = cure_of_part(note, name)
            if cure is not None:
                raise TypeError(f"{place}: {cure}")
        hint, default = _field_of(hint, parameter.default, name, place)
        if isinstance(default, Part) or has_part(hint):
            kind = type(default).__name__ if isinstance(default, Part) else "Header"
            raise TypeError(f"{place}: write `{name}: Annotated[{name_of(hint)}, cb.{kind}(…)]`, with a plain default")
        hint = normal(hint)
        _check(hint, place)
        defaults = [] if default is parameter.empty else [default]
        if part is not None:
            try:
                self.request.append(Argument(name, part, hint, defaults))
            except (TypeError, ValueError) as error:
                raise TypeError(f"{place}: {error}") from error
            return
        self.hints[name] = hint
        self.defaults.update((name, each) for each in defaults)

    def _check_place(self, hint: Any, place: str) -> None:
        """Refuses types that code gets from the node, and of other frameworks: an input of them would be the client's
        word."""
        if self._path == AUTH_ROUTE:
            return
        for kind in _classes_in(hint):
            cure = PARAMETERS.get((kind.__module__.partition(".")[0], kind.__name__))
            if cure is not None:
                raise TypeError(f"{place}: `{kind.__name__}` is not read from the body: {cure}")

    def _output(self, returned: Any) -> Any:
        if self.streams:
            return normal((*get_args(returned), Any)[0])
        hint = _item_of(returned, f"{self.where}: its result", lenient=True) if self.batched else returned
        hint = unaliased(hint)
        kinds = get_args(hint) if is_union(hint) else (hint,)
        self.returns_response = any(isinstance(kind, type) and issubclass(kind, Response) for kind in kinds)
        return normal(_without_exceptions(hint))

    def _arguments_struct(self) -> type[msgspec.Struct]:
        fields: list[Any] = []
        for name, hint in self.hints.items():
            if name in self.defaults:
                # A default that can be changed is that of one call.
                default = self.defaults[name]
                make = _identity if isinstance(default, _UNCHANGEABLE) else copy.deepcopy
                fields.append((name, hint, msgspec.field(default_factory=functools.partial(make, default))))
            else:
                fields.append((name, hint))
        return msgspec.defstruct("Input", fields, forbid_unknown_fields=True, kw_only=True)

    @functools.cached_property
    def encode_packed(self) -> Encode:
        """Encodes the outputs for a gateway of evaluations."""
        return encoder(self.output, forms_of(self.output) | PACKED, convert, name_of)

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
                if value is None and name in self.defaults:
                    # No argument was given.
                    return {name: copy.deepcopy(self.defaults[name])}
                if isinstance(value, dict) and list(value) in ([name], []):
                    # Most people send this first.
                    rule = f"the body is the value of the one parameter `{name}`, without its name"
                    raise InvalidInput(f"{error}: {rule}", error.fields) from error
                raise
        if value is None and self.defaults.keys() >= self.hints.keys():
            value = {}
        if self.file and (not isinstance(value, dict) or ("url" not in self.hints and _media.url_of(value))):
            value = {self.file: value}
        struct = convert(value, self._struct)
        return {name: getattr(struct, name) for name in self.hints}

    def request_arguments(self, context: Context) -> dict[str, Any]:
        """The arguments that come from the request. Raises `InvalidInput` with all that is wrong."""
        found: dict[str, Any] = {}
        wrong: list[InvalidInput] = []
        for argument in self.request:
            try:
                found[argument.name] = argument.value(context)
            except InvalidInput as error:
                wrong.append(error)
        if wrong:
            raise InvalidInput("; ".join(map(str, wrong)), [field for error in wrong for field in error.fields])
        return found

    def all_arguments(self, values: list[Any]) -> list[dict[str, Any]] | None:
        """`arguments` of several inputs in one step. None if one of them cannot be converted, or if there are several
        parameters."""
        for name, holder in self._all:
            try:
                converted = msgspec.convert((values,), holder, str_keys=True, dec_hook=from_plain).value
            except Exception:
                # Each by itself shows which one.
                return None
            return [{name: value} for value in converted]
        return None

    # ---- Schemas -----------------------------------------------------------------------------------------------------

    def input_schema(self) -> dict[str, Any]:
        properties = {name: schema(with_objects(hint)) for name, hint in self.hints.items()}
        for name, default in self.json_defaults().items():
            properties[name] = {**properties[name], "default": default}
        if self.is_value:
            return next(iter(properties.values()))
        required = [name for name in self.hints if name not in self.defaults]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def json_defaults(self) -> dict[str, Any]:
        """The defaults that JSON can say: a node knows of no other ones."""
        found = {}
        for name, default in self.defaults.items():
            with contextlib.suppress(TypeError, ValueError):
                plain = decode(encode(default))
                if is_json(plain):
                    found[name] = plain
        return found

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


def _classes_in(hint: Any) -> Iterator[type]:
    """The classes that a hint names."""
    hint = unaliased(hint)
    if isinstance(hint, type) and get_origin(hint) is None:
        yield hint
    for each in get_args(hint):
        yield from _classes_in(each)


def _identity(value: Any) -> Any:
    return value


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
    raise TypeError(f"{place} of a batched method must be a list, such as `list[str]`, not `{name_of(hint)}`")


def _without_exceptions(hint: Any) -> Any:
    """`Label | Exception` as `Label`: an exception in an item's place is no output, and a `Response` may have any."""
    if not is_union(hint):
        return Any if isinstance(hint, type) and issubclass(hint, Response) else hint
    others = (BaseException, Response)
    kept = [each for each in get_args(hint) if not (isinstance(each, type) and issubclass(each, others))]
    return Union[tuple(kept)] if kept else Any  # noqa: UP007 - the parts are only known here


def _field_of(hint: Any, default: Any, name: str, place: str) -> tuple[Any, Any]:
    """The hint and the default of a parameter whose default is a `Field(5, ge=0)` of pydantic."""
    if not is_pydantic_field(default):
        if isinstance(default, msgspec.Meta):
            raise TypeError(
                f"{place}: its default is a `Field`: write `{name}: Annotated[{name_of(hint)}, cb.Field(…)]`"
            )
        return hint, default
    if default.default_factory is not None or default.alias is not None or default.validation_alias is not None:
        raise TypeError(
            f"{place}: its default is a `Field` with an alias or a factory: write `{name}: Annotated[{name_of(hint)}, "
            "cb.Field(ge=0)] = 5`"
        )
    empty = inspect.Parameter.empty
    return Annotated[hint, default], empty if default.is_required() else default.default


def _check(hint: Any, place: str) -> None:
    """Refuses a hint that no input can be converted to."""
    try:
        schema(hint)
    except (TypeError, NameError) as error:
        # That of a parameter is decided here, but not one inside of another type.
        is_union_inside = str(error).startswith("Type unions")
        cure = ": make the type around it a model of pydantic" if is_union_inside else cure_of_hint(hint)
        raise TypeError(f"{place}: {error}{cure}") from error
