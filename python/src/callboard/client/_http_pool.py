"""Which call has which connection. Each is a transport of httpx of its own.

* **Full:** a request waits until one of `max_connections` is free.
* **Late:** after its timeout for this wait it is `httpx.PoolTimeout`.
* **Cancelled:** a request that waits leaves; the connection of a sent request is closed.
* **Idle:** the next request closes connections without a request for longer than `keep_alive`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import anyio
import httpx

T = TypeVar("T")
_CLOCK = time.monotonic


class _Connections(Generic[T]):
    """The connections of one client."""

    def __init__(self, make: Callable[[], T], keep_alive: float) -> None:
        self._make = make
        self._keep_alive = keep_alive
        self._used: set[T] = set()
        # With the time of their last request. The last one is taken first, so that few are open under little load.
        self._idle: deque[tuple[T, float]] = deque()
        self.is_closed = False

    def take(self) -> T:
        """A connection for a caller that has a permit."""
        if self.is_closed:
            raise httpx.LocalProtocolError("the client was closed")
        found = self._idle.pop()[0] if self._idle else self._make()
        self._used.add(found)
        return found

    def give_back(self, connection: T, *, is_well: bool) -> bool:
        """Whether it stays. Else its caller closes it."""
        self._used.discard(connection)
        if is_well and not self.is_closed:
            self._idle.append((connection, _CLOCK()))
        return is_well

    def old(self) -> list[T]:
        """The connections that were idle for too long, which the caller closes."""
        found, end = [], _CLOCK() - self._keep_alive
        while self._idle and self._idle[0][1] < end:
            found.append(self._idle.popleft()[0])
        return found

    def close(self) -> list[T]:
        """All of them, which the caller closes."""
        self.is_closed = True
        found = [*self._used, *(connection for connection, _ in self._idle)]
        self._used.clear()
        self._idle.clear()
        return found


class PooledTransport(httpx.BaseTransport):
    """The connections of the threads that share a client."""

    def __init__(self, make: Callable[[], httpx.BaseTransport], max_connections: int, keep_alive: float) -> None:
        self._connections = _Connections(make, keep_alive)
        self._room = threading.Semaphore(max_connections)
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self._room.acquire(timeout=_wait(request)):
            raise httpx.PoolTimeout("no connection was free")
        connection: httpx.BaseTransport | None = None
        try:
            with self._lock:
                old = self._connections.old()
                connection = self._connections.take()
            for each in old:
                with contextlib.suppress(Exception):
                    each.close()
            response = connection.handle_request(request)
        except BaseException:
            self._give_back(connection, False)
            raise
        body: Any = response.stream
        body.end = lambda is_whole: self._give_back(connection, is_whole)
        return response

    def _give_back(self, connection: httpx.BaseTransport | None, is_well: bool) -> None:
        try:
            if connection is None:
                return
            with self._lock:
                stays = self._connections.give_back(connection, is_well=is_well)
            if not stays:
                with contextlib.suppress(Exception):
                    connection.close()
        finally:
            self._room.release()

    def close(self) -> None:
        with self._lock:
            found = self._connections.close()
        # All of them, also if one fails.
        with contextlib.ExitStack() as stack:
            for each in found:
                stack.callback(each.close)


class AsyncPooledTransport(httpx.AsyncBaseTransport):
    """`PooledTransport` for the tasks of one event loop."""

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport], max_connections: int, keep_alive: float) -> None:
        self._connections = _Connections(make, keep_alive)
        self._room = asyncio.Semaphore(max_connections)
        self._closing: set[asyncio.Future[None]] = set()

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
        connection: httpx.AsyncBaseTransport | None = None
        try:
            for each in self._connections.old():
                self._close(each)
            connection = self._connections.take()
            response = await connection.handle_async_request(request)
        except BaseException:
            await self._give_back(connection, False)
            raise
        body: Any = response.stream
        body.end = lambda is_whole: self._give_back(connection, is_whole)
        return response

    async def _give_back(self, connection: httpx.AsyncBaseTransport | None, is_well: bool) -> None:
        try:
            if connection is not None and not self._connections.give_back(connection, is_well=is_well):
                # Its task goes on if this one is cancelled once more.
                await asyncio.shield(self._close(connection))
        finally:
            self._room.release()

    def _close(self, connection: httpx.AsyncBaseTransport) -> asyncio.Future[None]:
        closing = asyncio.ensure_future(_closed(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    async def aclose(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for each in self._connections.close():
                stack.push_async_callback(each.aclose)
        await asyncio.gather(*self._closing)


async def _closed(connection: httpx.AsyncBaseTransport) -> None:
    with contextlib.suppress(Exception):
        await connection.aclose()


def _wait(request: httpx.Request) -> float | None:
    timeouts: Any = request.extensions.get("timeout", {})
    found: float | None = timeouts.get("pool")
    return found
