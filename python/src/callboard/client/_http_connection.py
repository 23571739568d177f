"""One connection to the node, by the public parts of httpcore and h11.

A connection belongs to one call at a time; a call that did not end well closes it. Blocking calls, and all calls
through a proxy, use a pool of httpcore with one connection. Asynchronous calls use h11 over a stream of httpcore,
because an asynchronous pool of httpcore costs more than the rest of the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

import h11
import httpcore
import httpx

from callboard.client._http_deadline import Backend, Deadline
from callboard.client._http_early import AsyncBackend
from callboard.client._http_request import SMALL_BYTES, Endpoint
from callboard.client.transport import Settings

# What is read at once.
_PIECE_BYTES = 64 << 10
# The longest head of an answer, as httpcore has it.
_MAX_HEAD_BYTES = 100 << 10
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


class AsyncProxiedConnection(httpx.AsyncBaseTransport):
    """`Connection` for tasks, through a proxy."""

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


class AsyncConnection(httpx.AsyncBaseTransport):
    """`Connection` for tasks. It is opened again if the node has closed it between two calls."""

    def __init__(self, endpoint: Endpoint, settings: Settings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._deadline = Deadline()
        self._connect = AsyncBackend(httpcore.AnyIOBackend(), self._deadline).connect_tcp
        self._stream: httpcore.AsyncNetworkStream | None = None
        self._http: h11.Connection

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._deadline.end = request.extensions.get(END)
        with _errors_of_httpx():
            stream = await self._ready()
            # After an answer that is early the rest of the call is not sent.
            with contextlib.suppress(httpcore.WriteError):
                await self._send(stream, request)
            head = await head_of_answer(stream, self._http)
        return httpx.Response(head.status_code, headers=list(head.headers), stream=AsyncBody(self._parts(stream)))

    async def _ready(self) -> httpcore.AsyncNetworkStream:
        stream = self._stream
        if stream is not None:
            if self._is_done() and not stream.get_extra_info("is_readable"):
                self._http.start_next_cycle()
                return stream
            # The node has closed it.
            self._stream = None
            await asyncio.shield(closed(stream))
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._stream = await opened(self._endpoint, self._settings, self._connect)
        return self._stream

    def _is_done(self) -> bool:
        """Whether a further call may follow the last one."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _send(self, stream: httpcore.AsyncNetworkStream, request: httpx.Request) -> None:
        http, target = self._http, request.url.raw_path
        unsent = http.send(h11.Request(method=request.method, target=target, headers=request.headers.raw)) or b""
        async for part in cast(httpx.AsyncByteStream, request.stream):
            data = http.send(h11.Data(data=part)) or b""
            if unsent and len(data) <= SMALL_BYTES:
                data, unsent = unsent + data, b""
            for each in filter(None, (unsent, data)):
                await stream.write(each)
            unsent = b""
        if rest := unsent + (http.send(h11.EndOfMessage()) or b""):
            await stream.write(rest)

    async def _parts(self, stream: httpcore.AsyncNetworkStream) -> AsyncIterator[bytes]:
        while isinstance(event := await next_event(stream, self._http), h11.Data):
            yield bytes(event.data)
        if not self._is_done():
            await self.aclose()

    async def aclose(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()


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


# ---- HTTP by h11 -----------------------------------------------------------------------------------------------------


async def opened(endpoint: Endpoint, settings: Settings, connect: Any) -> httpcore.AsyncNetworkStream:
    """A stream to the node itself, with TLS where its URL says so."""
    base, limit = endpoint.base, settings.connect_timeout
    host, port = base.raw_host.decode("ascii"), base.port or (443 if endpoint.is_tls else 80)
    stream: httpcore.AsyncNetworkStream = await connect(host, port, limit, None, PROBES)
    if not endpoint.tls:
        return stream
    try:
        return await stream.start_tls(endpoint.tls, host, limit)  # type: ignore[arg-type]
    except BaseException:
        await asyncio.shield(closed(stream))
        raise


async def closed(stream: httpcore.AsyncNetworkStream) -> None:
    with contextlib.suppress(Exception):
        await stream.aclose()


async def head_of_answer(stream: httpcore.AsyncNetworkStream, http: h11.Connection) -> h11.Response:
    """The head of the final answer."""
    while isinstance(event := await next_event(stream, http), h11.InformationalResponse):
        pass
    if not isinstance(event, h11.Response):
        raise httpcore.RemoteProtocolError("Server disconnected without sending a response.")
    return event


async def next_event(stream: httpcore.AsyncNetworkStream, http: h11.Connection) -> Any:
    while (event := http.next_event()) is h11.NEED_DATA:
        data = await stream.read(_PIECE_BYTES)
        if not data and http.their_state is h11.SEND_RESPONSE:
            raise httpcore.RemoteProtocolError("Server disconnected without sending a response.")
        http.receive_data(data)
    return event


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
    """The libraries have the same names for their errors."""
    try:
        yield
    except Exception as error:
        names = [each.__name__ for each in type(error).__mro__ if each.__module__.startswith(("httpcore", "h11"))]
        kind = next((getattr(httpx, name) for name in names if hasattr(httpx, name)), None)
        if kind is None:
            raise
        raise kind(str(error)) from error
