"""Calls of other routes from a service: `embed = depends(Embedder)`, then `self.embed.predict(text)`.

In a worker a call goes to the node that started it, which knows the deadline, trace and caller of the call that makes
it. Anywhere else, in tests and notebooks, the class runs in this process.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from callboard._after import run_now
from callboard._awaiting import finish, in_loop, settled, wait
from callboard._context import Context, SetupContext
from callboard._conversion import convert, unreadable_output
from callboard._current import CURRENT
from callboard._envelope import Buffer, Decoder, encode_pieces
from callboard._errors import error_map, error_of, let_go
from callboard._exceptions import CallError, InvalidInput
from callboard._options import nearest_name, path_parameters, route_path
from callboard._runner import Emit, Failure, Runner, setup_arguments
from callboard._said import said
from callboard._schema import schema
from callboard._target import Route, TargetError, main_route, routes_of

# The calls of one `map` that are open at the same time. A node allows 256 for each call.
MAP_CALLS = 64


class Calls(Protocol):
    """Makes the calls: a worker's socket, or this process."""

    def is_async(self) -> bool:
        """Whether the code that asks awaits its calls."""

    def call(self, path: str, route: Route | None, value: Any) -> Any: ...

    def map(self, path: str, route: Route | None, values: Iterable[Any]) -> list[Any]: ...

    async def call_async(self, path: str, route: Route | None, value: Any) -> Any: ...


class Depends:
    """A dependency, as an attribute of a class. An instance may have another object in its place, for a test."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self._owner: Any = None

    def __set_name__(self, owner: Any, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._handle

    @functools.cached_property
    def _handle(self) -> Handle:
        if isinstance(self.target, str):
            path = str(self.target)
            return Handle(path, {"predict": Method(path, None, self._owner)}, "predict")
        routes = routes_of(self.target, self.target.__name__)
        main = main_route(routes, self.target.__name__)
        methods = {route.attribute or "predict": Method(route.path, route, self._owner) for route in routes}
        return Handle(self.target.__name__, methods, main.attribute or "predict")


def depends(target: Any, /) -> Any:
    """A service or function that this class calls, or the route of one: `depends(Embedder)`, `depends("/embedder")`.

    With `embed = depends(Embedder)` in the class, `self.embed.predict(text)` is one call of its route with one item,
    also where `predict` is batched. It gives the output with the type of its hint; in async code it is awaited.
    `self.embed.predict.map(texts)` makes up to 64 calls at the same time, and gives the list of their outputs.

    A failed call raises `CallError`. `depends` itself raises `TypeError` for anything but a class, a function or a
    path, and `ValueError` for a path that is wrong.
    """
    if isinstance(target, str):
        return Depends(route_path(target))
    if isinstance(target, type) or inspect.isfunction(target):
        return Depends(target)
    raise TypeError(f"depends takes a service, a function or a route such as '/embedder', not {target!r}")


def depends_of(owner: Any) -> list[tuple[str, Depends]]:
    """The dependencies of a class, by attribute."""
    if not isinstance(owner, type):
        return []
    found = [(name, inspect.getattr_static(owner, name)) for name in dir(owner)]
    return [(name, each) for name, each in found if isinstance(each, Depends)]


class Handle:
    """A dependency, with the methods of its class. To call it is to call its `predict`."""

    def __init__(self, name: str, methods: dict[str, Method], main: str) -> None:
        self._name = name
        self._methods = methods
        self._main = main

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._methods[self._main](*args, **kwargs)

    def map(self, values: Iterable[Any]) -> Any:
        """As `map` of its `predict`."""
        return self._methods[self._main].map(values)

    def __getattr__(self, name: str) -> Method:
        if name in self._methods:
            return self._methods[name]
        near = nearest_name(name, self._methods)
        hint = f": did you mean {near!r}?" if near else f": there is {', '.join(self._methods)}"
        raise AttributeError(f"{self._name} has no route {name!r}{hint}")


class Method:
    """One route that is called."""

    def __init__(self, path: str, route: Route | None, owner: Any) -> None:
        self._path = path
        self._route = route
        self._owner = owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = self._input(args, kwargs)
        calls, route = self._calls(), self._resolved()
        if calls.is_async():
            return self._await(calls.call_async(self._path, route, value))
        return self._output(calls.call(self._path, route, value))

    def map(self, values: Iterable[Any]) -> Any:
        """The outputs of many calls, in order. The first error is raised."""
        calls, route = self._calls(), self._resolved()
        if calls.is_async():
            return self._gather(calls, route, values)
        return [self._output(output) for output in calls.map(self._path, route, values)]

    async def _gather(self, calls: Calls, route: Route | None, values: Iterable[Any]) -> list[Any]:
        room = asyncio.Semaphore(MAP_CALLS)

        async def one(value: Any) -> Any:
            async with room:
                return await self._await(calls.call_async(self._path, route, value))

        tasks = [asyncio.ensure_future(one(value)) for value in values]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _await(self, call: Any) -> Any:
        return self._output(await call)

    def _calls(self) -> Calls:
        return current or LOCAL

    def _resolved(self) -> Route | None:
        """The route, if its code is known. In this process a path is looked up in the file of its caller."""
        if self._route is None and current is None:
            return _find(self._path, self._owner)
        return self._route

    def _input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments of one call as its input."""
        if self._route is None:
            if len(args) > 1 or (args and kwargs):
                raise TypeError(f"{self._path} takes one value, or the fields of an object by name")
            return args[0] if args else kwargs or None
        signature = self._route.signature
        if path_parameters(self._path):
            raise TypeError(f"{self._path} has a parameter in its path: call it by a `Client`, or give it a plain path")
        if signature.streams:
            raise TypeError(f"{signature.where} answers with a stream, and a call has one output")
        names = list(signature.hints)
        found = dict(zip(names, args, strict=False))
        wrong = [name for name in kwargs if name not in names or name in found]
        if len(args) > len(names) or wrong:
            raise TypeError(f"{signature.where} takes {', '.join(names) or 'nothing'}, each once")
        found.update(kwargs)
        missing = [name for name in names if name not in found and name not in signature.defaults]
        if missing:
            raise TypeError(f"{signature.where}: `{missing[0]}` is missing")
        return found if len(names) != 1 else found.get(names[0], signature.defaults.get(names[0]))

    def _output(self, value: Any) -> Any:
        """The output as the type of the hint. The caller of this service is not to blame for another one."""
        if self._hint is Any:
            return value
        try:
            return convert(value, self._hint)
        except InvalidInput as error:
            message, details = unreadable_output(self._path, self._hint, error)
            raise CallError(message, kind="internal", details=details) from error

    @functools.cached_property
    def _hint(self) -> Any:
        if self._route is None or self._route.signature.output is type(None):
            return Any
        try:
            schema(self._route.signature.output)
        except TypeError:
            return Any
        return self._route.signature.output


# ---- In this process -------------------------------------------------------------------------------------------------


def _find(path: str, owner: Any) -> Route:
    module = sys.modules.get(getattr(owner, "__module__", ""))
    for value in vars(module).values() if module else ():
        if "__callboard_service__" in getattr(value, "__dict__", {}):
            for route in routes_of(value, value.__name__):
                if route.path == path:
                    return route
    raise TargetError(f"{path} is no route of this file, and only a node knows others: put a stand-in in its place")


class Local:
    """Dependencies in this process: one instance of each class, from its first call on."""

    def __init__(self) -> None:
        self._instances: dict[int, Any] = {}
        self._decoder = Decoder()
        self._loop: asyncio.AbstractEventLoop | None = None

    def is_async(self) -> bool:
        return in_loop() and not _RUNS_SYNC.get()

    def call(self, path: str, route: Route | None, value: Any) -> Any:
        if route is None or not (route.signature.is_async or _has_async_setup(route.owner)):
            return finish(self.call_async(path, route, value))
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return wait(self._loop.run_until_complete, self.call_async(path, route, value))

    def map(self, path: str, route: Route | None, values: Iterable[Any]) -> list[Any]:
        return [self.call(path, route, value) for value in values]

    async def call_async(self, path: str, route: Route | None, value: Any) -> Any:
        if route is None:
            raise TargetError(f"{path}: only a node knows it")
        instance = self._instances.get(id(route.owner))
        if id(route.owner) not in self._instances:
            instance = route.instance()
            setup = getattr(instance, "setup", None)
            if setup is not None:
                await settled(setup(**setup_arguments(setup, SetupContext(stage=route.stage))))
            self._instances[id(route.owner)] = instance
        inputs = [self._sent(value, is_as_sent=route.signature.takes_frames_as_sent)]
        runner, contexts = Runner(route, instance), [_inner_context(route)]
        (outcome,) = await run_here(runner, inputs, contexts, _no_stream)
        if isinstance(outcome, Failure):
            try:
                raise call_error(outcome.error) from let_go(outcome.error)
            finally:
                # A frame that has its own error is a cycle.
                del outcome
        try:
            return self._decoded(runner.encoded(outcome, contexts[0]))
        except (TypeError, ValueError) as error:
            raise CallError(f"the output of {runner.name}: {said(error)}") from error

    def close(self) -> None:
        """Cleans up all instances."""
        instances, self._instances = self._instances, {}
        loop, self._loop = self._loop or asyncio.new_event_loop(), None
        try:
            for instance in instances.values():
                if hasattr(instance, "cleanup"):
                    wait(loop.run_until_complete, settled(instance.cleanup()))
        finally:
            loop.close()

    def _sent(self, value: Any, *, is_as_sent: bool) -> Any:
        return self._decoded(encode_pieces(value), is_as_sent=is_as_sent)

    def _decoded(self, pieces: Sequence[Buffer], *, is_as_sent: bool = True) -> Any:
        self._decoder.is_as_sent = is_as_sent
        return self._decoder.decode(b"".join(pieces))


def _has_async_setup(owner: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(owner, "setup", None))


def _inner_context(route: Route) -> Context:
    """The context of a call that code of another call makes. It has what a node would give it."""
    outer = CURRENT.get() or Context()
    more = {name: getattr(outer, name) for name in ("caller", "headers", "query", "path", "tags")}
    return Context(request_id=outer.request_id, traceparent=outer.traceparent, route=route.path, **more)


def _no_stream(_: int, __: Any) -> None:
    raise TypeError("a call has one output")


async def run_here(runner: Runner, inputs: list[Any], contexts: list[Context], emit: Emit) -> list[Any]:
    """Runs items in this process. Synchronous code does not wait, and its dependencies do not either."""

    async def emit_async(index: int, output: Any) -> None:
        emit(index, output)

    token = _RUNS_SYNC.set(not runner.signature.is_async)
    try:
        if runner.signature.is_async:
            results = await runner.run_async(inputs, contexts, emit_async, lambda _: None)
        else:
            results = runner.run(inputs, contexts, emit)
        for context in contexts:
            if context._after is not None:
                await run_now(context._after, context.request_id, in_loop=runner.signature.is_async)
        return results
    finally:
        _RUNS_SYNC.reset(token)


def call_error(error: BaseException) -> CallError:
    """An exception of the called code, as its caller sees it behind a node."""
    return error if isinstance(error, CallError) else error_of(error_map(error))


# Synchronous code of a dependency runs now, although in an event loop.
_RUNS_SYNC: contextvars.ContextVar[bool] = contextvars.ContextVar("callboard_runs_sync", default=False)
LOCAL = Local()
# Makes the calls of this process. The worker of this process sets it.
current: Calls | None = None
