"""The callers of an app, which a function of it names: `callboard.auth`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec

from callboard._elsewhere import REQUEST, cure_after

# The route of the function that names callers. No edge serves it.
AUTH_ROUTE = "@auth"


class RequestHeaders(dict[str, str]):
    """Headers by their names in any case; it has them in lower case."""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> RequestHeaders:
        """Those of any mapping. The constructor takes names in lower case: an item of a batch has no time for more."""
        return cls((name.lower(), value) for name, value in headers.items())

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name.lower(), value)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.lower() if isinstance(name, str) else name)

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)

    def pop(self, name: str, *default: Any) -> Any:
        return super().pop(name.lower(), *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        return super().setdefault(name.lower(), default)

    def __missing__(self, name: str) -> str:
        raise KeyError(
            f"the request has no header {name!r}, or its route does not list it: {name.replace('-', '_')}: "
            f"Annotated[str, cb.Header({name!r})] or headers=[{name!r}]"
        )


class Request(msgspec.Struct, frozen=True):
    """The head of a request, as the function with `@auth` gets it. The body has not been read."""

    method: str = "POST"
    """Its method, such as `"POST"`."""
    path: str = "/"
    """Its path, as the client wrote it; that of a request to an ASGI app is decoded, as the app sees it."""
    query: dict[str, list[str]] = {}
    """Its query parameters: all values of each name, in their order."""
    headers: dict[str, str] = {}
    """Its headers, by their names in any case. Lines of the same name are one text with commas between."""
    client: str | None = None
    """The address of the client, such as `"10.0.0.7"`; None where the node does not know it."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "headers", RequestHeaders.of(self.headers))

    if not TYPE_CHECKING:  # A checker tells of a wrong name itself.

        def __getattr__(self, name: str) -> Any:
            names = (*self.__struct_fields__, "cookies", "bearer")
            raise AttributeError(f"the request has no {name!r}{cure_after(name, REQUEST, names)}")

    @property
    def cookies(self) -> dict[str, str]:
        """Its cookies, without the quotes of a value. The first of each name counts."""
        return cookies_of(self.headers)

    @property
    def bearer(self) -> str | None:
        """The token of the header `authorization: Bearer …`; None without one."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None


class PartOfRequest(Request, frozen=True):
    """The head of a request without its method, which is not known: its route has several."""

    if not TYPE_CHECKING:  # A checker tells of a wrong name itself.

        def __getattr__(self, name: str) -> Any:
            return _no_method() if name == "method" else super().__getattr__(name)

    @property  # type: ignore[misc]
    def method(self) -> str:
        return _no_method()


def _no_method() -> NoReturn:
    raise AttributeError(
        "request.method: this call has come by no method of HTTP, and its route has several: in a test, "
        "cb.Context(method='PUT') or a client that calls 'PUT /path' has one"
    )


def cookies_of(headers: dict[str, str]) -> dict[str, str]:
    """The cookies in these headers: the first of each name, without the quotes of its value."""
    found: dict[str, str] = {}
    for pair in headers.get("cookie", "").split(";"):
        name, _, value = (part.strip() for part in pair.partition("="))
        is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
        if name:
            found.setdefault(name, value[1:-1] if is_quoted else value)
    return found


class Caller(msgspec.Struct, frozen=True):
    """Who sends a request, as the function with `@auth` answers."""

    name: str
    """Its name in logs, and `Context.caller` of the services: at most 256 bytes."""
    tags: dict[str, str] = {}
    """What services find in `Context.tags`."""
    priority: Literal["high", "normal", "low"] | None = None
    """The priority of its calls. A request may ask for a lower one."""
