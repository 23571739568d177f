"""Connections in pools of a few, each a transport of httpx.

httpcore looks at each pair of connections of a pool for each request that begins or ends: with 64 calls in flight in
one pool, most of a call's time was spent there.

* **Full:** a request waits until one of `max_connections` is free.
* **Late:** after its timeout for this wait it is `httpx.PoolTimeout`.
* **Cancelled:** a request that waits leaves; one that is sent gives its connection back.
* **Idle:** the next request closes each other pool that has had none for longer than `keep_alive`. httpcore closes idle
  connections of a pool only when it gets a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar, cast

import anyio
import httpx

# Few enough that all pairs of them cost nothing.
POOL_CONNECTIONS = 8

T = TypeVar("T")
_CLOCK = time.monotonic


class _Pool(Generic[T]):
    """A transport, and its requests in flight."""

    def __init__(self, transport: T, size: int) -> None:
        self.transport = transport
        self.size = size
        self.in_flight = 0
        # When its last request has ended.
        self.idle_since = 0.0

    def give_back(self) -> None:
        self.in_flight -= 1
        self.idle_since = _CLOCK()


class _Pools(Generic[T]):
    """The pools of one client. `make` gives a transport with this many connections."""

    def __init__(self, make: Callable[[int], T], max_connections: int, keep_alive: float) -> None:
        self._make = make
        self._left = max_connections
        self._keep_alive = keep_alive
        self.all: list[_Pool[T]] = []
        # No longer in `all`, and to be closed.
        self.idle: list[T] = []
        self.is_closed = False

    def take(self) -> _Pool[T]:
        """The first pool with room, so that few connections are open under little load. The caller has a permit."""
        if self.is_closed:
            raise httpx.LocalProtocolError("the client was closed")
        found = next((pool for pool in self.all if pool.in_flight < pool.size), None)
        if found is None:
            size = min(self._left, POOL_CONNECTIONS)
            found = _Pool(self._make(size), size)
            self._left -= size
            self.all.append(found)
        found.in_flight += 1
        self._find_idle()
        return found

    def _find_idle(self) -> None:
        end = _CLOCK() - self._keep_alive
        for pool in [pool for pool in self.all if pool.in_flight == 0 and pool.idle_since < end]:
            self.all.remove(pool)
            self.idle.append(pool.transport)
            self._left += pool.size

    def close(self) -> list[T]:
        """The transports, which the caller closes."""
        self.is_closed = True
        found = [*self.idle, *(pool.transport for pool in self.all)]
        self.idle.clear()
        self.all.clear()
        return found


class PooledTransport(httpx.BaseTransport):
    """The connections of the threads that share a client."""

    def __init__(self, make: Callable[[int], httpx.HTTPTransport], max_connections: int, keep_alive: float) -> None:
        self._pools = _Pools(make, max_connections, keep_alive)
        self._room = threading.Semaphore(max_connections)
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self._room.acquire(timeout=_wait(request)):
            raise httpx.PoolTimeout("no connection was free")
        pool: _Pool[httpx.HTTPTransport] | None = None
        try:
            with self._lock:
                pool = self._pools.take()
                idle = self._pools.idle[:]
                self._pools.idle.clear()
            for each in idle:
                with contextlib.suppress(Exception):
                    each.close()
            response = pool.transport.handle_request(request)
        except BaseException:
            self._give_back(pool)
            raise
        response.stream = _Stream(cast(httpx.SyncByteStream, response.stream), lambda: self._give_back(pool))
        return response

    def _give_back(self, pool: _Pool[httpx.HTTPTransport] | None) -> None:
        if pool is not None:
            with self._lock:
                pool.give_back()
        self._room.release()

    def close(self) -> None:
        with self._lock:
            found = self._pools.close()
        # All of them, also if one fails.
        with contextlib.ExitStack() as stack:
            for each in found:
                stack.callback(each.close)


class AsyncPooledTransport(httpx.AsyncBaseTransport):
    """The same for the tasks of one event loop."""

    def __init__(
        self, make: Callable[[int], httpx.AsyncHTTPTransport], max_connections: int, keep_alive: float
    ) -> None:
        self._pools = _Pools(make, max_connections, keep_alive)
        self._room = asyncio.Semaphore(max_connections)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._room.locked():
            try:
                with anyio.fail_after(_wait(request)):
                    await self._room.acquire()
            except TimeoutError:
                raise httpx.PoolTimeout("no connection was free") from None
        else:
            # There is room: this does not wait.
            await self._room.acquire()
        pool: _Pool[httpx.AsyncHTTPTransport] | None = None
        try:
            pool = self._pools.take()
            while self._pools.idle:
                with contextlib.suppress(Exception):
                    await self._pools.idle.pop().aclose()
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            self._give_back(pool)
            raise
        response.stream = _AsyncStream(cast(httpx.AsyncByteStream, response.stream), lambda: self._give_back(pool))
        return response

    def _give_back(self, pool: _Pool[httpx.AsyncHTTPTransport] | None) -> None:
        if pool is not None:
            pool.give_back()
        self._room.release()

    async def aclose(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for each in self._pools.close():
                stack.push_async_callback(each.aclose)


class _Stream(httpx.SyncByteStream):
    """The body of an answer, which gives its connection back once."""

    def __init__(self, inner: httpx.SyncByteStream, give_back: Callable[[], None]) -> None:
        self._inner = inner
        self._give_back: Callable[[], None] | None = give_back

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._inner)

    def close(self) -> None:
        give_back, self._give_back = self._give_back, None
        try:
            self._inner.close()
        finally:
            if give_back is not None:
                give_back()


class _AsyncStream(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, give_back: Callable[[], None]) -> None:
        self._inner = inner
        self._give_back: Callable[[], None] | None = give_back

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._inner)

    async def aclose(self) -> None:
        give_back, self._give_back = self._give_back, None
        try:
            await self._inner.aclose()
        finally:
            if give_back is not None:
                give_back()


def _wait(request: httpx.Request) -> float | None:
    timeouts: Any = request.extensions.get("timeout", {})
    found: float | None = timeouts.get("pool")
    return found
