"""Calls that name another route than the caller means: what their errors say."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl, urlsplit

from callboard._options import split_name
from callboard.client.transport import Failure

# A browser asks by `GET` after these.
_BY_GET = (301, 302, 303)


def redirected(called: str, status: int, location: str | None, base: str = "") -> Failure:
    """The failure of a call whose code has answered with a redirect. `base` is the address of the node.

    A client follows none: it may have a body, and the caller knows which route is meant.
    """
    if location is None:
        return Failure("invalid_input", f"`{called}` answers with status {status} and no output", status=status)
    parts = urlsplit(location)
    own = urlsplit(base)
    if parts.netloc and (parts.scheme or own.scheme, parts.netloc) != (own.scheme, own.netloc):
        cure = "use that address"
    else:
        method = "GET" if status in _BY_GET else split_name(called)[0]
        path = parts.path.removeprefix(own.path.rstrip("/"))
        name = path if method is None else f"{method} {path}"
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        cure = f"call that route: client.call({name!r}, query={query!r})" if query else f"call that route: {name!r}"
    return Failure("invalid_input", f"`{called}` redirects to {location}: {cure}", status=status)


def not_allowed(method: str, allowed: Iterable[str]) -> Failure:
    """The failure of a call by a method that no route of the path has, in the words of a node."""
    message = f"method {method} is not allowed here; use {', '.join(allowed)}"
    return Failure("invalid_input", message, status=405, error_type="method_not_allowed")
