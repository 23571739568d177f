"""Calls of other routes from a service: `embed = depends(Embedder)`, then `self.embed.predict(text)`.

In a worker a call goes to the node that started it, which knows the deadline, trace and caller of the call that makes
it. Anywhere else, in tests and notebooks, the class runs in this process: `_local.py`.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from callboard._api import SERVICE
from callboard._conversion import convert, unreadable_output
from callboard._elsewhere import DEPENDENCY, cure, cure_after
from callboard._exceptions import CallError, InvalidInput
from callboard._inner import InnerOptions
from callboard._local import LOCAL
from callboard._options import called_name, check_names, path_parameters
from callboard._said import said
from callboard._schema import schema
from callboard._target import Route, TargetError, find_route, main_route, routes_of

# The options of a call, which are no arguments.
_OPTIONS = ("timeout", "retries")
# The calls of one `map` that are open at the same time. A node allows 256 for each call.
MAP_CALLS = 64


class Calls(Protocol):
    """Makes the calls: a worker's socket, or this process."""

    def is_async(self) -> bool:
        """Whether the code that asks awaits its calls."""

    def call(self, path: str, route: Route | None, value: Any, options: InnerOptions) -> Any: ...

    def map(self, path: str, route: Route | None, values: Iterable[Any], options: InnerOptions) -> list[Any]: ...

    async def call_async(self, path: str, route: Route | None, value: Any, options: InnerOptions) -> Any: ...

    def outputs(
        self, path: str, route: Route | None, value: Any, options: InnerOptions, read: Callable[[Any], Any]
    ) -> InnerStream:
        """The outputs of a route that streams, or may."""


class InnerStream(Protocol):
    """The outputs of a call, for a plain loop or `async for`. Its end is that of the call."""

    def __iter__(self) -> Iterator[Any]: ...

    def __aiter__(self) -> AsyncIterator[Any]: ...

    def only(self) -> Any:
        """The output of a route that does not stream, or this."""

    async def only_async(self) -> Any:
        """The output of a route that does not stream."""

    def close(self) -> None:
        """Cancels the call, unless it is over."""


class Depends:
    """A dependency, as an attribute of a class. An instance may have another object in its place, for a test."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self._owner: Any = None

    def __set_name__(self, owner: Any, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._handle

    if not TYPE_CHECKING:  # A checker tells of a wrong name itself.

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or self._owner is not None:
                raise AttributeError(name)
            raise AttributeError(
                f"{name}: a dependency is an attribute of the class: write it in its body, and not in `__init__`"
            )

    @functools.cached_property
    def _handle(self) -> Handle:
        if isinstance(self.target, str):
            path = str(self.target)
            return Handle(path, {"predict": Method(path, None, self._owner)}, "predict")
        routes = routes_of(self.target, self.target.__name__)
        main = main_route(routes, self.target.__name__)
        methods = {route.attribute or "predict": Method(route.public_name, route, self._owner) for route in routes}
        return Handle(self.target.__name__, methods, main.attribute or "predict")


def depends(target: Any, /) -> Any:
    """A service or function that this class calls, or the route of one: `depends(Embedder)`, `depends("/embedder")`.

    With `embed = depends(Embedder)` in the class, `self.embed.predict(text)` is one call of its route with one item,
    also where `predict` is batched. It gives the output with the type of its hint; in async code it is awaited. That of
    a route that yields gives its outputs one by one: `async for token in self.llm.predict(q)`, or a plain `for`; to
    leave the loop cancels the call. `self.embed.predict.map(texts)` makes up to 64 calls at the same time, and gives
    the list of their outputs.

    `timeout="5s"` and `retries=2` are options of a call: `self.llm.predict(q, timeout="5s")`. Of a method that has such
    a parameter itself, and of a route by its path, they are given before: `self.llm.with_options(timeout="5s")`. A call
    is made again if that does no harm, such as one that a full stage has refused, and never after its deadline.

    A failed call raises `CallError`: a class for each kind, as a client does. `depends` itself raises `TypeError` for
    anything but a class, a function or a path, and `ValueError` for a path that is wrong.
    """
    if isinstance(target, str):
        return Depends(called_name(target))
    if isinstance(target, type) or inspect.isfunction(target):
        return Depends(target)
    cure = f": write depends({type(target).__name__})" if hasattr(type(target), SERVICE) else ""
    raise TypeError(
        f"depends takes a service, a function or a route such as '/embedder', not {said(target, repr)}{cure}"
    )


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

    def with_options(self, **options: Any) -> Handle:
        """The same with `timeout` or `retries` for all of its calls."""
        methods = {name: method.with_options(**options) for name, method in self._methods.items()}
        return Handle(self._name, methods, self._main)

    def __getattr__(self, name: str) -> Method:
        if name in self._methods:
            return self._methods[name]
        hint = cure(name, {}, (*self._methods, "with_options")) or f"there is {', '.join(self._methods)}"
        raise AttributeError(f"{self._name} has no route {name!r}: {hint}")


class Method:
    """One route that is called."""

    def __init__(self, path: str, route: Route | None, owner: Any) -> None:
        self._path = path
        self._route = route
        self._owner = owner
        self._options = InnerOptions()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        options = self._options if self._route is None or not kwargs else self._with_given(kwargs)
        value = self._input(args, kwargs)
        calls, route = self._calls(), self._resolved()
        if route is None or route.signature.streams:
            outputs = calls.outputs(self._path, route, value, options, self._output)
            if route is not None:
                return outputs
            return MaybeStream(outputs) if calls.is_async() else outputs.only()
        if calls.is_async():
            return self._await(calls.call_async(self._path, route, value, options))
        return self._output(calls.call(self._path, route, value, options))

    if not TYPE_CHECKING:  # A checker tells of a wrong name itself.

        def __getattr__(self, name: str) -> Any:
            hint = cure_after(name, DEPENDENCY, ("map", "with_options"))
            raise AttributeError(f"a route of a dependency has no {name!r}{hint}")

    def with_options(self, **options: Any) -> Method:
        """The same with `timeout` or `retries` for all of its calls."""
        check_names("a call", options, _OPTIONS)
        other = copy.copy(self)
        other._options = self._options.with_given(options)
        return other

    def map(self, values: Iterable[Any]) -> Any:
        """The outputs of many calls, in order. The first error is raised."""
        calls, route = self._calls(), self._resolved()
        if route is not None and route.signature.streams:
            raise TypeError(f"{route.signature.where} answers with a stream, and `map` gives one output for each call")
        if calls.is_async():
            return self._gather(calls, route, values)
        return [self._output(output) for output in calls.map(self._path, route, values, self._options)]

    async def _gather(self, calls: Calls, route: Route | None, values: Iterable[Any]) -> list[Any]:
        room = asyncio.Semaphore(MAP_CALLS)

        async def one(value: Any) -> Any:
            async with room:
                return await self._await(calls.call_async(self._path, route, value, self._options))

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

    def _with_given(self, kwargs: dict[str, Any]) -> InnerOptions:
        """The options of a call, without those that are taken from its arguments. A parameter of the method is none."""
        assert self._route is not None
        signature = self._route.signature
        own = {*signature.hints, *(argument.name for argument in signature.request)}
        given = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs and name not in own}
        return self._options.with_given(given) if given else self._options

    def _input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments of one call as its input."""
        if self._route is None:
            if len(args) > 1 or (args and kwargs):
                raise TypeError(f"{self._path} takes one value, or the fields of an object by name")
            return args[0] if args else kwargs or None
        signature = self._route.signature
        if path_parameters(self._path):
            raise TypeError(f"{self._path} has a parameter in its path: call it by a `Client`, or give it a plain path")
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


class MaybeStream(Coroutine[Any, Any, Any]):
    """A call in asynchronous code of a route by its path: it is awaited, or read with `async for`."""

    def __init__(self, outputs: InnerStream) -> None:
        self._outputs = outputs
        self._only: Coroutine[Any, Any, Any] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._outputs.__aiter__()

    def __await__(self) -> Any:
        return self._awaited().__await__()

    def send(self, value: Any) -> Any:
        return self._awaited().send(value)

    def throw(self, *error: Any) -> Any:
        return self._awaited().throw(*error)

    def close(self) -> None:
        if self._only is not None:
            self._only.close()

    def _awaited(self) -> Coroutine[Any, Any, Any]:
        self._only = self._only or self._outputs.only_async()
        return self._only


def _find(path: str, owner: Any) -> Route:
    module = sys.modules.get(getattr(owner, "__module__", ""))
    values = vars(module).values() if module else ()
    owners = [value for value in values if "__callboard_service__" in getattr(value, "__dict__", {})]
    found = find_route((route for value in owners for route in routes_of(value, value.__name__)), path)
    if found is not None:
        return found
    raise TargetError(f"{path} is no route of this file, and only a node knows others: put a stand-in in its place")


# Makes the calls of this process. The worker of this process sets it.
current: Calls | None = None
