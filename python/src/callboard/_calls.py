"""Calls of a worker to routes of its node: `call`, `result` and `cancel_call` of `docs/worker-protocol.md`.

A call belongs to the item whose code makes it, or to the whole batch where the code of several items runs together.
Asynchronous code awaits a future. Of synchronous threads that wait, one reads the socket for all.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from callboard._awaiting import in_loop
from callboard._current import CURRENT
from callboard._depends import MAP_CALLS
from callboard._envelope import Buffer, decode, encode_pieces
from callboard._errors import error_of
from callboard._exceptions import CallError
from callboard._messages import Result
from callboard._target import Route


class OpenCall:
    """A call without its result. `notify` tells what waits for it; a thread that waits has an `event`."""

    def __init__(self, notify: Callable[[], object], event: threading.Event | None = None) -> None:
        self._notify = notify
        self.batch = 0
        self.event = event
        self.done = False
        self._error: dict[str, Any] | None = None
        self._part: Buffer = b""

    def end(self, error: dict[str, Any] | None, part: Buffer = b"") -> None:
        self._error, self._part, self.done = error, part, True
        self._notify()

    def result(self) -> Any:
        # It is made here: a frame that has its own error is a cycle, which keeps what the code holds that calls.
        if self._error is not None:
            raise error_of(self._error)
        return decode(self._part, is_as_sent=True)


class WorkerCalls:
    """The calls of one worker. `read` takes one frame of the socket, and `reading` is the right to do so."""

    def __init__(
        self,
        send: Callable[[dict[str, Any], Sequence[int], Sequence[Buffer]], None],
        read: Callable[[], object],
        reading: threading.Lock,
        running: Mapping[int, object],
    ) -> None:
        self._send = send
        self._read = read
        self._reading = reading
        self._running = running
        self._pid = os.getpid()
        self._ids = itertools.count(1)
        self._beginning = threading.Lock()
        self._open: dict[int, OpenCall] = {}
        self.max_bytes = 0
        # Whether the code of the service is asynchronous.
        self.awaits = False
        # Whether `setup` is over.
        self.is_ready = False

    def is_async(self) -> bool:
        return self.awaits and in_loop()

    def call(self, path: str, route: Route | None, value: Any) -> Any:
        return self._wait(*self._begin_sync(path, value))

    def map(self, path: str, route: Route | None, values: Iterable[Any]) -> list[Any]:
        begun: deque[tuple[int, OpenCall, threading.Event]] = deque()
        outputs = []
        try:
            for value in values:
                if len(begun) == MAP_CALLS:
                    outputs.append(self._wait(*begun.popleft()))
                begun.append(self._begin_sync(path, value))
            while begun:
                outputs.append(self._wait(*begun.popleft()))
        finally:
            for ident, _, _ in begun:
                self._leave(ident)
        return outputs

    async def call_async(self, path: str, route: Route | None, value: Any) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        call = OpenCall(lambda: loop.call_soon_threadsafe(resolve))
        ident = self._begin(path, value, call)
        try:
            await future
        finally:
            self._leave(ident)
        return call.result()

    # ---- For the worker ----------------------------------------------------------------------------------------------

    def take(self, result: Result, parts: list[Buffer]) -> None:
        """Takes a result. That of a call that was given up is dropped."""
        call = self._open.pop(result.id, None)
        if call is not None:
            call.end(result.error, *parts)

    def end(self, batch: int) -> None:
        """The batch is over, and its calls with it."""
        # Threads of the app may begin and end calls meanwhile.
        for ident, call in list(self._open.items()):
            if call.batch == batch and self._open.pop(ident, None) is not None:
                call.end({"message": "the call that this one belongs to is over", "kind": "cancelled"})

    # ---- One call ----------------------------------------------------------------------------------------------------

    def _begin_sync(self, path: str, value: Any) -> tuple[int, OpenCall, threading.Event]:
        event = threading.Event()
        call = OpenCall(event.set, event)
        return self._begin(path, value, call), call, event

    def _begin(self, path: str, value: Any, call: OpenCall) -> int:
        if os.getpid() != self._pid:
            raise CallError("a process that the app has started cannot call: only the worker can", kind="unavailable")
        context = CURRENT.get()
        place = None if context is None else context._place
        # Code of no item in particular calls for the batch that runs, or for the oldest of several.
        batch = next(iter(self._running), None) if place is None else place[0]
        if batch is None or batch not in self._running:
            when = "no call of this service runs" if self.is_ready else "other services may not be ready in `setup`"
            raise CallError(f"{path} cannot be called now: {when}; call it in `predict`", kind="unavailable")
        pieces = encode_pieces(value)
        size = sum(map(len, pieces))
        if size > self.max_bytes:
            raise CallError(f"the input has {size} bytes, more than {self.max_bytes}", kind="invalid_input")
        # The node takes ids in ascending order only.
        with self._beginning:
            ident = next(self._ids)
            head = {"type": "call", "id": ident, "batch": batch, "route": path}
            call.batch = batch
            self._open[ident] = call
            self._send(head if place is None else {**head, "item": place[1]}, [size], pieces)
        return ident

    def _wait(self, ident: int, call: OpenCall, event: threading.Event) -> Any:
        try:
            while not call.done:
                if self._reading.acquire(blocking=False):
                    try:
                        while not call.done:
                            self._read()
                    finally:
                        self._reading.release()
                        self.wake_another()
                else:
                    event.wait()
                    event.clear()
        finally:
            self._leave(ident)
        return call.result()

    def wake_another(self) -> None:
        """Another waiting thread reads from now on."""
        for call in list(self._open.values()):
            if call.event is not None:
                call.event.set()

    def _leave(self, ident: int) -> None:
        """Nothing waits for the call any more."""
        if self._open.pop(ident, None) is not None:
            self._send({"type": "cancel_call", "id": ident}, (), ())
