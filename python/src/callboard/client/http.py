"""Calls over HTTP, by httpx: envelopes out, envelopes or problem documents back.

* **Full:** calls beyond `max_connections` wait for a connection, until their time is up.
* **Late:** a call ends at its deadline, whatever the server sends, with 100 ms for the node's own answer to come, and
  an asynchronous one with 200 ms for the rest of that answer. Without a deadline the route's holds. On Linux the system
  ends a connection whose host is gone, or takes no more of a body, after 35 s.
* **Cancelled:** the connection of the call is closed, so that the node knows.
* **Forked:** a process that was forked makes connections of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

import anyio
import httpx

from callboard._envelope import Buffer
from callboard._errors import forget
from callboard.client._calls import CallsApart
from callboard.client._http_calls import CallStream
from callboard.client._http_connection import END, AsyncConnection, AsyncProxiedConnection, Connection
from callboard.client._http_pool import AsyncPooledTransport, PooledTransport
from callboard.client._http_reply import (
    FrameReader,
    Reply,
    failure_of_exception,
    failure_of_response,
    has_outputs,
    late,
)
from callboard.client._http_request import ENVELOPE, ENVELOPES, Body, Endpoint
from callboard.client.policy import Absence, Attempts, RetryBudget
from callboard.client.transport import Calls, Failure, Options, Settings

# The node's own answer to a call that is late says more than ours.
_GRACE = 0.1
# For the rest of an answer that comes in small pieces, each of them in time.
_LONGEST_GRACE = 2 * _GRACE
_CLOCK = time.monotonic
# httpx leaves errors of TLS that come after its handshake as they are, where tasks wait for them.
_ERRORS = (httpx.HTTPError, ssl.SSLError)


class HttpTransport:
    """Carries the calls of a `Client` over HTTP/1.1."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._endpoint = Endpoint(url, settings)
        self._settings = settings
        self._budget = RetryBudget()
        self._absence = Absence(settings.start_up_wait)
        self._connect()

    def _connect(self) -> None:
        self._process = os.getpid()
        endpoint, settings = self._endpoint, self._settings
        transport = PooledTransport(
            lambda: Connection(endpoint, settings), settings.max_connections, settings.keep_alive
        )
        self._http = transport

    def _client(self) -> PooledTransport:
        if self._process != os.getpid():
            # The connections and locks are the parent's: they are left alone.
            self._forked_from = self._http
            self._budget = RetryBudget()
            self._connect()
        return self._http

    def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> Buffer:
        with Body(pieces) as body:
            return self._attempts(options, lambda attempts: self._call_once(route, body, options, attempts))  # type: ignore[no-any-return]

    def replies(self, route: str, pieces: Sequence[Buffer], options: Options) -> Generator[Buffer, None, None]:
        with Body(pieces) as body:
            response, attempts = self._attempts(options, lambda attempts: self._begin(route, body, options, attempts))
        request = response.request
        try:
            reader = FrameReader(response, self._settings.max_reply_bytes)
            chunks = response.iter_raw()
            while not reader.is_done:
                try:
                    chunk = next(chunks, None)
                except _ERRORS as error:
                    raise reader.cut(_failure(error, self._endpoint, request.stream, attempts)) from error
                yield from reader.push(chunk)
                if attempts.deadline is not None and _CLOCK() > attempts.deadline + _GRACE:
                    raise late(was_started=True)
        finally:
            response.close()

    def close(self) -> None:
        # The connections and locks of a parent are left alone; another thread may have held one.
        if self._process == os.getpid():
            self._http.close()

    def _attempts(self, options: Options, make: Any) -> Any:
        self._client()
        attempts = Attempts(self._settings, options, self._budget, self._absence, _CLOCK())
        while True:
            try:
                return make(attempts)
            except Failure as failure:
                pause = attempts.pause(failure, _CLOCK())
            time.sleep(pause)

    def _send(self, route: str, body: Body, options: Options, attempts: Attempts, accept: bytes) -> httpx.Response:
        remaining = attempts.remaining(_CLOCK())
        request = self._endpoint.request(route, body, options, remaining, accept)
        request.extensions.update(_extensions(self._settings, attempts.deadline))
        try:
            response = self._client().handle_request(request)
        except _ERRORS as error:
            raise _failure(error, self._endpoint, request.stream, attempts) from error
        response.request = request
        return response

    def _call_once(self, route: str, body: Body, options: Options, attempts: Attempts) -> Buffer:
        response = self._send(route, body, options, attempts, ENVELOPE)
        return self._whole(response, attempts)

    def _whole(self, response: httpx.Response, attempts: Attempts) -> Buffer:
        try:
            reply = Reply(response, self._settings.max_reply_bytes)
            for chunk in response.iter_raw():
                reply.push(chunk)
        except _ERRORS as error:
            raise _failure(error, self._endpoint, response.request.stream, attempts) from error
        finally:
            response.close()
        return _outcome(reply, self._endpoint, attempts)

    def _begin(self, route: str, body: Body, options: Options, attempts: Attempts) -> tuple[httpx.Response, Attempts]:
        response = self._send(route, body, options, attempts, ENVELOPES)
        if not has_outputs(response):
            self._whole(response, attempts)
        attempts.answered()
        return response, attempts


class AsyncHttpTransport:
    """`HttpTransport` for tasks. Each event loop has connections of its own."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._endpoint = Endpoint(url, settings)
        self._settings = settings
        self._budget = RetryBudget()
        self._absence = Absence(settings.start_up_wait)
        self._process = os.getpid()
        self._pools: dict[asyncio.AbstractEventLoop, AsyncPooledTransport] = {}
        # Those of all event loops, each perhaps in a thread of its own.
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[CallsApart | CallStream] = weakref.WeakSet()

    def _client(self) -> AsyncPooledTransport:
        if self._process != os.getpid():
            self._process, self._budget = os.getpid(), RetryBudget()
            self._forked_from, self._pools = self._pools, {}
        loop = asyncio.get_running_loop()
        found = self._pools.get(loop)
        if found is None:
            # The connections of a loop that is closed ended with it. Other threads change the pools meanwhile.
            for each in [each for each in list(self._pools) if each.is_closed()]:
                self._pools.pop(each, None)
            endpoint, settings = self._endpoint, self._settings
            kind = AsyncConnection if endpoint.proxy is None else AsyncProxiedConnection
            found = self._pools[loop] = AsyncPooledTransport(
                lambda: kind(endpoint, settings), settings.max_connections, settings.keep_alive
            )
        return found

    async def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> Buffer:
        with Body(pieces) as body:
            return await self._attempts(options, lambda attempts: self._call_once(route, body, options, attempts))  # type: ignore[no-any-return]

    async def replies(self, route: str, pieces: Sequence[Buffer], options: Options) -> AsyncGenerator[Buffer, None]:
        with Body(pieces) as body:
            begun = self._attempts(options, lambda attempts: self._begin(route, body, options, attempts))
            response, attempts = await begun
        try:
            reader = FrameReader(response, self._settings.max_reply_bytes)
            chunks = response.aiter_raw()
            while not reader.is_done:
                try:
                    with _until(attempts.deadline):
                        chunk = await anext(chunks, None)
                except _ERRORS as error:
                    raise reader.cut(_failure(error, self._endpoint, response.request.stream, attempts)) from error
                for envelope in reader.push(chunk):
                    yield envelope
        except TimeoutError as error:
            forget(error)
            raise late(was_started=True) from None
        finally:
            await response.aclose()

    def calls(self, route: str, options: Options) -> Calls:
        self._absence.stream_begins()
        make = functools.partial(self.call, route)
        found: CallsApart | CallStream
        if self._endpoint.proxy is not None:
            found = CallsApart(make)
        else:
            found = CallStream(self._endpoint, self._settings, route, options, make, self._absence)
        with self._lock:
            self._streams.add(found)
        return found

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            streams = [stream for stream in self._streams if stream.loop is loop]
        await asyncio.gather(*(stream.aclose() for stream in streams))
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    async def _attempts(self, options: Options, make: Any) -> Any:
        self._client()
        attempts = Attempts(self._settings, options, self._budget, self._absence, _CLOCK())
        try:
            await self._look(attempts)
            while True:
                try:
                    with _until(attempts.deadline):
                        return await make(attempts)
                except TimeoutError as error:
                    forget(error)
                    raise late(was_started=True) from None
                except Failure as failure:
                    pause = attempts.pause(failure, _CLOCK())
                await asyncio.sleep(pause)
        finally:
            attempts.over()

    async def _look(self, attempts: Attempts) -> None:
        """Waits while another call of a stream looks for the node."""
        while (wait := attempts.check(_CLOCK())) is not None:
            if wait <= 0:
                raise late(was_started=False)
            known, loop = asyncio.Event(), asyncio.get_running_loop()

            def tell(known: asyncio.Event = known, loop: asyncio.AbstractEventLoop = loop) -> None:
                with contextlib.suppress(RuntimeError):
                    # That event loop may be closed.
                    loop.call_soon_threadsafe(known.set)

            self._absence.when_known(tell)
            with anyio.move_on_after(wait):
                await known.wait()

    async def _send(
        self, route: str, body: Body, options: Options, attempts: Attempts, accept: bytes
    ) -> httpx.Response:
        remaining = attempts.remaining(_CLOCK())
        request = self._endpoint.request(route, body, options, remaining, accept)
        request.extensions.update(_extensions(self._settings, attempts.deadline))
        try:
            response = await self._client().handle_async_request(request)
        except _ERRORS as error:
            raise _failure(error, self._endpoint, request.stream, attempts) from error
        response.request = request
        return response

    async def _call_once(self, route: str, body: Body, options: Options, attempts: Attempts) -> Buffer:
        response = await self._send(route, body, options, attempts, ENVELOPE)
        return await self._whole(response, attempts)

    async def _whole(self, response: httpx.Response, attempts: Attempts) -> Buffer:
        try:
            reply = Reply(response, self._settings.max_reply_bytes)
            async for chunk in response.aiter_raw():
                reply.push(chunk)
        except _ERRORS as error:
            raise _failure(error, self._endpoint, response.request.stream, attempts) from error
        finally:
            await response.aclose()
        return _outcome(reply, self._endpoint, attempts)

    async def _begin(
        self, route: str, body: Body, options: Options, attempts: Attempts
    ) -> tuple[httpx.Response, Attempts]:
        response = await self._send(route, body, options, attempts, ENVELOPES)
        if not has_outputs(response):
            await self._whole(response, attempts)
        attempts.answered()
        return response, attempts


def _extensions(settings: Settings, deadline: float | None) -> dict[str, Any]:
    """How long a request may wait for a connection, and when it ends."""
    end = None if deadline is None else deadline + _GRACE
    wait = None if end is None else max(0.0, end - _CLOCK())
    return {"timeout": {"connect": settings.connect_timeout, "pool": wait}, END: end}


def _outcome(reply: Reply, endpoint: Endpoint, attempts: Attempts) -> Buffer:
    """The envelope of an answer, or its failure. A node that is starting has not answered."""
    if reply.is_envelope:
        attempts.answered()
        return reply.body()
    failure = failure_of_response(reply, endpoint)
    if failure.kind != "unavailable" or failure.was_started or failure.stage is not None:
        attempts.answered()
    try:
        raise failure
    finally:
        # A frame that has its own error is a cycle, which keeps the input of the call.
        del failure


def _failure(
    error: httpx.HTTPError | ssl.SSLError,
    endpoint: Endpoint,
    body: object,
    attempts: Attempts,
) -> Failure:
    is_late = attempts.deadline is not None and _CLOCK() >= attempts.deadline
    failure = failure_of_exception(error, endpoint, body, is_late=is_late)
    forget(error)
    return failure


def _until(deadline: float | None) -> anyio.CancelScope:
    """Raises `TimeoutError` for an answer that comes bit by bit. All else ends before, by a timeout that says where."""
    return anyio.fail_after(None if deadline is None else max(0.0, deadline + _LONGEST_GRACE - _CLOCK()))  # type: ignore[return-value]
