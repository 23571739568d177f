"""The arguments of clients and calls, checked before anything is sent. Each error names the argument and its limits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from callboard._elsewhere import CALL_OPTIONS, cure
from callboard._headers import NAME
from callboard._options import positive, timeout_ms
from callboard.client.transport import Settings

# As the node reads them: visible ASCII, without a space.
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
# Version, trace, span and flags. Versions after 00 may have more fields.
_TRACEPARENT = re.compile(
    r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?"
)
_HEADER = re.compile(r"[ -~]*")
# A client writes these itself, from the call and its options.
_OWN_HEADERS = (
    "accept", "accept-encoding", "connection", "content-length", "content-type", "host", "te", "traceparent",
    "transfer-encoding", "upgrade", "user-agent", "x-callboard-method", "x-callboard-session", "x-request-id",
    "x-request-priority", "x-request-timeout-ms",
)  # fmt: skip


def settings(**given: Any) -> Settings:
    """The settings of a client."""
    for name in ("start_up_wait", "connect_timeout", "keep_alive"):
        given[name] = _seconds(name, given[name])
    for name in ("attempts", "max_connections", "max_reply_bytes"):
        given[name] = positive(name, given[name])
    if given["api_key"] is not None and not _line("api_key", given["api_key"]):
        raise ValueError("api_key: is empty; None is no key")
    given["headers"] = _headers(given["headers"], given["api_key"])
    verify, certificate, proxy, cluster = (given[name] for name in ("verify", "certificate", "proxy", "cluster"))
    if not isinstance(verify, bool):
        given["verify"] = _path("verify", verify, "True, False or the file of an authority's certificate")
    if certificate is not None:
        files = certificate if isinstance(certificate, (tuple, list)) and len(certificate) == 2 else [certificate]
        paths = [_path("certificate", file, "a file, or a pair of the certificate's and the key's") for file in files]
        given["certificate"] = paths[0] if len(paths) == 1 else (paths[0], paths[1])
    if cluster is not None:
        given["cluster"] = _path("cluster", cluster, "a directory")
    if proxy is not None and not isinstance(proxy, str):
        raise TypeError(f"proxy={type(proxy).__name__}: write the URL of a proxy")
    return Settings(**given)


def options(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The options of a call that are given, with the time in seconds."""
    for name in given:
        if name not in names:
            hint = cure(name, CALL_OPTIONS, names) or f"there is {', '.join(names)}"
            raise TypeError(f"a call has no option {name!r}: {hint}")
    found = {name: value for name, value in given.items() if value is not None}
    if "timeout" in found:
        found["timeout"] = timeout_ms(found["timeout"]) / 1000
    if found.get("priority", "high") not in ("high", "normal", "low"):
        raise ValueError(f'priority={found["priority"]!r}: "high", "normal" or "low"')
    if not isinstance(found.get("idempotent", False), bool):
        raise TypeError(f"idempotent={found['idempotent']!r}: True or False")
    if "headers" in found:
        found["headers"] = tuple((name.lower(), value) for name, value in _headers(found["headers"], None).items())
    if "query" in found:
        found["query"] = _query(found["query"])
    _matches(found, "session", re.compile(r"(?s).+"), "a text that is not empty")
    _matches(found, "request_id", _REQUEST_ID, "visible ASCII characters only, 1 to 128")
    _matches(found, "traceparent", _TRACEPARENT, "of W3C: 00-(32 hex digits)-(16 hex digits)-(2 hex digits)")
    return found


def default_request_id() -> str:
    """The name of a call that its caller has not named, so that every error of a call has one."""
    return os.urandom(8).hex()


def _seconds(name: str, duration: Any) -> float:
    """Zero, or what `timeout_ms` reads."""
    is_zero = isinstance(duration, (int, float)) and not isinstance(duration, bool) and duration == 0
    return 0.0 if is_zero else timeout_ms(duration, name) / 1000


def _matches(found: Mapping[str, Any], name: str, pattern: re.Pattern[str], form: str) -> None:
    value = found.get(name)
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: {form}")
    if not pattern.fullmatch(value):
        raise ValueError(f"{name}={value[:200]!r}: {form}")


def _headers(headers: Any, api_key: str | None) -> dict[str, str]:
    """Further headers of each request."""
    if headers is not None and not isinstance(headers, Mapping):
        raise TypeError(f"headers: a mapping of names to values, and not {type(headers).__name__}")
    found = dict(headers or {})
    for name, value in found.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"headers: {name!r} is not the name of a header")
        _line(f"headers[{name!r}]", value)
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"headers[{name!r}]: the client sets this one itself, from the call and its options")
        if name.lower() == "authorization" and api_key is not None:
            raise ValueError(f"headers[{name!r}]: api_key= sets this one")
    if len({name.lower() for name in found}) < len(found):
        raise ValueError("headers: two names differ only in case")
    return found


def _query(query: Any) -> tuple[tuple[str, str], ...]:
    """Query parameters of a request, as texts."""
    if not isinstance(query, Mapping):
        raise TypeError(f"query: a mapping of names to values, and not {type(query).__name__}")
    for name, value in query.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float)):
            cure = ': write several as "a,b"' if isinstance(value, (list, tuple, set)) else ""
            what = f"must be a text, a number or a bool, and not {type(value).__name__}"
            raise TypeError(f"query[{name!r}]: {what}{cure}")
    texts = ((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in query.items())
    return tuple(texts)


def _line(name: str, value: Any) -> str:
    """A text for a header. It may be secret, and is not shown."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: must be a text, and not {type(value).__name__}")
    if not _HEADER.fullmatch(value):
        raise ValueError(f"{name}: visible ASCII characters only")
    return value


def _path(name: str, value: Any, form: str) -> str:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise TypeError(f"{name}={value!r}: {form}")
    return os.fsdecode(value)
