"""The event loop behind the ordered streams of a `Client`: one daemon thread, which no exit waits for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from callboard._envelope import Buffer
from callboard.client.transport import AsyncTransport, Calls, Options


class Background:
    """Makes many calls at the same time for code that blocks. The thread starts with the first call."""

    def __init__(self, open_transport: Callable[[], AsyncTransport]) -> None:
        self._open_transport = open_transport
        self._lock = threading.Lock()
        self._process = os.getpid()
        self.is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: AsyncTransport | None = None

    def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> Future[Buffer]:
        """Begins a call. To cancel the future cancels the call on the node."""
        loop, transport = self._started()
        return asyncio.run_coroutine_threadsafe(transport.call(route, pieces, options), loop)

    def calls(self, route: str, options: Options) -> BackgroundCalls:
        """Many calls of one route."""

        def open_calls() -> tuple[asyncio.AbstractEventLoop, Calls]:
            loop, transport = self._started()
            return loop, transport.calls(route, options)

        return BackgroundCalls(open_calls)

    def close(self) -> None:
        """Ends the thread, and all calls. No further ones begin."""
        self.is_closed = True
        if self._process != os.getpid():
            # The thread stayed in the parent, and perhaps one that held the lock.
            return
        with self._lock:
            loop, transport, self._loop, self._transport = self._loop, self._transport, None, None
        if loop is not None and transport is not None:
            asyncio.run_coroutine_threadsafe(_end(transport), loop)

    def _started(self) -> tuple[asyncio.AbstractEventLoop, AsyncTransport]:
        if self._process != os.getpid():
            # The thread stayed in the parent.
            self._lock, self._process, self._loop, self._transport = threading.Lock(), os.getpid(), None, None
        with self._lock:
            if self.is_closed:
                raise RuntimeError("the client is closed")
            if self._loop is None or self._transport is None:
                self._loop = asyncio.new_event_loop()
                self._transport = self._open_transport()
                threading.Thread(target=_run, args=(self._loop,), name="callboard-client", daemon=True).start()
            return self._loop, self._transport


class Outcome:
    """A future of another thread. Those of a stream share a lock and an event: one by one is most of a call's cost."""

    __slots__ = ("_callbacks", "_shared", "_state", "_value")

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._state = _PENDING
        self._value: Any = None
        self._callbacks: Sequence[Callable[[Any], object]] = ()

    def done(self) -> bool:
        return self._state != _PENDING

    def cancelled(self) -> bool:
        return self._state == _CANCELLED

    def wait(self, timeout: float) -> bool:
        """Waits until it is done. Only one thread of a stream does so."""
        if self._state == _PENDING:
            shared = self._shared
            with shared.lock:
                shared.is_done.clear()
                shared.awaited = self
            if self._state == _PENDING:
                shared.is_done.wait(timeout)
        return self._state != _PENDING

    def exception(self) -> Exception | None:
        return self._value if self._state == _FAILED else None

    def result(self) -> Buffer:
        return self._value  # type: ignore[no-any-return]

    def set_result(self, envelope: Buffer) -> None:
        self._end(_SUCCEEDED, envelope)

    def set_exception(self, error: Exception) -> None:
        self._end(_FAILED, error)

    def cancel(self) -> None:
        self._end(_CANCELLED, None)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        with self._shared.lock:
            if self._state == _PENDING:
                self._callbacks = (*self._callbacks, callback)
                return
        callback(self)

    def _end(self, state: int, value: Any) -> None:
        shared = self._shared
        with shared.lock:
            if self._state != _PENDING:
                return
            self._state, self._value = state, value
            callbacks, self._callbacks = self._callbacks, ()
            is_awaited = shared.awaited is self
        if is_awaited:
            shared.is_done.set()
        for callback in callbacks:
            callback(self)


_PENDING, _SUCCEEDED, _FAILED, _CANCELLED = range(4)


class _Shared:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        # Set when the awaited outcome is done.
        self.is_done = threading.Event()
        self.awaited: Outcome | None = None


class BackgroundCalls:
    """The calls of an ordered stream, for the thread that has its inputs."""

    def __init__(self, open_calls: Callable[[], tuple[asyncio.AbstractEventLoop, Calls]]) -> None:
        self._open_calls = open_calls
        self._open()

    def _open(self) -> None:
        self._process = os.getpid()
        self._loop, self._calls = self._open_calls()
        self._shared = _Shared()
        self._begun: deque[tuple[Sequence[Buffer], Options, Outcome]] = deque()
        # Whether the event loop will look at them.
        self._is_awaited = False
        self._is_closed = False

    def begin(self, pieces: Sequence[Buffer], options: Options) -> Outcome:
        """Begins a call. To cancel its outcome ends the wait for it."""
        if self._process != os.getpid():
            # The calls that have begun stayed in the parent.
            self._open()
        outcome = Outcome(self._shared)
        self._begun.append((pieces, options, outcome))
        if not self._is_awaited:
            self._is_awaited = True
            self._loop.call_soon_threadsafe(self._begin_all)
        return outcome

    def finish(self) -> None:
        """No further calls begin."""
        self._pass_on(self._calls.finish)

    def close(self) -> None:
        """Ends all calls, and those that begin later."""
        self._is_closed = True
        self._pass_on(lambda: self._loop.create_task(self._calls.aclose()))

    def _pass_on(self, what: Callable[[], object]) -> None:
        # An event loop that has ended has ended its calls. One that was forked is the parent's.
        if self._process == os.getpid():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(what)

    def _begin_all(self) -> None:
        self._is_awaited = False
        while self._begun:
            pieces, options, outcome = self._begun.popleft()
            if self._is_closed:
                outcome.cancel()
            else:
                self._calls.begin(pieces, options, outcome)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(transport: AsyncTransport) -> None:
    own = asyncio.current_task()
    # The end of one may begin another.
    while others := [task for task in asyncio.all_tasks() if task is not own]:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    try:
        await transport.aclose()
    finally:
        asyncio.get_running_loop().stop()
