"""Arguments that are parts of the request beside its input: headers, query parameters and cookies.

`Annotated[str, cb.Header("x-user")]` is an argument of the code, and no field of the body. It adds the name to those
that the route reads, and is taken from the `Context` of the call, so it is there however the call was made.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin
from urllib.parse import unquote

from callboard._auth import cookies_of
from callboard._context import Context
from callboard._conversion import convert, from_text
from callboard._elsewhere import cure_of_mark
from callboard._exceptions import InvalidInput
from callboard._options import headers_of, query_of, takes_path
from callboard._schema import schema
from callboard._type_hints import name_of, unaliased
from callboard._unions import is_union

_LISTS = (list, set, frozenset)
_TEXTS = ("string", None)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the request, in the `Annotated` of an argument."""

    name: str | None = None

    # As OpenAPI and the places of errors call it, and as messages do.
    place = ""
    words = ""
    # The list of a route that its name belongs to.
    option = "headers"

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **options: Any) -> Part:
            for option in options.keys() - {"name"}:
                raise TypeError(f"{cls.__name__} has no option {option!r}: {cure_of_mark(cls.__name__, option)}")
            return super().__new__(cls)

    def _key(self, parameter: str) -> str:
        """The name in the request. Raises `ValueError` for one that cannot be there."""
        raise NotImplementedError

    def _read(self, context: Context, key: str) -> str | None:
        raise NotImplementedError


class Header(Part):
    """The argument is a header of the request: `user: Annotated[str, cb.Header("x-user")]`.

    Without a name it is that of the argument, with hyphens in the place of underscores. Lines of the same name are one
    text with commas between, and an argument that is a list gets its members.
    """

    place, words = "header", "header"

    def _key(self, parameter: str) -> str:
        return headers_of([parameter.replace("_", "-") if self.name is None else self.name])[0]

    def _read(self, context: Context, key: str) -> str | None:
        return context.headers.get(key)


class Query(Part):
    """The argument is a query parameter: `limit: Annotated[int, cb.Query()] = 10` is 5 for `?limit=5`.

    Without a name it is that of the argument. An argument that is a list gets the members of `?tags=a,b`; a parameter
    that is there twice is refused with status 400.
    """

    place, words, option = "query", "query parameter", "query"

    def _key(self, parameter: str) -> str:
        return query_of([parameter if self.name is None else self.name])[0]

    def _read(self, context: Context, key: str) -> str | None:
        return context.query.get(key)


class Cookie(Part):
    """The argument is a cookie of the request: `theme: Annotated[str, cb.Cookie()] = "light"`.

    Without a name it is that of the argument. The route then reads the header `cookie`, which has all cookies.
    """

    place, words = "cookie", "cookie"

    def _key(self, parameter: str) -> str:
        name = parameter if self.name is None else self.name
        try:
            return headers_of([name])[0] and name
        except ValueError:
            raise ValueError(f"{name!r} is not the name of a cookie") from None

    def _read(self, context: Context, key: str) -> str | None:
        return cookies_of(context.headers).get(key)


class PathParameter(Part):
    """The argument is a segment of the path. Its name is the route, such as `/items/{item_id}`."""

    place, words, option = "path", "path parameter", "path"

    def _key(self, parameter: str) -> str:
        return parameter

    def _read(self, context: Context, key: str) -> str | None:
        segments = (self.name or "").strip("/").split("/")
        # There may be more before them, such as the prefix of a proxy.
        given = (context.path or "").split("/")[-len(segments) :]
        if not takes_path("/".join(segments), "/".join(given)):
            return None
        try:
            return unquote(given[segments.index(f"{{{key}}}")], errors="strict")
        except UnicodeDecodeError:
            raise InvalidInput(f"the path parameter `{key}` is no text in UTF-8") from None


class Form(Part):
    """The argument is a field of the body, also if it is the only one: `name: Annotated[str, cb.Form()]`.

    Any route with several parameters takes them as the fields of a form, `application/x-www-form-urlencoded` or
    `multipart/form-data`, or of a JSON object. Use it for a single parameter, whose value is otherwise
    the whole body.
    """

    place, words = "form", "field of the form"

    def __init__(self) -> None:
        super().__init__()


class Argument:
    """One argument of the code that comes from a part of the request. `TypeError` and `ValueError` say what is wrong
    with its hint or name."""

    def __init__(self, name: str, part: Part, hint: Any, defaults: list[Any]) -> None:
        self.name = name
        self.part = part
        self.key = part._key(name)
        # What the route has to list, so that the code may see it.
        self.listed = (part.option, "cookie" if isinstance(part, Cookie) else self.key)
        self.defaults = defaults
        self.hint = hint
        self._schema = schema(hint)
        self.is_list = _is_list(hint)
        if self.is_list and isinstance(part, Cookie):
            raise TypeError("a cookie has one value: its hint cannot be a list")
        if self.is_list:
            # A text is never the `None` of a list or `None`.
            schemas = self._schema.get("anyOf", [self._schema])
            self._schema = next(each for each in schemas if each.get("type") == "array")
        kinds = _kinds(self._schema.get("items", {}) if self.is_list else self._schema)
        if not kinds.isdisjoint(("object", "array")):
            raise TypeError(f"a {part.words} is a text: `{name_of(hint)}` cannot be read from it, but `str` can")
        # A text is not read as anything else, where it may stand.
        self._convert: Callable[[Any, Any], Any] = convert if not kinds.isdisjoint(_TEXTS) else from_text

    def value(self, context: Context) -> Any:
        """Raises `InvalidInput` with its place in the request."""
        text = self.part._read(context, self.key)
        path = f"{self.part.place}.{self.key}"
        if text is None:
            if self.defaults:
                # That of one call is not that of the next one.
                return copy.copy(self.defaults[0])
            message = f"the argument `{self.name}` needs the {self.part.words} `{self.key}`"
            raise InvalidInput(message, [(path, message)])
        members = [member.strip() for member in text.split(",") if member.strip()] if self.is_list else text
        try:
            return self._convert(members, self.hint)
        except InvalidInput as error:
            fields = [(path + place.removeprefix("$"), told) for place, told in error.fields]
            message = "; ".join(f"{told} - at `{place}`" for place, told in fields)
            raise InvalidInput(message, fields) from error

    def describe(self) -> dict[str, Any]:
        """As `callboard.describe` prints it."""
        described = dict(self._schema)
        # The schema of a list or `None` is that of the list.
        has_default = self.defaults and not (self.is_list and self.defaults[0] is None)
        if has_default and is_json(self.defaults[0]):
            described["default"] = self.defaults[0]
        is_required = not self.defaults or self.part.place == "path"
        return {"in": self.part.place, "name": self.key, "required": is_required, "schema": described}


def split(hint: Any) -> tuple[Part | None, Any]:
    """The part of the request that a hint names, and the hint without it."""
    hint = unaliased(hint)
    if is_union(hint):
        # Python 3.10 makes one of a hint whose default is None.
        members = [each for each in get_args(hint) if each is not type(None)]
        part, kind = split(members[0]) if len(members) == 1 else (None, hint)
        return part, hint if part is None else kind | None
    if get_origin(hint) is not Annotated:
        return None, hint
    kind, *notes = get_args(hint)
    parts = [note() if isinstance(note, type) else note for note in notes if _is_part(note)]
    if not parts:
        return None, hint
    others = [note for note in notes if not _is_part(note)]
    return parts[0], Annotated[(kind, *others)] if others else kind


def _is_list(hint: Any) -> bool:
    """Whether it takes several values: a list, or a list or `None`."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if is_union(kind):
        members = [each for each in get_args(kind) if each is not type(None)]
        return len(members) == 1 and _is_list(members[0])
    return (get_origin(kind) or kind) in _LISTS


def has_part(hint: Any) -> bool:
    """Whether a part of the request is named inside of a hint, where it has no meaning."""
    return any(_is_part(each) or has_part(each) for each in get_args(hint))


def _is_part(note: Any) -> bool:
    return isinstance(note, Part) or (isinstance(note, type) and issubclass(note, Part))


def _kinds(node: dict[str, Any]) -> set[str | None]:
    """The types of JSON that a schema allows."""
    for key in ("anyOf", "oneOf", "allOf"):
        if key in node:
            return set().union(*map(_kinds, node[key]))
    if "enum" in node:
        return {"string" if isinstance(each, str) else "integer" for each in node["enum"]}
    kind = node.get("type")
    return set(kind) if isinstance(kind, list) else {kind}


def is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
