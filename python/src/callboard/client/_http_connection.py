"""One connection to the node, each with its own pool of httpcore, by the public parts of httpcore.

A call that is cancelled between two steps of httpcore can leave a connection that its pool takes for busy for ever. So
a pool has one connection, and belongs to one call at a time: a call that did not end well closes it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

import httpcore
import httpx

from callboard.client._http_deadline import Backend, Deadline
from callboard.client._http_early import AsyncBackend
from callboard.client._http_request import Endpoint
from callboard.client.transport import Settings

# The extension of a request that has the end of its call, on the monotonic clock.
END = "callboard.end"

# A host that is gone is noticed after 15 s of silence and four probes, where the system has these options. The kernel
# sends no such probes while sent data is unacknowledged. On Linux `TCP_USER_TIMEOUT` (ms) bounds that case. It also
# ends a connection whose peer is there, but takes no more bytes for that time: its receive window stays at zero.
PROBES = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), count)
    for name, count in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 35_000))
    if hasattr(socket, name)
]


class Connection(httpx.BaseTransport):
    """A connection for a thread."""

    def __init__(self, endpoint: Endpoint, settings: Settings) -> None:
        kinds = httpcore.ConnectionPool, httpcore.HTTPProxy, httpcore.SOCKSProxy
        self._deadline = Deadline()
        self._pool = _pool(endpoint, settings, Backend(httpcore.SyncBackend(), self._deadline), *kinds)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._deadline.end = request.extensions.get(END)
        with _errors_of_httpx():
            found = self._pool.handle_request(_request(request))
        return _response(found, Body(found.stream))

    def close(self) -> None:
        self._pool.close()


class AsyncConnection(httpx.AsyncBaseTransport):
    """`Connection` for tasks."""

    def __init__(self, endpoint: Endpoint, settings: Settings) -> None:
        kinds = httpcore.AsyncConnectionPool, httpcore.AsyncHTTPProxy, httpcore.AsyncSOCKSProxy
        self._deadline = Deadline()
        self._pool = _pool(endpoint, settings, AsyncBackend(httpcore.AnyIOBackend(), self._deadline), *kinds)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._deadline.end = request.extensions.get(END)
        with _errors_of_httpx():
            found = await self._pool.handle_async_request(_request(request))
        return _response(found, AsyncBody(found.stream))

    async def aclose(self) -> None:
        await self._pool.aclose()


class Body(httpx.SyncByteStream):
    """The body of an answer. `end` is called once, when it is closed, with whether it came to its end."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._is_whole = False
        self.end: Callable[[bool], None] | None = None

    def __iter__(self) -> Iterator[bytes]:
        with _errors_of_httpx():
            yield from self._inner
        self._is_whole = True

    def close(self) -> None:
        end, self.end = self.end, None
        is_whole = False
        try:
            self._inner.close()
            is_whole = self._is_whole
        finally:
            if end is not None:
                end(is_whole)


class AsyncBody(httpx.AsyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._is_whole = False
        self.end: Callable[[bool], Awaitable[None]] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx():
            async for part in self._inner:
                yield part
        self._is_whole = True

    async def aclose(self) -> None:
        end, self.end = self.end, None
        is_whole = False
        try:
            await self._inner.aclose()
            is_whole = self._is_whole
        finally:
            if end is not None:
                await end(is_whole)


# ---- Between httpx and httpcore --------------------------------------------------------------------------------------


def _pool(endpoint: Endpoint, settings: Settings, backend: Any, direct: Any, proxied: Any, over_socks: Any) -> Any:
    options: dict[str, Any] = {
        "ssl_context": endpoint.tls or None,
        "max_connections": 1,
        "keepalive_expiry": settings.keep_alive,
        "network_backend": backend,
    }
    proxy = endpoint.proxy
    if proxy is None:
        return direct(**options, socket_options=PROBES)
    options |= {"proxy_url": _url(proxy.url), "proxy_auth": proxy.raw_auth}
    if proxy.url.scheme.startswith("socks5"):
        return over_socks(**options)
    more = {"proxy_headers": proxy.headers.raw, "proxy_ssl_context": proxy.ssl_context, "socket_options": PROBES}
    return proxied(**options, **more)


def _url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _request(request: httpx.Request) -> httpcore.Request:
    return httpcore.Request(
        request.method,
        _url(request.url),
        headers=request.headers.raw,
        content=cast(Any, request.stream),
        extensions=request.extensions,
    )


def _response(found: httpcore.Response, body: Body | AsyncBody) -> httpx.Response:
    return httpx.Response(found.status, headers=found.headers, stream=body, extensions=cast(Any, found.extensions))


@contextlib.contextmanager
def _errors_of_httpx() -> Iterator[None]:
    """Both libraries have the same names for their errors."""
    try:
        yield
    except Exception as error:
        names = [each.__name__ for each in type(error).__mro__ if each.__module__.startswith("httpcore")]
        kind = next((getattr(httpx, name) for name in names if hasattr(httpx, name)), None)
        if kind is None:
            raise
        raise kind(str(error)) from error
