"""`AsyncClient`: the same calls, to be awaited."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from callboard._envelope import Buffer, Decoder, encode_pieces
from callboard._errors import forget
from callboard._exceptions import CallError
from callboard._options import called_name, positive
from callboard.client._base import BaseClient, CallSettings, Prepared, T, input_error
from callboard.client._rows import Rows, check_inputs, rows_of
from callboard.client._stream import LOOK_AHEAD, Bar, Window, is_raised
from callboard.client.errors import CancelledCallError, to_error
from callboard.client.streams import AsyncStream
from callboard.client.transport import AsyncTransport, Calls, Failure, Options, Settings, open_async_transport

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncClient(BaseClient):
    """`Client` for tasks. One may be used in several event loops; each has connections of its own, until its `aclose`.

        async with AsyncClient("http://localhost:8000") as client:
            label = await client.call("/sentiment", "good", returns=Label)

    A cancelled task cancels its call on the node. Settings, options and errors are those of `Client`.
    """

    def _open(self, settings: Settings) -> None:
        self._carry(open_async_transport(self.url, settings))

    @classmethod
    def over(cls, transport: AsyncTransport) -> Self:
        """A client over a transport that is there already. `callboard.test_client` uses it."""
        client = cls.__new__(cls)
        client._set("", {})
        client._carry(transport)
        return client

    def _carry(self, transport: AsyncTransport) -> None:
        self._transport = transport
        # The event loops in which it is closed, shared with the clients from `with_options`.
        self._closed: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    def _is_closed(self) -> bool:
        try:
            return asyncio.get_running_loop() in self._closed
        except RuntimeError:
            # A stream may be made before its event loop.
            return False

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes all connections of this event loop, also those of clients from `with_options`.

        Further calls in this event loop raise `RuntimeError`. Other event loops go on, each until its own `aclose`.
        """
        self._closed.add(asyncio.get_running_loop())
        await self._transport.aclose()

    @overload
    async def call(self, route: str, value: Any = ..., *, returns: type[T], **options: Unpack[CallSettings]) -> T: ...
    @overload
    async def call(
        self, route: str, value: Any = ..., *, returns: Any = ..., **options: Unpack[CallSettings]
    ) -> Any: ...

    async def call(self, route: str, value: Any = None, *, returns: Any = None, **options: Unpack[CallSettings]) -> Any:
        """As `Client.call`."""
        return await self.call_prepared(Prepared.call(route, value), returns=returns, **options)

    async def send(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """As `Client.send`."""
        return await self.call_prepared(Prepared.send(name, *args, **kwargs))

    async def call_prepared(self, prepared: Prepared, *, returns: Any = None, **options: Unpack[CallSettings]) -> Any:
        """As `Client.call_prepared`."""
        checked, hint = self._options(options, function=prepared.is_function), self._hint(returns)
        try:
            reply = await self._transport.call(prepared.route, prepared.pieces, checked)
        except Failure as failure:
            raise to_error(failure, checked.request_id) from None
        return self._read(reply, self._decoder(hint), hint, prepared.route, checked)

    def replies(
        self, route: str, value: Any = None, *, returns: Any = None, **options: Unpack[CallSettings]
    ) -> AsyncStream[Any]:
        """As `Client.replies`: `async for`. `contextlib.aclosing` cancels the call as soon as the loop is left."""
        prepared, hint = Prepared.call(route, value), self._hint(returns)
        checked = self._options(options, function=prepared.is_function)
        outputs: Any = self._transport.replies(prepared.route, prepared.pieces, checked)
        decoder = self._decoder(hint)
        read = lambda output: self._read(output, decoder, hint, prepared.route, checked)  # noqa: E731
        return AsyncStream(_Replies(outputs, read, checked.request_id))

    def stream(
        self,
        route: str,
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        returns: Any = None,
        look_ahead: int = LOOK_AHEAD,
        stop_at_error: bool = False,
        with_inputs: bool = False,
        progress: bool = False,
        **options: Unpack[CallSettings],
    ) -> AsyncStream[Any]:
        """As `Client.stream`: `async for`. The inputs may come in their own time, from an asynchronous iterable.

        A loop that is left early leaves its calls to the garbage collector: `contextlib.aclosing` ends them at once.
        """
        check_inputs(inputs)
        given = dict(options)
        window = Window(look_ahead, given.pop("timeout", self._defaults.get("timeout")))  # type: ignore[arg-type]
        shared = self._options(given, timeout=window.timeout, is_of_stream=True)
        hint = self._hint(returns)
        made = self._stream(called_name(route), inputs, hint, window, stop_at_error, with_inputs, progress, shared)
        return AsyncStream(made)

    def map(
        self,
        route: str,
        inputs: Any,
        *,
        returns: Any = None,
        in_flight: int = LOOK_AHEAD,
        errors: Literal["return", "raise"] = "return",
        progress: bool = False,
        **options: Unpack[CallSettings],
    ) -> Any:
        """As `Client.map`: an `AsyncStream` for `async for`, or the frame of a frame, which is awaited."""
        rows = rows_of(inputs)
        stops = is_raised(errors)
        given: Any = {"returns": returns, "look_ahead": positive("in_flight", in_flight), "progress": progress}
        results = self.stream(route, inputs if rows is None else rows, stop_at_error=stops, **given, **options)
        return results if rows is None else _joined(rows, results, has_errors=not stops)

    async def _stream(
        self,
        route: str,
        inputs: Iterable[Any] | AsyncIterable[Any],
        hint: Any,
        window: Window,
        stop_at_error: bool,
        with_inputs: bool,
        progress: bool,
        shared: Options,
    ) -> AsyncGenerator[Any, None]:
        bar = Bar(inputs, progress, route)
        calls, decoder = self._transport.calls(route, shared), self._decoder(hint)
        clock = asyncio.get_running_loop().time
        pending: deque[tuple[Any, asyncio.Future[Buffer] | CallError, Options]] = deque()
        remaining = aiter(inputs) if isinstance(inputs, AsyncIterable) else _asynchronous(inputs)
        pulling: asyncio.Future[tuple[Any, bool]] | None = None
        has_more, since = True, clock()
        try:
            while True:
                if pulling is None and has_more and len(pending) < window.look_ahead:
                    pulling = asyncio.ensure_future(_next(remaining))
                    # An input that is there is pulled now, so that the window stays full.
                    await asyncio.sleep(0)
                if pulling is not None and pulling.done():
                    (value, has_more), pulling = pulling.result(), None
                    if not has_more:
                        calls.finish()
                    else:
                        self._check_open()
                        since = since if pending else clock()
                        options = window.options(shared, len(pending))
                        call = self._begin(calls, value, options)
                        pending.append((value if with_inputs else None, call, options))
                    if not pending or not _is_done(pending[0][1]):
                        continue
                if pending and (_is_done(pending[0][1]) or clock() >= since + window.timeout):
                    value, call, options = pending.popleft()
                    result = self._result(call, decoder, hint, route, window, options)
                    if stop_at_error and isinstance(result, CallError):
                        try:
                            raise result
                        finally:
                            del result
                    bar.step(result)
                    yield (value, result) if with_inputs else result
                    since = clock()
                    continue
                first = [call for _, call, _ in list(pending)[:1] if not isinstance(call, CallError)]
                waits = [*first, *((pulling,) if pulling else ())]
                if not waits:
                    return
                limit = max(0.0, since + window.timeout - clock()) if first else None
                await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            bar.close()
            open_calls = [call for _, call, _ in pending if not isinstance(call, CallError)]
            for each in (*open_calls, *((pulling,) if pulling else ())):
                each.cancel()
            await asyncio.gather(*open_calls, return_exceptions=True)
            await calls.aclose()

    def _begin(self, calls: Calls, value: Any, options: Options) -> asyncio.Future[Buffer] | CallError:
        try:
            pieces = encode_pieces(value)
        except TypeError as error:
            return input_error(error)
        outcome: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        calls.begin(pieces, options, outcome)
        return outcome

    def _result(
        self,
        call: asyncio.Future[Buffer] | CallError,
        decoder: Decoder,
        hint: Any,
        route: str,
        window: Window,
        options: Options,
    ) -> Any:
        """The output of one call, or its error. A call that is not done is late."""
        if isinstance(call, CallError):
            return call
        if not call.done():
            call.cancel()
            return window.late(options)
        if call.cancelled():
            return CancelledCallError("the client was closed", kind="cancelled", request_id=options.request_id)
        try:
            # It is not raised: a frame that has its own error is a cycle, which keeps the input of the call.
            failed = call.exception()
            if isinstance(failed, Failure):
                return to_error(failed.alone(), options.request_id)
            return self._read(call.result(), decoder, hint, route, options)
        except CallError as error:
            # Its frames refer to those of the stream, which have it too.
            forget(error)
            return error


class _Replies(AsyncGenerator[Any, None]):
    """The outputs of a transport as values.

    A generator around the transport's own would not do: an event loop that ends closes all of its generators at the
    same time, and the outer one fails because the inner one is being closed.
    """

    def __init__(
        self, outputs: AsyncGenerator[Buffer, None], read: Callable[[Buffer], Any], request_id: str | None
    ) -> None:
        self._outputs = outputs
        self._read = read
        self._request_id = request_id

    async def asend(self, _: None) -> Any:
        try:
            output = await anext(self._outputs)
        except Failure as failure:
            raise to_error(failure, self._request_id) from None
        try:
            return self._read(output)
        except CallError:
            await self.aclose()
            raise

    async def athrow(self, *exception: Any) -> Any:
        return await self._outputs.athrow(*exception)

    async def aclose(self) -> None:
        await self._outputs.aclose()


async def _joined(rows: Rows, results: AsyncStream[Any], *, has_errors: bool) -> Any:
    return rows.joined([each async for each in results], has_errors=has_errors)


def _is_done(call: asyncio.Future[Buffer] | CallError) -> bool:
    return isinstance(call, CallError) or call.done()


async def _asynchronous(inputs: Iterable[Any]) -> AsyncIterator[Any]:
    for each in inputs:
        yield each


async def _next(inputs: AsyncIterator[Any]) -> tuple[Any, bool]:
    """The next input, and whether there was one."""
    try:
        return await anext(inputs), True
    except StopAsyncIteration:
        return None, False
