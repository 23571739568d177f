"""Calls over QUIC, by the Rust client: one connection for all calls, and a cancelled call is known to its node at once.

* **Full, late, lost:** retries, deadlines and errors are those of the Rust client.
* **Cancelled:** Ctrl-C, a cancelled task and a closed generator cancel the call on its node.
* **Forked:** a process that was forked makes a connection of its own.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any

from callboard._envelope import Buffer
from callboard._native import Completions, Connection
from callboard.client._calls import CallsApart
from callboard.client.transport import Options, Settings


class QuicTransport:
    """Carries the calls of a `Client`."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._connection = _connection(url, settings)

    def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> Buffer:
        return self._connection.call(route, pieces, options)

    def replies(self, route: str, pieces: Sequence[Buffer], options: Options) -> Generator[Buffer, None, None]:
        replies = self._connection.replies(route, pieces, options)
        try:
            yield from replies
        finally:
            replies.close()

    def close(self) -> None:
        self._connection.close()


class AsyncQuicTransport:
    """Carries the calls of an `AsyncClient`, with a connection for each event loop."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._open: Callable[[], Connection] = lambda: _connection(url, settings)
        # Made now, so that a wrong URL is found now. A list, from which only one of the threads takes it.
        self._first = [self._open()]
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Connection, Completions]]
        self._loops = weakref.WeakKeyDictionary()

    async def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> Buffer:
        loop = asyncio.get_running_loop()
        connection, completions = self._of(loop)
        future: asyncio.Future[bytes] = loop.create_future()
        number = connection.call_async(completions, future, route, pieces, options)
        try:
            return await future
        except BaseException:
            completions.cancel(number)
            raise

    async def replies(self, route: str, pieces: Sequence[Buffer], options: Options) -> AsyncGenerator[Buffer, None]:
        loop = asyncio.get_running_loop()
        connection, completions = self._of(loop)
        replies = connection.replies(route, pieces, options)
        try:
            while True:
                future: asyncio.Future[bytes | None] = loop.create_future()
                number = replies.next_async(completions, future)
                try:
                    output = await future
                except BaseException:
                    completions.cancel(number)
                    raise
                if output is None:
                    return
                yield output
        finally:
            replies.close()

    def calls(self, route: str, options: Options) -> CallsApart:
        return CallsApart(functools.partial(self.call, route))

    async def aclose(self) -> None:
        self._first.clear()
        loop = asyncio.get_running_loop()
        if here := self._loops.pop(loop, None):
            connection, completions = here
            loop.remove_reader(completions)
            completions.close()
            await loop.run_in_executor(None, connection.close)

    def _of(self, loop: asyncio.AbstractEventLoop) -> tuple[Connection, Completions]:
        here = self._loops.get(loop)
        if here is None:
            try:
                connection = self._first.pop()
            except IndexError:
                connection = self._open()
            here = (connection, Completions())
            loop.add_reader(here[1], here[1].deliver)
            self._loops[loop] = here
        return here


def _connection(url: str, settings: Settings) -> Connection:
    over_http: dict[str, Any] = {"api_key": None, "headers": {}, "verify": True, "certificate": None, "proxy": None}
    for name, default in over_http.items():
        if getattr(settings, name) != default:
            raise ValueError(f"{name}: over QUIC both sides show an identity; cluster= is the directory of this one")
    return Connection(
        url,
        cluster=settings.cluster,
        start_up_wait=settings.start_up_wait,
        connect_timeout=settings.connect_timeout,
        attempts=settings.attempts,
        max_reply_bytes=settings.max_reply_bytes,
    )
