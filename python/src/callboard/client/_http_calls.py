"""Ordered streams of calls over HTTP: one request, with inputs as frames out and outcomes as frames back.

So a call costs a few microseconds instead of a request. What the stream cannot carry is made as a request of its own,
by the rules of those: a large input, a call that the node has refused for now, and all calls while there is no stream.

* **Full:** the client of the stream bounds its calls. A call whose time is up keeps no input. Behind a proxy that wants
  a whole request before it passes it on there is no answer to the head, and all calls are made apart.
* **Lost:** calls that the node may have read fail, unless they are `idempotent`. The others are made apart.
* **Cancelled:** `aclose` ends the request, and with it all of its calls on the node.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import h11
import httpcore

from callboard._awaiting import apart
from callboard._envelope import Buffer
from callboard.client._calls import CallsApart, Outcome, ended, fail, succeed
from callboard.client._http_connection import closed, head_of_answer, next_event, opened
from callboard.client._http_reply import END, ERROR, FRAME, OUTPUT, Frames, failure_of_frame, lost
from callboard.client._http_request import STREAM_TYPE, Endpoint
from callboard.client.policy import Absence
from callboard.client.transport import Failure, Options, Settings

# A larger input is a request of its own, where it holds up no other.
_LARGEST_BYTES = 256 << 10
# What is written at once.
_PIECE_BYTES = 64 << 10
# The time for the head of the answer, which a node sends before it has any call.
_HEAD_SECONDS = 2.0
# How long no stream is tried after a missing answer.
_NO_STREAMS_SECONDS = 60.0
# The errors of a stream whose node has read none of the calls that have no outcome yet. Those of user code are no such.
_UNREAD = ("bad_frame", "body_out_of_time", "body_stalled", "body_too_large", "broken_body")
# The time for the rest of an answer whose request cannot be sent.
_REST_SECONDS = 1.0


class CallStream:
    """`CallsApart` over one connection, as far as it goes."""

    def __init__(
        self,
        endpoint: Endpoint,
        settings: Settings,
        route: str,
        options: Options,
        make: Callable[[Sequence[Buffer], Options], Awaitable[Buffer]],
        absence: Absence,
    ) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._request = endpoint.head_of_calls(route, options)
        self._absence = absence
        self._apart = CallsApart(make)
        # The calls that a stream has not carried, which are made again.
        self._again = 0
        # No further calls come.
        self._is_over = False
        self._unsent: deque[_Call] = deque()
        # In the order of their outcomes.
        self._sent: deque[_Call] = deque()
        self._has_unsent = asyncio.Event()
        self._carrying: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of the first call."""
        return self._apart.loop

    def begin(self, pieces: Sequence[Buffer], options: Options, outcome: Outcome) -> None:
        """As `CallsApart.begin`."""
        self._apart.use()
        if self._is_closed:
            outcome.cancel()
            return
        # Those whose time is up are first.
        while self._unsent and self._unsent[0].outcome.done():
            self._unsent.popleft()
        is_large, now = sum(map(len, pieces)) > _LARGEST_BYTES, time.monotonic()
        if is_large or self._again or now < self._endpoint.no_streams_until or self._absence.is_gone(now):
            self._apart.begin(pieces, options, outcome)
            return
        self._unsent.append(_Call(pieces, options, outcome))
        self._has_unsent.set()
        if self._carrying is None:
            self._carrying = asyncio.get_running_loop().create_task(self._carry())

    def finish(self) -> None:
        """No further calls begin: the node is told."""
        self._is_over = True
        self._has_unsent.set()

    async def aclose(self) -> None:
        """Ends all calls."""
        self._is_closed = True
        if self._carrying is not None:
            if self._is_over and not self._sent and not self._unsent:
                # The node reads the end, so that it does not count the client as lost.
                await asyncio.wait({self._carrying}, timeout=_REST_SECONDS)
            await ended(self._carrying)
        await self._apart.aclose()

    # ---- One connection after the other ------------------------------------------------------------------------------

    async def _carry(self) -> None:
        try:
            while not self._is_over or self._unsent:
                await self._has_unsent.wait()
                if not self._unsent:
                    # The time of those that it was set for is up.
                    self._has_unsent.clear()
                    continue
                reason, was_read = await self._exchange()
                self._settle(reason, was_read)
        finally:
            for call in (*self._sent, *self._unsent):
                call.outcome.cancel()

    def _settle(self, reason: str, was_read: bool) -> None:
        """What becomes of the calls that a connection has left."""
        for call in self._sent:
            if was_read and not call.options.idempotent:
                fail(call.outcome, lost(self._endpoint, reason, was_started=True))
            else:
                self._begin_again(call)
        self._sent.clear()

    async def _exchange(self) -> tuple[str, bool]:
        """Carries calls until the connection ends: why it did, and whether the node may have read what was sent."""
        http = h11.Connection(h11.CLIENT)
        try:
            stream = await opened(self._endpoint, self._settings, apart(httpcore.AnyIOBackend().connect_tcp))
        except Exception as error:
            self._leave_unsent()
            return str(error), False
        try:
            await stream.write(http.send(self._request))
            if await self._is_answered(stream, http):
                self._absence.answered()
                return await self._exchange_calls(stream, http)
            # A request of its own is told why.
            self._leave_unsent()
            return "there was no answer", False
        except Exception as error:
            # Whatever it was, there is no stream.
            self._leave_unsent()
            return str(error) or type(error).__name__, True
        finally:
            await asyncio.shield(closed(stream))

    async def _is_answered(self, stream: httpcore.AsyncNetworkStream, http: h11.Connection) -> bool:
        reading = asyncio.ensure_future(_head(stream, http))
        try:
            await asyncio.wait({reading}, timeout=_HEAD_SECONDS)
            if reading.done():
                return reading.result()
            self._endpoint.no_streams_until = time.monotonic() + _NO_STREAMS_SECONDS
            return False
        finally:
            await ended(reading)

    async def _exchange_calls(self, stream: httpcore.AsyncNetworkStream, http: h11.Connection) -> tuple[str, bool]:
        reading = asyncio.ensure_future(self._read(stream, http))
        writing = asyncio.ensure_future(self._write(stream, http))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            # The answer to what cannot be sent says why.
            has_failed = writing.done() and writing.exception() is not None
            await asyncio.wait({reading}, timeout=_REST_SECONDS if has_failed else None)
        finally:
            failed = reading.exception() if reading.done() else None
            fault = None if failed or not reading.done() else reading.result()
            await ended(reading, writing)
        if fault is not None:
            return fault.message, not fault.retryable and fault.error_type not in _UNREAD
        return (str(failed) or type(failed).__name__) if failed else "it ended", True

    # ---- Frames ------------------------------------------------------------------------------------------------------

    async def _write(self, stream: httpcore.AsyncNetworkStream, http: h11.Connection) -> None:
        while True:
            await self._has_unsent.wait()
            piece = bytearray()
            while self._unsent and len(piece) < _PIECE_BYTES:
                call = self._unsent.popleft()
                if not call.outcome.done():
                    self._sent.append(call)
                    piece += FRAME.pack(OUTPUT, sum(map(len, call.pieces)))
                    for each in call.pieces:
                        piece += each
            if not self._unsent:
                self._has_unsent.clear()
            # More may come while this is written.
            is_last = self._is_over and not self._unsent
            if is_last:
                piece += FRAME.pack(END, 0)
            if piece:
                await stream.write(http.send(h11.Data(data=bytes(piece))) or b"")
            if is_last:
                return await stream.write(http.send(h11.EndOfMessage()) or b"")

    async def _read(self, stream: httpcore.AsyncNetworkStream, http: h11.Connection) -> Failure | None:
        """Gives each call its outcome. The last error, if the answer ended with it: a fault of the stream."""
        frames, fault = Frames(self._settings.max_reply_bytes), None
        while True:
            event = await next_event(stream, http)
            if not isinstance(event, h11.Data):
                return fault
            for kind, outcome in frames.push(event.data):
                fault = None
                if kind == END:
                    return None
                if not self._sent:
                    # No call waits: the stream was silent for too long, or the node is about to end.
                    fault = failure_of_frame(outcome) if kind == ERROR else None
                    continue
                call = self._sent.popleft()
                if kind == OUTPUT:
                    succeed(call.outcome, outcome)
                    continue
                failure = fault = outcome if isinstance(outcome, Failure) else failure_of_frame(outcome)
                if failure.retryable or failure.error_type in _UNREAD:
                    self._begin_again(call)
                else:
                    fail(call.outcome, failure)

    # ---- Without the stream ------------------------------------------------------------------------------------------

    def _leave_unsent(self) -> None:
        unsent, self._unsent = self._unsent, deque()
        self._has_unsent.clear()
        for call in unsent:
            self._begin_again(call)

    def _begin_again(self, call: _Call) -> None:
        """As a request of its own, and so are the calls that begin before it has ended."""
        if call.outcome.done():
            return
        self._again += 1

        def over(_: Any) -> None:
            self._again -= 1

        self._apart.begin(call.pieces, call.options, call.outcome).add_done_callback(over)


class _Call:
    __slots__ = ("options", "outcome", "pieces")

    def __init__(self, pieces: Sequence[Buffer], options: Options, outcome: Outcome) -> None:
        self.pieces = pieces
        self.options = options
        self.outcome = outcome
        # A call whose time is up needs its input no more.
        outcome.add_done_callback(self._forget)

    def _forget(self, _: Any) -> None:
        self.pieces = ()


async def _head(stream: httpcore.AsyncNetworkStream, http: h11.Connection) -> bool:
    """Whether the answer is a stream."""
    head = await head_of_answer(stream, http)
    return head.status_code == 200 and dict(head.headers).get(b"content-type", b"").lower() == STREAM_TYPE
