"""The callers of an app, which a function of it names: `callboard.auth`."""

from __future__ import annotations

from typing import Literal

import msgspec

# The route of the function that names callers. No edge serves it.
AUTH_ROUTE = "@auth"


class Request(msgspec.Struct, frozen=True):
    """The head of a request, as the function with `@auth` gets it. The body has not been read."""

    method: str = "POST"
    """Its method, such as `"POST"`."""
    path: str = "/"
    """Its path, as the client wrote it; that of a request to an ASGI app is decoded, as the app sees it."""
    query: dict[str, list[str]] = {}
    """Its query parameters: all values of each name, in their order."""
    headers: dict[str, str] = {}
    """Its headers by their lower-case names. Lines of the same name are one text with commas between."""
    client: str | None = None
    """The address of the client, such as `"10.0.0.7"`; None where the node does not know it."""

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
    """The head of a request whose method has not reached the code."""

    @property  # type: ignore[misc]
    def method(self) -> str:
        raise AttributeError(
            "request.method: several methods of HTTP call this route, and its code is not told which: write a function "
            "for each"
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
