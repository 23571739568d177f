"""Which headers user code may choose for an answer, and in which form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Of the connection and of the body, which are the server's, and of the browser's trust in the whole host. The HTTP edge
# has the same list, in `mapping.rs`. A name that ends with a hyphen stands for all that begin with it.
OWN = (
    "access-control-",
    "alt-svc",
    "cache-status",
    "clear-site-data",
    "connection",
    "content-",
    "date",
    "keep-alive",
    "proxy-",
    "retry-after",
    "sec-",
    "server",
    "server-timing",
    "set-cookie",
    "strict-transport-security",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "x-accel-buffering",
    "x-callboard-",
    "x-content-type-options",
    "x-request-id",
)
# Those of them that a successful answer may have: of its body, for its caches, and cookies.
OF_RESPONSES = (
    "content-disposition",
    "content-language",
    "content-security-policy",
    "content-type",
    "set-cookie",
    "vary",
)
MAX_HEADERS = 16
MAX_BYTES = 2_048

NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


# What code may give as headers.
Headers = Mapping[str, str] | Iterable[tuple[str, str]]


def pairs_of(headers: Headers | None) -> list[tuple[str, str]]:
    """The headers of a mapping or of pairs."""
    return list(headers.items() if isinstance(headers, Mapping) else headers or ())


def checked(headers: Headers | None, *, of_response: bool = False) -> list[tuple[str, str]]:
    """The headers as pairs, each of which the answer of an error, or a successful one, can have. `ValueError` says
    which cannot.

    A name may be there more than once in pairs, but not in a mapping, where only its case could differ.
    """
    what = "an answer" if of_response else "an error"
    found: list[tuple[str, str]] = []
    names: set[str] = set()
    for pair in pairs_of(headers):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"the header {pair!r}: must be a pair of name and value")
        name, value = pair
        if not isinstance(value, str) or not isinstance(name, str):
            raise ValueError(f"the header {name!r}: {value!r}: name and value must be texts")
        if not NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r}: {value!r} has characters that HTTP does not allow there")
        folded = name.lower()
        allowed = OF_RESPONSES if of_response else ("retry-after",)
        if folded not in allowed and any(folded == own or (own[-1] == "-" and folded.startswith(own)) for own in OWN):
            raise ValueError(f"the header {name!r} is the server's own: {what} cannot choose it")
        if folded in names and (isinstance(headers, Mapping) or folded == "retry-after"):
            remedy = "there is one time to retry" if folded == "retry-after" else "a list of pairs sends both"
            raise ValueError(f"the header {name!r} is there twice: {remedy}")
        names.add(folded)
        found.append((name, value))
    if len(found) > MAX_HEADERS or sum(len(name) + len(value) for name, value in found) > MAX_BYTES:
        raise ValueError(f"the headers of {what} are at most {MAX_HEADERS}, with {MAX_BYTES} bytes in all")
    return found


def sendable(headers: Headers | None) -> tuple[list[tuple[str, str]], list[str]]:
    """The headers that the answer of an error can have, as pairs, and the names of the others."""
    kept: list[tuple[str, str]] = []
    left_out = []
    for pair in pairs_of(headers):
        try:
            kept = checked([*kept, pair])
        except ValueError:
            left_out.append(str(pair[0]) if isinstance(pair, (tuple, list)) and pair else repr(pair))
    return kept, left_out
