"""`Client`: calls that block their thread."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from callboard._envelope import Buffer, Decoder, encode_pieces
from callboard._errors import forget
from callboard._exceptions import CallError
from callboard._options import called_name, positive
from callboard.client._background import Background, BackgroundCalls, Outcome
from callboard.client._base import BaseClient, CallSettings, Prepared, T, input_error
from callboard.client._rows import check_inputs, rows_of
from callboard.client._stream import LOOK_AHEAD, Bar, Window, is_raised
from callboard.client.errors import CancelledCallError, to_error
from callboard.client.streams import Stream
from callboard.client.transport import (
    AsyncTransport,
    Failure,
    Options,
    Settings,
    Transport,
    open_async_transport,
    open_transport,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Client(BaseClient):
    """Calls the routes and functions of a node. Any number of threads may share one.

        client = Client("http://localhost:8000")
        client.call("/sentiment", "good", returns=Label)
        client.send("add", 1, b=2)

    `url` is `http://host:port`, `https://host` or `quic://host:port`. Times are in seconds, or a text such as
    `"200ms"`. `timeout` is that of its calls; without one the route's holds. The first call waits up to `start_up_wait`
    for a node that is not up yet, but not for a host whose name is not known; the calls of a `stream` wait as long for
    one that went away. A call that was not started is made again up to `attempts` times, with pauses, within its time
    and a retry budget.

    `verify` may be the file of an authority's certificate, `certificate` the file of the client's own with its key, or
    both files. Failed calls raise a `CallError`: a class for each kind, in `callboard.client.errors`. A setting or
    option that is wrong raises `TypeError` or `ValueError` with its name and limits, before anything is sent.
    """

    def _open(self, settings: Settings) -> None:
        self._carry(open_transport(self.url, settings), functools.partial(open_async_transport, self.url, settings))

    def _carry(self, transport: Transport, open_asynchronous: Callable[[], AsyncTransport]) -> None:
        self._transport = transport
        # Shared with the clients from `with_options`.
        self._background = Background(open_asynchronous)

    def _is_closed(self) -> bool:
        return self._background.is_closed

    @classmethod
    def over(cls, transport: Transport, asynchronous: AsyncTransport) -> Self:
        """A client over transports that are there already, which `close` closes. `callboard.test_client` uses it."""
        client = cls.__new__(cls)
        client._set("", {})
        client._carry(transport, lambda: asynchronous)
        return client

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections, also those of clients from `with_options`. Calls in flight end.

        A call of a closed client raises `RuntimeError`.
        """
        self._background.close()
        self._transport.close()

    @overload
    def call(self, route: str, value: Any = ..., *, returns: type[T], **options: Unpack[CallSettings]) -> T: ...
    @overload
    def call(self, route: str, value: Any = ..., *, returns: Any = ..., **options: Unpack[CallSettings]) -> Any: ...

    def call(self, route: str, value: Any = None, *, returns: Any = None, **options: Unpack[CallSettings]) -> Any:
        """Calls a route and waits for its output, as plain data or as the type `returns`.

        Arrays have the dtype and the shape that the service gave, and are read-only views of the received bytes. Raises
        `CallError`: `InvalidOutputError` if the output does not fit `returns`. Raises `TypeError` for a value that has
        no form, with its place; `TypeError` or `ValueError` for a route or option that is wrong; `RuntimeError` after
        `close`.
        """
        return self.call_prepared(Prepared.call(route, value), returns=returns, **options)

    def send(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a route with positional and keyword values: all arguments are those of its code.

        `name` is the route without its first slash: `"add"` for `/add`, `"public/login"` for `/public/login`, whatever
        the function is called. For options see `with_options`.

        Raises as `call`.
        """
        return self.call_prepared(Prepared.send(name, *args, **kwargs))

    def call_prepared(self, prepared: Prepared, *, returns: Any = None, **options: Unpack[CallSettings]) -> Any:
        """Makes a call that was encoded before: see `prepare`. Raises as `call`."""
        checked, hint = self._options(options, function=prepared.is_function), self._hint(returns)
        try:
            reply = self._transport.call(prepared.route, prepared.pieces, checked)
        except Failure as failure:
            raise to_error(failure, checked.request_id) from None
        return self._read(reply, self._decoder(hint), hint, prepared.route, checked)

    def _answer_in_time(self, prepared: Prepared, timeout: float) -> Buffer:
        """The envelope of an answer, which takes no longer than this, also if its bytes come one by one.

        For the evaluation relay, which does not trust the server to end its answer. The timeout of a blocking socket is
        that of each read, so it does not bound the whole answer.
        """
        options = self._options({"timeout": timeout}, function=prepared.is_function)
        call = self._background.call(prepared.route, prepared.pieces, options)
        try:
            return call.result()
        except Failure as failure:
            raise to_error(failure, options.request_id) from None
        finally:
            call.cancel()

    def replies(
        self, route: str, value: Any = None, *, returns: Any = None, **options: Unpack[CallSettings]
    ) -> Stream[Any]:
        """Calls a streaming route and yields its outputs one by one. To close the stream cancels the call.

        A route that does not stream yields its one output. The call begins with the first `next`. Raises as `call`; a
        stream that was cut is an `UnavailableError` after the outputs that came.
        """
        prepared = Prepared.call(route, value)
        options_of_call = self._options(options, function=prepared.is_function)
        return Stream(self._replies(prepared, self._hint(returns), options_of_call))

    def _replies(self, prepared: Prepared, hint: Any, options: Options) -> Generator[Any, None, None]:
        with contextlib.closing(self._transport.replies(prepared.route, prepared.pieces, options)) as outputs:  # type: ignore[type-var]
            decoder = self._decoder(hint)
            try:
                for output in outputs:
                    yield self._read(output, decoder, hint, prepared.route, options)
            except Failure as failure:
                raise to_error(failure, options.request_id) from None

    def stream(
        self,
        route: str,
        inputs: Iterable[Any],
        *,
        returns: Any = None,
        look_ahead: int = LOOK_AHEAD,
        stop_at_error: bool = False,
        with_inputs: bool = False,
        progress: bool = False,
        **options: Unpack[CallSettings],
    ) -> Stream[Any]:
        """Calls a route with every input, up to `look_ahead` at the same time, and yields the results in order.

        A failed call is its `CallError`, in its place; with `stop_at_error` it is raised. `timeout` is the time for one
        result once all earlier ones are there, 30 s by default; calls wait for room within it, and up to the client's
        `start_up_wait` for a node that went away. To close the stream, or to leave its loop, cancels all calls in
        flight. `with_inputs` yields pairs of input and result. An input that has no form is an `InvalidInputError` in
        its place. `progress` shows a bar of `tqdm` on standard error, or without it a line.
        """
        check_inputs(inputs)
        given = dict(options)
        window = Window(look_ahead, given.pop("timeout", self._defaults.get("timeout")))  # type: ignore[arg-type]
        shared = self._options(given, timeout=window.timeout, is_of_stream=True)
        hint = self._hint(returns)
        # For another thread than the one in the stream.
        ends = contextlib.ExitStack()
        path = called_name(route)
        made = self._stream(path, inputs, hint, window, stop_at_error, with_inputs, progress, shared, ends)
        return Stream(made, leave=ends.close)

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
        """Calls a route with every input or every row, by `stream`: up to `in_flight` at the same time, in order.

        An iterable gives a `Stream` of the results, which holds no more than what is in flight. With `errors="return"`
        a failed call is its `CallError` in its place; with `"raise"` the first one is raised. `idempotent=True` makes
        calls again that a node took along when it went away.

        A frame or column of pandas, polars or pyarrow gives one of the same library, with the index of pandas, once all
        results are there. Each row of a frame is a call with a record, and each value of a column one with that value.
        Outputs that are records are columns of the frame, others its column `output`. Errors are texts in a column
        `call_error`; in a column they are the `CallError`s, and one of pyarrow, which cannot have them, gives a table.
        """
        rows = rows_of(inputs)
        stops = is_raised(errors)
        given: Any = {"returns": returns, "look_ahead": positive("in_flight", in_flight), "progress": progress}
        results = self.stream(route, inputs if rows is None else rows, stop_at_error=stops, **given, **options)
        return results if rows is None else rows.joined(list(results), has_errors=not stops)

    def _stream(
        self,
        route: str,
        inputs: Iterable[Any],
        hint: Any,
        window: Window,
        stop_at_error: bool,
        with_inputs: bool,
        progress: bool,
        shared: Options,
        ends: contextlib.ExitStack,
    ) -> Generator[Any, None, None]:
        bar = Bar(inputs, progress, route)
        pending: deque[tuple[Any, Outcome | CallError, Options]] = deque()
        remaining, has_more = iter(inputs), True
        calls, decoder = self._background.calls(route, shared), self._decoder(hint)
        ends.callback(calls.close)
        try:
            while True:
                # One at least for each result, so that the window stays full; more while there is nothing to hand over.
                while has_more and len(pending) < window.look_ahead:
                    try:
                        value = next(remaining)
                    except StopIteration:
                        has_more = False
                        calls.finish()
                        break
                    self._check_open()
                    options = window.options(shared, len(pending))
                    call = self._begin(calls, value, options)
                    pending.append((value if with_inputs else None, call, options))
                    first = pending[0][1]
                    if isinstance(first, CallError) or first.done():
                        break
                if not pending:
                    return
                value, call, options = pending.popleft()
                result = self._result(call, decoder, hint, route, window, options)
                if stop_at_error and isinstance(result, CallError):
                    try:
                        raise result
                    finally:
                        del result
                bar.step(result)
                yield (value, result) if with_inputs else result
        finally:
            bar.close()
            for _, call, _ in pending:
                if not isinstance(call, CallError):
                    call.cancel()
            ends.close()

    def _begin(self, calls: BackgroundCalls, value: Any, options: Options) -> Outcome | CallError:
        try:
            pieces = encode_pieces(value)
        except TypeError as error:
            return input_error(error)
        return calls.begin(pieces, options)

    def _result(
        self, call: Outcome | CallError, decoder: Decoder, hint: Any, route: str, window: Window, options: Options
    ) -> Any:
        """The output of one call, or its error."""
        if isinstance(call, CallError):
            return call
        try:
            if not call.wait(window.timeout):
                return window.late(options)
            if call.cancelled():
                return CancelledCallError("the client was closed", kind="cancelled", request_id=options.request_id)
            # It is not raised: a frame that has its own error is a cycle, which keeps the input of the call.
            failed = call.exception()
            if isinstance(failed, Failure):
                return to_error(failed.alone(), options.request_id)
            if failed is not None:
                raise failed
            return self._read(call.result(), decoder, hint, route, options)
        except CallError as error:
            # Its frames refer to those of the stream, which have it too.
            forget(error)
            return error
        finally:
            call.cancel()
