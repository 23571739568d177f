"""Calls of a worker to routes of its node: `call`, `result`, `call_output` … of `docs/worker-protocol.md`.

A call belongs to the item whose code makes it, or to the whole batch where the code of several items runs together.
Asynchronous code awaits a future. Of synchronous threads that wait, one reads the socket for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from callboard._awaiting import in_loop
from callboard._context import OVER
from callboard._current import CURRENT
from callboard._depends import MAP_CALLS
from callboard._envelope import Buffer, Decoder, decode, encode_pieces
from callboard._errors import error_of
from callboard._exceptions import CallError
from callboard._frames import FrameError
from callboard._inner import CREDIT, CREDIT_BYTES, InnerAttempts, InnerOptions, Once, after_error
from callboard._messages import Result
from callboard._target import Route


class OpenCall:
    """A call without its end."""

    def __init__(self) -> None:
        self.ident = self.batch = 0
        # Whether it may stream, and whether it does.
        self.takes_stream = self.streams = False
        # The outputs of a stream that came and were not read.
        self.outputs: deque[Buffer] = deque()
        self.done = False
        self.error: dict[str, Any] | None = None
        self._parts: Sequence[Buffer] = ()

    def notify(self) -> None:
        """Tells what waits for it."""
        raise NotImplementedError

    def output(self, part: Buffer) -> None:
        self.streams = True
        self.outputs.append(part)
        self.notify()

    def end(self, error: dict[str, Any] | None, parts: Sequence[Buffer] = ()) -> None:
        self.error, self._parts, self.done = error, parts, True
        self.notify()

    @property
    def has_come(self) -> bool:
        """Whether something of it came that is not read."""
        return self.done or bool(self.outputs)

    def result(self) -> Sequence[Buffer]:
        """The one output, or none of a stream. Raises the error of the call."""
        # It is made here: a frame that has its own error is a cycle, which keeps what the code holds that calls.
        if self.error is not None:
            raise error_of(self.error)
        return self._parts


class BlockingCall(OpenCall):
    """For a thread that waits."""

    def __init__(self) -> None:
        super().__init__()
        self._event = threading.Event()

    def notify(self) -> None:
        self._event.set()

    def wait(self) -> None:
        self._event.wait()
        self._event.clear()


class AwaitedCall(OpenCall):
    """For asynchronous code."""

    def __init__(self) -> None:
        super().__init__()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._future: asyncio.Future[None] | None = None

    def notify(self) -> None:
        if threading.get_ident() == self._thread:
            self._resolve()
        else:
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def until_come(self) -> None:
        while not self.has_come:
            self._future = self._loop.create_future()
            await self._future


_WAKE_BYTES = 64

C = TypeVar("C", BlockingCall, AwaitedCall)


class WorkerCalls:
    """The calls of one worker. `read` takes one frame of `socket`, and `reading` is the right to do so. `is_sending`
    tells whether a thread writes a frame."""

    def __init__(
        self,
        send: Callable[[dict[str, Any], Sequence[int], Sequence[Buffer]], None],
        read: Callable[..., object],
        socket: int,
        reading: threading.Lock,
        is_sending: Callable[[], bool],
        running: Mapping[int, object],
    ) -> None:
        self._send = send
        self._read = read
        self._socket = socket
        # What wakes the thread that reads for a stream, and the stream.
        self._wake: tuple[int, int] | None = None
        self._read_for: OpenCall | None = None
        self._reading = reading
        self._is_sending = is_sending
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

    def call(self, path: str, route: Route | None, value: Any, options: InnerOptions) -> Any:
        return self._result(path, value, *self._begun(path, value, options))

    def map(self, path: str, route: Route | None, values: Iterable[Any], options: InnerOptions) -> list[Any]:
        begun: deque[tuple[Any, BlockingCall, InnerAttempts | Once]] = deque()
        outputs = []
        try:
            for value in values:
                if len(begun) == MAP_CALLS:
                    outputs.append(self._result(path, *begun.popleft()))
                begun.append((value, *self._begun(path, value, options)))
            while begun:
                outputs.append(self._result(path, *begun.popleft()))
        finally:
            for _, call, _ in begun:
                self.leave(call)
        return outputs

    async def call_async(self, path: str, route: Route | None, value: Any, options: InnerOptions) -> Any:
        attempts = options.attempts()
        while True:
            call = self.begin(AwaitedCall(), path, value, attempts.remaining_ms())
            try:
                await call.until_come()
            finally:
                self.leave(call)
            try:
                return _decoded(call.result()[0])
            except CallError as error:
                pause = attempts.pause(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    def outputs(
        self, path: str, route: Route | None, value: Any, options: InnerOptions, read: Callable[[Any], Any]
    ) -> InnerOutputs:
        return InnerOutputs(self, path, value, options, read)

    # ---- For the worker ----------------------------------------------------------------------------------------------

    def take(self, result: Result, parts: list[Buffer]) -> None:
        """Takes a result. That of a call that was given up is dropped."""
        call = self._open.pop(result.id, None)
        most = int(result.error is None)
        if len(parts) > most or (call is not None and not call.takes_stream and len(parts) < most):
            raise FrameError(f"a result with {len(parts)} parts")
        if call is not None:
            call.end(result.error, parts)

    def take_output(self, ident: int, part: Buffer) -> None:
        """Takes an output of a stream, which may have been given up."""
        call = self._open.get(ident)
        if call is not None and not call.takes_stream:
            raise FrameError("a stream for a call that takes none")
        if call is not None:
            call.output(part)

    def end(self, batch: int) -> None:
        """The batch is over, and its calls with it."""
        # Threads of the app may begin and end calls meanwhile.
        for ident, call in list(self._open.items()):
            if call.batch == batch and self._open.pop(ident, None) is not None:
                call.end({"message": "the call that this one belongs to is over", "kind": "cancelled"})

    # ---- One call ----------------------------------------------------------------------------------------------------

    def begin(self, call: C, path: str, value: Any, timeout_ms: int | None, credit: int | None = None) -> C:
        """Begins a call. With `credit` it may stream."""
        if os.getpid() != self._pid:
            raise CallError("a process that the app has started cannot call: only the worker can", kind="unavailable")
        context = CURRENT.get()
        place = None if context is None else context._place
        # Code of no item in particular calls for the batch that runs, or for the oldest of several.
        batch = next(iter(self._running), None) if place is None else place[0]
        if batch is None or batch not in self._running:
            if place == OVER:
                raise after_error(path)
            when = "no call of this service runs" if self.is_ready else "other services may not be ready in `setup`"
            raise CallError(f"{path} cannot be called now: {when}; call it in `predict`", kind="unavailable")
        pieces = encode_pieces(value)
        size = sum(map(len, pieces))
        if size > self.max_bytes:
            raise CallError(f"the input has {size} bytes, more than {self.max_bytes}", kind="invalid_input")
        # The node takes ids in ascending order only.
        with self._beginning:
            call.ident, call.batch, call.takes_stream = next(self._ids), batch, credit is not None
            head: dict[str, Any] = {"type": "call", "id": call.ident, "batch": batch, "route": path}
            if place is not None:
                head["item"] = place[1]
            if timeout_ms is not None:
                head["timeout_ms"] = timeout_ms
            if credit is not None:
                head["credit"], head["credit_bytes"] = credit, CREDIT_BYTES
            self._open[call.ident] = call
            self._send(head, [size], pieces)
        return call

    def _begun(self, path: str, value: Any, options: InnerOptions) -> tuple[BlockingCall, InnerAttempts | Once]:
        attempts = options.attempts()
        return self.begin(BlockingCall(), path, value, attempts.remaining_ms()), attempts

    def _result(self, path: str, value: Any, call: BlockingCall, attempts: InnerAttempts | Once) -> Any:
        while True:
            try:
                self.until_come(call)
            finally:
                self.leave(call)
            try:
                return _decoded(call.result()[0])
            except CallError as error:
                pause = attempts.pause(error)
                if pause is None:
                    raise
            time.sleep(pause)
            call = self.begin(BlockingCall(), path, value, attempts.remaining_ms())

    def until_come(self, call: BlockingCall) -> None:
        """Waits until something of the call came."""
        while not call.has_come:
            if self._reading.acquire(blocking=False):
                try:
                    self._read_for = call
                    while not call.has_come:
                        self._read_or_woken() if call.takes_stream else self._read(wait=True)
                finally:
                    self._read_for = None
                    self._reading.release()
                    self.wake_another()
            else:
                call.wait()

    def _read_or_woken(self) -> None:
        """Takes the next frame, unless another thread leaves the stream that this one reads for."""
        if self._wake is None:
            self._wake = os.pipe()
            os.set_blocking(self._wake[1], False)
        if not self._read(wait=False):
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.register(self._wake[0], select.POLLIN)
            # One that comes late wakes the next stream, which looks again.
            if any(each == self._wake[0] for each, _ in poll.poll()):
                os.read(self._wake[0], _WAKE_BYTES)

    def wake_another(self) -> None:
        """Another waiting thread reads from now on."""
        for call in list(self._open.values()):
            if isinstance(call, BlockingCall):
                call.notify()

    def give_credit(self, call: OpenCall, outputs: int, size: int) -> None:
        """The call may send this number of further outputs: as many were read, of `size` bytes in all."""
        if not call.done:
            self._send({"type": "call_credit", "id": call.ident, "outputs": outputs, "bytes": size}, (), ())

    def leave(self, call: OpenCall) -> None:
        """Nothing waits for the call any more: another thread or task that reads its outputs finds their end."""
        if self._open.pop(call.ident, None) is not None:
            call.end({"message": "nothing reads this call any more", "kind": "cancelled"})
            if call is self._read_for and self._wake is not None:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._wake[1], b"\0")
            self._send({"type": "cancel_call", "id": call.ident}, (), ())

    def leave_unread(self, call: OpenCall) -> None:
        """As `leave`, from the collector of objects. It may run while this thread writes a frame: then the end of the
        batch ends the call."""
        if self._is_sending():
            self._open.pop(call.ident, None)
        else:
            self.leave(call)


class InnerOutputs:
    """The outputs of a call of a route that streams: for a plain loop, or `async for` in asynchronous code.

    The call begins with the loop. To `close` this cancels it, and so does to leave the loop if nothing else refers to
    this. Raises `CallError` where the stream ends with an error.
    """

    def __init__(
        self, calls: WorkerCalls, path: str, value: Any, options: InnerOptions, read: Callable[[Any], Any]
    ) -> None:
        self._calls = calls
        self._path = path
        self._value = value
        self._options = options
        self._read = read
        # To make one costs as much as to use it.
        self._decode = Decoder(is_as_sent=True).decode
        self._call: BlockingCall | AwaitedCall | None = None
        self._attempts: InnerAttempts | Once | None = None
        # Outputs that were read since the node was told so, and their bytes.
        self._taken = self._taken_bytes = 0
        self._is_over = False

    def __iter__(self) -> InnerOutputs:
        return self

    def __aiter__(self) -> InnerOutputs:
        return self

    def __next__(self) -> Any:
        call: OpenCall | None = self._call
        if call is None or not call.outputs:
            if self._is_over:
                raise StopIteration
            call = self._until_come()
        for output in self._next(call):
            return output
        raise StopIteration

    async def __anext__(self) -> Any:
        call: OpenCall | None = self._call
        # Several may have come at once.
        if call is None or not call.outputs:
            if self._is_over:
                raise StopAsyncIteration
            call = await self._until_come_async()
        for output in self._next(call):
            return output
        raise StopAsyncIteration

    def only(self) -> Any:
        """The output of a route that may stream: these outputs if it does."""
        call = self._until_come()
        found = [] if call.streams else self._next(call)
        return found[0] if found else self

    async def only_async(self) -> Any:
        """The output of a route that does not stream."""
        call = await self._until_come_async()
        found = [] if call.streams else self._next(call)
        if not found:
            self.close()
            raise TypeError(f"{self._path} answers with a stream: read it with `async for`")
        return found[0]

    def close(self) -> None:
        """Cancels the call, unless it is over."""
        self._is_over = True
        call, self._call = self._call, None
        if call is not None:
            self._calls.leave(call)

    async def aclose(self) -> None:
        self.close()

    def __del__(self) -> None:
        if self._call is not None:
            self._calls.leave_unread(self._call)

    def _begin(self, call: C) -> C:
        self._attempts = self._attempts or self._options.attempts()
        self._calls.begin(call, self._path, self._value, self._attempts.remaining_ms(), CREDIT)
        self._call = call
        return call

    def _until_come(self) -> OpenCall:
        """The call, with an output or its end."""
        try:
            while True:
                call = self._call or self._begin(BlockingCall())
                if isinstance(call, AwaitedCall):
                    raise TypeError(f"{self._path} is read with `async for`, and a plain loop reads it, too")
                self._calls.until_come(call)
                pause = self._pause(call)
                if pause is None:
                    return call
                time.sleep(pause)
                if self._is_over:
                    return call
        except BaseException:
            self.close()
            raise

    async def _until_come_async(self) -> OpenCall:
        try:
            while True:
                call = self._call or self._begin(AwaitedCall())
                if isinstance(call, BlockingCall):
                    raise TypeError(f"{self._path} is read by a plain loop, and `async for` reads it, too")
                await call.until_come()
                pause = self._pause(call)
                if pause is None:
                    return call
                await asyncio.sleep(pause)
                if self._is_over:
                    return call
        except BaseException:
            self.close()
            raise

    def _pause(self, call: OpenCall) -> float | None:
        """The seconds until the call is made again: it has ended without an output, and may be."""
        if self._attempts is None or call.streams or call.error is None:
            return None
        pause = self._attempts.pause(error_of(call.error))
        if pause is not None:
            self._call = None
        return pause

    def _next(self, call: OpenCall) -> list[Any]:
        """The next output, or none at the end."""
        try:
            if not call.outputs:
                # Another thread or task has closed this.
                if self._is_over:
                    return []
                self._is_over = True
                return [self._read(self._decode(part)) for part in call.result()]
            part = call.outputs.popleft()
            self._taken += 1
            self._taken_bytes += len(part)
            if self._taken == CREDIT // 2 or self._taken_bytes >= CREDIT_BYTES // 4:
                self._calls.give_credit(call, self._taken, self._taken_bytes)
                self._taken = self._taken_bytes = 0
            return [self._read(self._decode(part))]
        except BaseException:
            self.close()
            raise


def _decoded(part: Buffer) -> Any:
    return decode(part, is_as_sent=True)
