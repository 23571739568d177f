"""Calls of an app in this process, for tests of code that takes a client: the same values, options and errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from callboard._auth import Request
from callboard._awaiting import in_time
from callboard._context import Context
from callboard._envelope import Buffer, decode, encode
from callboard._errors import call_error
from callboard._exceptions import InvalidInput
from callboard._options import called_name, path_parameters, split_name
from callboard.client.transport import Failure, Options, timeout_millis

if TYPE_CHECKING:
    from callboard._guard import Guard
    from callboard._instance import App
    from callboard._response import Response
    from callboard._target import Route
    from callboard.client._calls import CallsApart


# A test has its client on its own machine.
_CLIENT = "127.0.0.1"


class Outputs(list[Any]):
    """All outputs of a stream."""


class AsyncLocalTransport:
    """Runs the calls in the event loop of their tasks."""

    def __init__(self, app: App, guard: Guard | None) -> None:
        self._app = app
        self._guard = guard

    async def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> Buffer:
        found, method, value, context = await self._read(route, pieces, options)
        is_stream = found is not None and found.signature.streams
        output = None if is_stream else await self._output(route, found, method, value, context)
        if is_stream or isinstance(output, Outputs):
            raise Failure("invalid_input", f"`{route}` answers with a stream: use `replies`", status=406)
        return encode(output)

    async def replies(self, route: str, pieces: Sequence[Buffer], options: Options) -> AsyncIterator[Buffer]:
        found, method, value, context = await self._read(route, pieces, options)
        if found is None or not found.signature.streams:
            outputs = await self._output(route, found, method, value, context)
            for output in outputs if isinstance(outputs, Outputs) else [outputs]:
                yield encode(output)
            return
        try:
            async with contextlib.aclosing(self._app.outputs(value, method, context)) as steps:
                async for output in steps:
                    yield encode(output)
        except Exception as error:
            raise _failure(error) from error

    def calls(self, route: str, options: Options) -> CallsApart:
        # A worker imports this module too, and makes no calls of a client.
        from callboard.client._calls import CallsApart

        return CallsApart(functools.partial(self.call, route))

    async def aclose(self) -> None:
        """Nothing is open."""

    async def _read(
        self, route: str, pieces: Sequence[Buffer], options: Options
    ) -> tuple[Route | None, str | None, Any, Context]:
        """The route of a call, its method, its input and its context."""
        # Before all else of the request.
        caller = None if self._guard is None else await self._guard.ask(_request(route, options), options.timeout)
        # The app encodes it again.
        value = decode(b"".join(pieces), is_as_sent=True)
        try:
            found = self._app.route_at(called_name(route))
        except LookupError as error:
            raise Failure("not_found", str(error), status=404, was_started=False) from error
        if options.function:
            try:
                value = _input(route, found, **value)
            except InvalidInput as error:
                raise _failure(error) from error
        context = _context(found, route, options)
        if caller is not None:
            context.caller, context.tags = caller.name, caller.tags
        return found, (found.attribute or found.name) if found else None, value, context

    async def _output(self, called: str, found: Route | None, method: str | None, value: Any, context: Context) -> Any:
        """The output; of a pipeline that streams all `Outputs`."""
        try:
            running = self._app.call(value, method, context, as_client=True)
            # The engine of a pipeline keeps the time of its calls, and code that does not wait goes on, as on a node.
            limit = context.remaining() if found is not None and self._app.waits else None
            output = await in_time(running, limit, _late)
            if context.remaining() == 0.0:
                raise _late()
            _check_answer(called, context._response)
            return output
        except Failure:
            raise
        except Exception as error:
            raise _failure(error) from error


class LocalTransport:
    """Runs one call after the other, from any thread. `wait` gives the result of a coroutine."""

    def __init__(self, app: App, guard: Guard | None, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._inner = AsyncLocalTransport(app, guard)
        self._wait = wait
        self._lock = threading.Lock()

    def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> Buffer:
        with self._lock:
            reply: Buffer = self._wait(self._inner.call(route, pieces, options))
        return reply

    def replies(self, route: str, pieces: Sequence[Buffer], options: Options) -> Iterator[Buffer]:
        outputs: Any = self._inner.replies(route, pieces, options)
        try:
            while True:
                try:
                    with self._lock:
                        output: Buffer = self._wait(anext(outputs))
                except StopAsyncIteration:
                    return
                yield output
        finally:
            with self._lock:
                self._wait(outputs.aclose())

    def close(self) -> None:
        """Nothing is open."""


class ThreadedTransport:
    """`LocalTransport` for the ordered streams of a `Client`."""

    def __init__(self, transport: LocalTransport) -> None:
        self._transport = transport

    async def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> Buffer:
        return await asyncio.to_thread(self._transport.call, route, pieces, options)

    async def replies(self, route: str, pieces: Sequence[Buffer], options: Options) -> AsyncIterator[Buffer]:
        for output in await asyncio.to_thread(list, self._transport.replies(route, pieces, options)):
            yield output

    def calls(self, route: str, options: Options) -> CallsApart:
        # A worker imports this module too, and makes no calls of a client.
        from callboard.client._calls import CallsApart

        return CallsApart(functools.partial(self.call, route))

    async def aclose(self) -> None:
        """Nothing is open."""


def _check_answer(called: str, response: Response | None) -> None:
    """Refuses an answer that a node's client reads no output from."""
    status = None if response is None else response.status_code
    if response is not None and status is not None and 300 <= status < 400:
        # Mistakes are few, and a worker imports this module.
        from callboard.client._mistakes import redirected

        raise redirected(called_name(called), status, response.headers.get("location"))


def _late() -> Failure:
    return Failure("deadline_exceeded", "the deadline passed before the outcome was there", status=504)


def _context(route: Route | None, called: str, options: Options) -> Context:
    """The context of a call: its name and time, and the parts of the request that the route lists."""
    path = method = None
    headers, query = dict(options.headers), dict(options.query)
    if route is not None:
        method, called_path = split_name(called_name(called))
        if path_parameters(route.path) or route.reads("headers") or route.reads("query") or route.methods:
            path = called_path
        headers = {name: headers[name] for name in route.reads("headers") if name in headers}
        query = {name: query[name] for name in route.reads("query") if name in query}
    found = Context(
        request_id=options.request_id,
        route=None if route is None else route.public_name,
        traceparent=options.traceparent,
        session=None if options.session is None else zlib.crc32(options.session.encode()),
        headers=headers,
        query=query,
        path=path,
        method=method,
        client=None if path is None else _CLIENT,
        deadline=None if options.timeout is None else time.monotonic() + options.timeout,
    )
    # The call runs with a copy of the context, which shares it.
    found.response  # noqa: B018 - it is made where it is read
    return found


def _request(called: str, options: Options) -> Request:
    """The head of the request that a client sends to a node for this call, without the headers of its transport."""
    method, path = split_name(called_name(called))
    path = f"/v1/call/{called_name(called).lstrip('/')}" if options.function else path
    own = {
        "content-type": "application/vnd.callboard.envelope",
        "user-agent": "callboard-python",
        "x-callboard-method": None if options.function else method,
        "x-request-id": options.request_id,
        "x-request-timeout-ms": None if options.timeout is None else str(timeout_millis(options.timeout)),
        "x-request-priority": options.priority,
        "x-callboard-session": options.session,
        "traceparent": options.traceparent,
    }
    headers = {name: value for name, value in own.items() if value is not None}
    given: dict[str, list[str]] = {}
    query: dict[str, list[str]] = {}
    for name, value in options.headers:
        given.setdefault(name.lower(), []).append(value)
    for name, value in options.query:
        query.setdefault(name, []).append(value)
    headers |= {name: ", ".join(values) for name, values in given.items()}
    return Request("POST", quote(path, safe="/%"), query, headers, _CLIENT)


def _input(called: str, route: Route | None, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The input that these arguments are, as the node makes it of the names of the parameters."""
    if route is None:
        return args[0] if args else kwargs
    names, is_value = list(route.signature.hints), route.signature.is_value
    if len(args) == 1 and not kwargs and not is_value and isinstance(args[0], dict) and set(args[0]) <= set(names):
        return args[0]
    found = dict(zip(names, args, strict=False))
    wrong = [name for name in kwargs if name in found or name not in names]
    if wrong or len(args) > len(names):
        reason = f"argument `{wrong[0]}`" if wrong else f"{len(args)} positional arguments"
        raise InvalidInput(f"{reason}: `{called}` takes {', '.join(names)}, each once")
    found.update(kwargs)
    # A node sends `None` in the place of a default that JSON cannot say.
    return found.get(names[0], route.signature.json_defaults().get(names[0])) if is_value else found


def _failure(error: Exception) -> Failure:
    found = call_error(error)
    return Failure(
        found.kind,
        found.message,
        details=found.details,
        remote_traceback=found.remote_traceback,
        retry_after=found.retry_after,
        status=found.status_code,
        error_type=found.type,
    )
