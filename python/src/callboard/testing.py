"""Runs a service or pipeline in this process, for tests: no node, no socket, the same conversions as in a worker."""

from __future__ import annotations

import asyncio
import copy
import inspect
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, NoReturn, Protocol
from urllib.parse import quote, unquote

from callboard._api import SERVICE
from callboard._auth import AUTH_ROUTE, Caller
from callboard._awaiting import finish, settled, wait
from callboard._compose import NodeStage, Step, walk
from callboard._context import Context, SetupContext
from callboard._conversion import convert
from callboard._envelope import Buffer, Decoder, encode
from callboard._errors import let_go
from callboard._exceptions import InvalidInput
from callboard._hooks import NodeHooks, Preparation, clean_up
from callboard._local import LOCAL, run_here
from callboard._options import split_name
from callboard._response import SENT, Response, begun
from callboard._runner import Failure, Runner, setup_arguments
from callboard._target import Route, TargetError, find_route, main_route, methods_at, routes_of
from callboard.client import AsyncClient, Client
from callboard.client.local import AsyncLocalTransport, LocalTransport, ThreadedTransport
from callboard.metrics import REGISTRY


def test_client(app: Any, *others: NoReturn, **settings: Any) -> TestClient:
    """Runs a class, a function or a pipeline in this process, for tests: no node, no socket, the same conversions.

        with cb.test_client(Sentiment) as client:
            assert client.call("good") == 1.0

        async with cb.test_client(Chat) as client:
            assert await client.call("hi") == ["hello"]

    `with` runs the `on_start` functions of the app's module, `prepare` and `setup`, and at its end `cleanup` and the
    `on_stop` functions. It may be used in an event loop that runs, such as that
    of a notebook: its asynchronous code runs in another thread, for which the loop waits. With `async with` that code
    runs in the loop of the test, and the methods of the client are awaited.

    The settings are those of a stage in the configuration file, which `setup` gets by name, such as `device="cuda:0"`;
    `cache` is the directory for `prepare`.

    A pipeline runs by the engine of a node, so that its ensembles, switches, bounds and errors are those of a node. The
    engine is in the extension, which wheels have.

    Raises `TargetError` for anything that cannot be served, for a pipeline without the extension, and for one with a
    step that only a node runs, such as `onnx`; whatever `setup` raises.
    """
    # A worker imports this module, too.
    from callboard._mistakes import check_app

    check_app(app, others)
    owners = [part for part in walk(app) if not isinstance(part, Step)] if isinstance(app, Step) else [app]
    modules = [sys.modules[each.__module__] for each in owners if each.__module__ in sys.modules]
    if isinstance(app, Step):
        return TestClient(_steps(app, settings), NodeHooks(modules))
    is_keyed = getattr(getattr(app, SERVICE, None), "keyed", None) is not None
    found = _KeyedInstance(app, settings) if is_keyed else _Instance(app, settings)
    return TestClient(found, NodeHooks(modules))


# Not a test, whatever its name says to a collector of tests.
test_client.__test__ = False  # type: ignore[attr-defined]


class TestClient:
    """The result of `test_client`. It holds one instance, from its `setup` to its `cleanup`."""

    __test__ = False

    def __init__(self, app: App, hooks: NodeHooks) -> None:
        self._app = app
        self._hooks = hooks
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> TestClient:
        REGISTRY.reset()
        try:
            self._wait(self._open(), self._hooks.wait)
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait(self._app.close())
            LOCAL.close()
        finally:
            try:
                self._wait(self._hooks.run(self._hooks.stop), self._hooks.wait)
            finally:
                self._loop.close()

    async def __aenter__(self) -> AsyncTestClient:
        self._loop.close()
        REGISTRY.reset()
        await self._open()
        return AsyncTestClient(self._app)

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._app.close()
            LOCAL.close()
        finally:
            await self._hooks.run(self._hooks.stop)

    async def _open(self) -> None:
        await self._hooks.run(self._hooks.start)
        await self._app.open()

    def client(self) -> Client:
        """A `Client` whose calls run here, for code that takes one: `client.call("/sentiment", "good")`."""
        transport = LocalTransport(self._app, self._wait)
        return Client.over(transport, ThreadedTransport(transport))

    def call(
        self,
        value: Any = None,
        *more: NoReturn,
        method: str | None = None,
        context: Context | None = None,
        key: str | None = None,
        **options: NoReturn,
    ) -> Any:
        """One call, and its output as plain data; for a streaming route the list of its outputs.

        `method` is the name of a method with `@route`, by default `predict` or the only one; `context` is what the code
        gets as its `Context`, whose `response` has the status and headers of the answer afterwards; `key` is that of a
        keyed class. A call with a path, headers or a query is `client().call("GET /items/7", query={"page": 2})`.
        Raises what the code raises, `InvalidInput` for an input that does not fit the hints, and `TargetError` for a
        method that is no route.
        """
        if more or options:
            _refuse(more, options)
        return self._wait(self._app.call(value, method, _with_key(_read_back(context), key)))

    def batch(self, values: list[Any], *, method: str | None = None) -> list[Any]:
        """Many calls, and their outputs in order. A failed item is its exception, in its place.

        A service or function runs them as one batch; a pipeline has up to 64 of them open, which its engine batches.
        """
        return self._wait(self._app.batch(values, method))  # type: ignore[no-any-return]

    def metrics(self) -> dict[str, float]:
        """What the code has counted by `cb.metric` since the client was opened.

        The names, such as `tokens_total{model="x"}`, are those of the page `/metrics`, without the labels that a node
        adds. A histogram has its `_count` and its `_sum`.
        """
        return dict(REGISTRY.values())

    def _wait(self, coroutine: Coroutine[Any, Any, Any], hooks_wait: bool = False) -> Any:
        if self._app.waits or hooks_wait:
            return wait(self._loop.run_until_complete, coroutine)
        # A test of synchronous code may run an event loop of its own.
        return finish(coroutine)


class AsyncTestClient:
    """The result of `async with test_client(app)`: a client for the event loop of a test."""

    def __init__(self, app: App) -> None:
        self._app = app

    def client(self) -> AsyncClient:
        """As `TestClient.client`."""
        return AsyncClient.over(AsyncLocalTransport(self._app))

    async def call(
        self,
        value: Any = None,
        *more: NoReturn,
        method: str | None = None,
        context: Context | None = None,
        key: str | None = None,
        **options: NoReturn,
    ) -> Any:
        """As `TestClient.call`."""
        if more or options:
            _refuse(more, options)
        return await self._app.call(value, method, _with_key(_read_back(context), key))

    async def batch(self, values: list[Any], *, method: str | None = None) -> list[Any]:
        """As `TestClient.batch`."""
        return await self._app.batch(values, method)

    def metrics(self) -> dict[str, float]:
        """As `TestClient.metrics`."""
        return dict(REGISTRY.values())


def _refuse(more: tuple[Any, ...], options: dict[str, Any]) -> NoReturn:
    from callboard._mistakes import wrong_call

    raise wrong_call(more, options)


def _read_back(context: Context | None) -> Context | None:
    """The context of a call. Its test reads there what the code has chosen of the answer: copies of it share that."""
    if context is not None:
        context._response = Response()
    return context


def _with_key(context: Context | None, key: str | None) -> Context | None:
    """The context of a call of a keyed class, whose key is the last segment of a path until the route is known."""
    if key is None:
        return context
    context = context or Context()
    context.path = f"{_KEY}{quote(key, safe='')}"
    return context


# No route begins so.
_KEY = "@key/"


def _steps(app: Step, settings: dict[str, Any]) -> App:
    from callboard._engine import Steps

    for part in walk(app):
        if isinstance(part, NodeStage):
            raise TargetError(f"{part} is run by the node: serve the app, or test the steps in Python one by one")
    owners = dict.fromkeys(part for part in walk(app) if not isinstance(part, Step))
    return Steps(app, {owner: _Instance(owner, settings) for owner in owners})


# ---- The app in this process -----------------------------------------------------------------------------------------


class App(Protocol):
    """The app under test: one service or function, or the steps of a pipeline."""

    # Whether its code is asynchronous. Else its coroutines never wait.
    waits: bool

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def route_at(self, name: str) -> Route | None:
        """The route of this name or path; None where every path is the app. Raises `LookupError`, and the `Failure` of
        a transport for another method than those of the path."""

    async def call(self, value: Any, method: str | None, context: Context | None, *, as_client: bool = False) -> Any:
        """Raises what the code raises; for a client the `Failure` of a transport."""

    async def batch(self, values: list[Any], method: str | None) -> list[Any]: ...

    def outputs(self, value: Any, method: str | None, context: Context) -> AsyncGenerator[Any, None]:
        """The outputs of a streaming route that `route_at` has found, as they are asked for."""


class _Instance:
    """One service or function."""

    def __init__(self, app: Any, settings: dict[str, Any]) -> None:
        name = getattr(app, "__name__", str(app))
        self._routes = {route.attribute or route.name: route for route in routes_of(app, name)}
        main = next(iter(self._routes.values()))
        self._instance = main.instance()
        self._preparation = Preparation(main.owner, settings.get("cache"))
        device = str(settings.get("device") or "cpu")
        self._context = SetupContext(stage=name, device=device, settings=settings, cache=self._preparation.place)
        self._decoder = Decoder()
        hooks = [getattr(self._instance, hook, None) for hook in ("setup", "cleanup")]
        is_async = any(route.signature.is_async for route in self._routes.values())
        self.waits = is_async or any(map(inspect.iscoroutinefunction, hooks))

    async def open(self) -> None:
        self._preparation.run(self._instance)
        setup = getattr(self._instance, "setup", None)
        if setup is not None:
            await settled(setup(**setup_arguments(setup, self._context)))

    async def close(self) -> None:
        await settled(clean_up(self._instance, None))

    def route_at(self, name: str) -> Route | None:
        found = find_route(self._routes.values(), name)
        if found is None:
            allowed = methods_at(self._routes.values(), name)
            if allowed:
                from callboard.client._mistakes import not_allowed

                raise not_allowed(split_name(name)[0] or "POST", allowed)
            raise LookupError(f"there is no route `{name}`")
        return found

    async def call(self, value: Any, method: str | None, context: Context | None, *, as_client: bool = False) -> Any:
        ((outputs, failure),) = await self._run([value], method, context)
        route = self._route(method)
        if failure is not None:
            if not as_client and isinstance(failure.error, InvalidInput):
                from callboard._mistakes import hint_at_request

                hint_at_request(route, value, failure.error)
            try:
                raise let_go(failure.error)
            finally:
                # A frame that has its own error is a cycle.
                del failure
        if route.path == AUTH_ROUTE and not as_client:
            return _caller(outputs[0])
        return outputs if route.signature.streams else outputs[0]

    async def batch(self, values: list[Any], method: str | None) -> list[Any]:
        outcomes = await self._run(values, method, None)
        streams = self._route(method).signature.streams
        try:
            return [
                let_go(failure.error) if failure else outputs if streams else outputs[0]
                for outputs, failure in outcomes
            ]
        finally:
            # A frame that has its own errors is a cycle.
            outcomes.clear()

    def outputs(self, value: Any, method: str | None, context: Context) -> AsyncGenerator[Any, None]:
        runner = Runner(self._route(method), self._instance)
        item = self._decoded(encode(value), is_as_sent=runner.signature.takes_frames_as_sent)
        return LOCAL.steps(runner.name, runner, [item], context)

    @property
    def _default(self) -> Route:
        """The route of a call without a method."""
        try:
            return self.main
        except TargetError:
            from callboard._mistakes import no_default

            raise no_default(self._context.stage, list(self._routes)) from None

    @property
    def main(self) -> Route:
        """The route that a step means."""
        return main_route(list(self._routes.values()), self._context.stage)

    def _route(self, method: str | None) -> Route:
        if method is None:
            return self._default
        if method not in self._routes:
            raise TargetError(f"there is no route {method!r}: there are {', '.join(self._routes)}")
        return self._routes[method]

    async def _run(
        self, values: list[Any], method: str | None, context: Context | None
    ) -> list[tuple[list[Any], Failure | None]]:
        """As `run`, for values."""
        contexts = [copy.copy(context) if context else Context() for _ in values]
        outcomes = await self.run(list(map(encode, values)), method, contexts)
        return [(list(map(self._decoded, outputs)), failure) for outputs, failure in outcomes]

    async def run(
        self, items: list[bytes], method: str | None, contexts: list[Context]
    ) -> list[tuple[list[bytes], Failure | None]]:
        """For each item its outputs, as the other side sees them, and what ended it."""
        route = self._route(method)
        runner, declared = Runner(route, self._instance), route.response
        is_as_sent = runner.signature.takes_frames_as_sent
        outputs: list[list[bytes]] = [[] for _ in items]

        def emit(index: int, output: Any) -> None:
            context = contexts[index]
            outputs[index].append(b"".join(runner.encoded(output, context)))
            if context._response is not None and context._response is not SENT and declared is not None:
                context._response._complete(declared, has_output=output is not None)
            begun(context)

        def outcome(index: int, found: Any) -> Failure | None:
            if isinstance(found, Failure):
                return found
            try:
                if not runner.signature.streams:
                    emit(index, found)
            except (TypeError, ValueError) as error:
                return Failure(error)
            return None

        inputs = [self._decoded(item, is_as_sent=is_as_sent) for item in items]
        found = await run_here(runner, inputs, contexts, emit)
        return [(outputs[index], outcome(index, each)) for index, each in enumerate(found)]

    def _decoded(self, envelope: Buffer, *, is_as_sent: bool = True) -> Any:
        self._decoder.is_as_sent = is_as_sent
        return self._decoder.decode(envelope)


def _caller(output: Any) -> Caller:
    """The caller that a function with `@auth` has named."""
    try:
        return convert(output, Caller)  # type: ignore[no-any-return]
    except InvalidInput as error:
        raise TypeError(f"a function with @auth returns a cb.Caller: {error}") from None


class _KeyedInstance(_Instance):
    """A keyed class, with the states of its keys in memory."""

    def __init__(self, app: Any, settings: dict[str, Any]) -> None:
        super().__init__(app, settings)
        self._instance.context = self._context
        self._states: dict[str, bytes] = {}
        # The calls of a key run one after another.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def open(self) -> None:
        """`setup` runs for each object."""

    async def close(self) -> None:
        """Objects are dropped without notice."""

    async def run(
        self, items: list[bytes], method: str | None, contexts: list[Context]
    ) -> list[tuple[list[bytes], Failure | None]]:
        route = self._route(method)
        runner = Runner(route.computed(), self._instance)
        return [await self._call(route, runner, *each) for each in zip(items, contexts, strict=True)]

    async def _call(
        self, route: Route, runner: Runner, item: bytes, context: Context
    ) -> tuple[list[bytes], Failure | None]:
        key = _key_of(route, context)
        if key is None:
            raise TargetError(f"`{route.name}` needs a key: client.call(…, method={route.attribute!r}, key='ann')")
        async with self._locks[key]:
            call = {"key": key, "state": self._states.get(key), "input": item}
            (found,) = await run_here(runner, [call], [context], lambda index, output: None)
            if isinstance(found, Failure):
                return [], found
            if found.get("forgotten"):
                self._states.pop(key, None)
            if found["state"] is not None:
                self._states[key] = found["state"]
            return [found["output"]], None


def _key_of(route: Route, context: Context) -> str | None:
    """The key of a call. Its path becomes that of the route."""
    path = context.path or ""
    if path.startswith(_KEY):
        given = path.removeprefix(_KEY)
        context.path = route.path.replace("{key}", given)
        return unquote(given)
    place = route.path.split("/").index("{key}") - len(route.path.split("/"))
    segments = path.split("/")
    return unquote(segments[place]) if len(segments) >= -place and segments[place] else None
