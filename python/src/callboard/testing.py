"""Runs a service or pipeline in this process, for tests: no node, no socket, the same conversions as in a worker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from callboard._api import SERVICE
from callboard._awaiting import finish, wait
from callboard._compose import NodeStage, Step, walk
from callboard._context import Context
from callboard._hooks import NodeHooks
from callboard._local import LOCAL
from callboard._response import Response
from callboard._target import TargetError
from callboard.client import AsyncClient, Client
from callboard.client.local import AsyncLocalTransport, LocalTransport, ThreadedTransport
from callboard.metrics import REGISTRY

if TYPE_CHECKING:
    from callboard._guard import Guard
    from callboard._instance import App


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

    Raises `TargetError` for anything that cannot be served, for a pipeline without the extension or with a step that
    only a node runs, such as `onnx`, and for several functions with `@auth` in the module of the app; whatever `setup`
    raises.
    """
    # A worker imports this module, too.
    from callboard._guard import guard_of
    from callboard._instance import Instance, KeyedInstance
    from callboard._mistakes import check_app

    check_app(app, others)
    owners = [part for part in walk(app) if not isinstance(part, Step)] if isinstance(app, Step) else [app]
    modules = [sys.modules[each.__module__] for each in owners if each.__module__ in sys.modules]
    if isinstance(app, Step):
        return TestClient(_steps(app, settings), NodeHooks(modules), guard_of(modules, app))
    is_keyed = getattr(getattr(app, SERVICE, None), "keyed", None) is not None
    found = KeyedInstance(app, settings) if is_keyed else Instance(app, settings)
    return TestClient(found, NodeHooks(modules), guard_of(modules, app))


# Not a test, whatever its name says to a collector of tests.
test_client.__test__ = False  # type: ignore[attr-defined]


class TestClient:
    """The result of `test_client`. It holds one instance, from its `setup` to its `cleanup`."""

    __test__ = False

    def __init__(self, app: App, hooks: NodeHooks, guard: Guard | None) -> None:
        self._app = app
        self._hooks = hooks
        self._guard = guard
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
        return AsyncTestClient(self._app, self._guard)

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
        """A `Client` whose calls run here, for code that takes one: `client.call("/sentiment", "good")`.

        The one function with `@auth` in the module of the app is asked about each of them, as a node asks it.
        """
        transport = LocalTransport(self._app, self._guard, self._wait)
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

        `method` is the name of a method with `@route`, by default `predict` or the only one; `key` is that of a
        keyed class. `context` is the `Context` of the code. Its `response` has the status and headers afterwards. No
        function with `@auth` is asked about its `caller`.

        A call with a path, headers or a query is `client().call("GET /items/7", query={"page": 2})`.
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
        if self._app.waits or hooks_wait or (self._guard is not None and self._guard.waits):
            return wait(self._loop.run_until_complete, coroutine)
        # A test of synchronous code may run an event loop of its own.
        return finish(coroutine)


class AsyncTestClient:
    """The result of `async with test_client(app)`: a client for the event loop of a test."""

    def __init__(self, app: App, guard: Guard | None) -> None:
        self._app = app
        self._guard = guard

    def client(self) -> AsyncClient:
        """As `TestClient.client`."""
        return AsyncClient.over(AsyncLocalTransport(self._app, self._guard))

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
    from callboard._instance import KEY

    context.path = f"{KEY}{quote(key, safe='')}"
    return context


def _steps(app: Step, settings: dict[str, Any]) -> App:
    from callboard._engine import Steps
    from callboard._instance import Instance

    for part in walk(app):
        if isinstance(part, NodeStage):
            raise TargetError(f"{part} is run by the node: serve the app, or test the steps in Python one by one")
    owners = dict.fromkeys(part for part in walk(app) if not isinstance(part, Step))
    return Steps(app, {owner: Instance(owner, settings) for owner in owners})
