"""A service, function or keyed class in this process, as a test calls it: one instance, the conversions of a worker."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Any, Protocol
from urllib.parse import unquote

from callboard._auth import AUTH_ROUTE, Caller
from callboard._awaiting import settled
from callboard._context import Context, SetupContext
from callboard._conversion import convert
from callboard._envelope import Buffer, Decoder, encode
from callboard._errors import let_go
from callboard._exceptions import InvalidInput
from callboard._hooks import Preparation, clean_up
from callboard._local import LOCAL, run_here
from callboard._options import split_name
from callboard._response import begun
from callboard._runner import Failure, Runner, setup_arguments
from callboard._target import Route, TargetError, find_route, main_route, methods_at, routes_of

# Where the key of a call of a keyed class is until its route is known. No route begins so.
KEY = "@key/"


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


class Instance:
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
        for each in contexts:
            each.route = each.route or self._route(method).public_name
        outcomes = await self.run(list(map(encode, values)), method, contexts)
        found = [(list(map(self._decoded, outputs)), failure) for outputs, failure in outcomes]
        if context is not None and context._response is not None:
            for outputs, _ in found:
                context._response._end(self._route(method).response, outputs)
        return found

    async def run(
        self, items: list[bytes], method: str | None, contexts: list[Context]
    ) -> list[tuple[list[bytes], Failure | None]]:
        """For each item its outputs, as the other side sees them, and what ended it."""
        route = self._route(method)
        runner = Runner(route, self._instance)
        is_as_sent = runner.signature.takes_frames_as_sent
        outputs: list[list[bytes]] = [[] for _ in items]

        def emit(index: int, output: Any) -> None:
            context = contexts[index]
            outputs[index].append(b"".join(runner.encoded(output, context)))
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


class KeyedInstance(Instance):
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
    if path.startswith(KEY):
        given = path.removeprefix(KEY)
        context.path = route.path.replace("{key}", given)
        return unquote(given)
    place = route.path.split("/").index("{key}") - len(route.path.split("/"))
    segments = path.split("/")
    return unquote(segments[place]) if len(segments) >= -place and segments[place] else None
