"""Runs a service or pipeline in this process, for tests: no node, no socket, the same conversions as in a worker."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from callboard._api import Context, InvalidInput, SetupContext
from callboard._compose import AnyStep, Ensemble, NodeStage, Pick, Pipeline, Rename, Step, Switch, walk
from callboard._depends import LOCAL, call_error
from callboard._envelope import Decoder, encode
from callboard._hooks import Preparation
from callboard._runner import Failure, Runner, setup_arguments
from callboard._target import Route, TargetError, routes_of
from callboard.client import Client
from callboard.client.local import AsyncLocalTransport, LocalTransport


def test_client(app: Any, **settings: Any) -> TestClient:
    """Runs a class, a function or a pipeline in this process, for tests: no node, no socket, the same conversions.

        with cb.test_client(Sentiment) as client:
            assert client.call("good") == 1.0

    `with` runs `prepare` and `setup`, and at its end `cleanup`. The settings are those of a stage in the configuration
    file, which `setup` gets by name, such as `device="cuda:0"`; `cache` is the directory for `prepare`.

    Raises `TargetError` for anything that cannot be served, and for a pipeline with a step that only a node runs, such
    as `onnx`; whatever `setup` raises.
    """
    return PipelineClient(app, settings) if isinstance(app, Step) else TestClient(app, settings)


# Not a test, whatever its name says to a collector of tests.
test_client.__test__ = False  # type: ignore[attr-defined]


class TestClient:
    """What `test_client` gives: it holds one instance, from its `setup` to its `cleanup`."""

    __test__ = False

    def __init__(self, app: Any, settings: dict[str, Any]) -> None:
        name = getattr(app, "__name__", str(app))
        self._routes = {route.attribute or route.name: route for route in routes_of(app, name)}
        self._instance = next(iter(self._routes.values())).instance()
        device = str(settings.get("device") or "cpu")
        self._preparation = Preparation(next(iter(self._routes.values())).owner, settings.get("cache"))
        cache = self._preparation.cache
        self._context = SetupContext(stage=name, device=device, settings=settings, cache=cache)
        self._loop = asyncio.new_event_loop()
        self._decoder = Decoder()

    def __enter__(self) -> TestClient:
        self._preparation.run(self._instance)
        setup = getattr(self._instance, "setup", None)
        if setup is not None:
            self._wait(setup(**setup_arguments(setup, self._context)))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            cleanup = getattr(self._instance, "cleanup", None)
            if cleanup is not None:
                self._wait(cleanup())
            LOCAL.close()
        finally:
            self._loop.close()

    def client(self) -> Client:
        """A `Client` whose calls run here, for code that takes one: `client.call("/sentiment", "good")`."""
        transport = LocalTransport(self)
        return Client.over(transport, AsyncLocalTransport(transport))

    def route_at(self, path: str) -> Route | None:
        """The route of this path; None where every path is the app. Raises `LookupError`."""
        for route in self._routes.values():
            if route.path == path:
                return route
        raise LookupError(f"there is no route `{path}`")

    def call(self, value: Any = None, *, method: str | None = None, context: Context | None = None) -> Any:
        """One call, and its output as plain data; of a streaming route the list of its outputs.

        `method` is the name of a method with `@route`, by default `predict`; `context` is what the code gets as its
        `Context`. Raises what the code raises, `InvalidInput` for an input that does not fit the hints, and
        `TargetError` for a method that is no route.
        """
        ((outcome, outputs),) = self._run([value], method, context)
        if isinstance(outcome, Failure):
            raise outcome.error
        return outputs if self._route(method).signature.streams else outcome

    def batch(self, values: list[Any], *, method: str | None = None) -> list[Any]:
        """Calls that run as one batch: their outputs, in order. A failed item is its exception, in its place."""
        outcomes = self._run(values, method, None)
        return [outcome.error if isinstance(outcome, Failure) else outcome for outcome, _ in outcomes]

    def _route(self, method: str | None) -> Any:
        if method is None:
            return next(iter(self._routes.values()))
        if method not in self._routes:
            raise TargetError(f"there is no route {method!r}: there are {', '.join(self._routes)}")
        return self._routes[method]

    def _run(self, values: list[Any], method: str | None, context: Context | None) -> Iterator[tuple[Any, list[Any]]]:
        runner = Runner(self._route(method), self._instance)
        outputs: list[list[Any]] = [[] for _ in values]
        inputs = [self._sent(value) for value in values]
        contexts = [dataclasses.replace(context) if context else Context() for _ in values]

        def emit(index: int, output: Any) -> None:
            outputs[index].append(self._sent(output))

        async def emit_async(index: int, output: Any) -> None:
            emit(index, output)

        if runner.signature.is_async:
            outcomes = self._loop.run_until_complete(runner.run_async(inputs, contexts, emit_async, lambda _: None))
        else:
            outcomes = runner.run(inputs, contexts, emit)
        outcomes = [outcome if isinstance(outcome, Failure) else self._sent(outcome) for outcome in outcomes]
        return zip(outcomes, outputs, strict=True)

    def _sent(self, value: Any) -> Any:
        """The value as the other side sees it."""
        return self._decoder.decode(encode(value))

    def _wait(self, result: Any) -> None:
        if inspect.isawaitable(result):
            self._loop.run_until_complete(result)


class PipelineClient(TestClient):
    """Runs the steps of a pipeline one after the other, each in a client of its own."""

    def __init__(self, app: Step, settings: dict[str, Any]) -> None:
        for part in walk(app):
            if isinstance(part, NodeStage):
                raise TargetError(f"{part} is run by the node: serve the app, or test the steps in Python one by one")
        self._app = app
        leaves = [part for part in walk(app) if not isinstance(part, Step)]
        self._clients = {id(leaf): TestClient(leaf, settings) for leaf in leaves}

    def __enter__(self) -> TestClient:
        for client in self._clients.values():
            client.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for client in reversed(self._clients.values()):
            client.__exit__()

    def route_at(self, path: str) -> Route | None:
        return None

    def call(self, value: Any = None, *, method: str | None = None, context: Context | None = None) -> Any:
        return self._run_step(self._app, value, context)

    def batch(self, values: list[Any], *, method: str | None = None) -> list[Any]:
        return [self._outcome(value) for value in values]

    def _outcome(self, value: Any) -> Any:
        try:
            return self.call(value)
        except Exception as error:
            return error

    def _run_step(self, step: AnyStep, value: Any, context: Context | None) -> Any:
        if isinstance(step, Pipeline):
            for part in step.steps:
                value = self._run_step(part, value, context)
            return value
        if isinstance(step, Ensemble):
            return self._run_ensemble(step, value, context)
        if isinstance(step, Switch):
            chosen = step.cases.get(_case(value, step.field), step.default)
            if chosen is None:
                raise InvalidInput(f"`{step.field}` must be one of {', '.join(step.cases)}")
            return self._run_step(chosen, value, context)
        if isinstance(step, Pick):
            return _fields(value, [step.field])[step.field]
        if isinstance(step, Rename):
            return {step.names.get(name, name): field for name, field in _fields(value, list(step.names)).items()}
        return self._clients[id(step)].call(value, context=context)

    def _run_ensemble(self, step: Ensemble, value: Any, context: Context | None) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        failed: list[Exception] = []
        for name, part in step.members.items():
            try:
                outputs[name] = self._run_step(part, value, context)
            except Exception as error:
                if not step.partial:
                    raise
                failed.append(error)
                found = call_error(error)
                outputs[name] = {"error": {"kind": found.kind, "message": found.message}}
        if len(failed) == len(outputs):
            raise failed[0]
        return outputs


def _fields(value: Any, names: list[str]) -> dict[str, Any]:
    missing = [name for name in names if not isinstance(value, dict) or name not in value]
    if missing:
        raise InvalidInput(f"the item has no field `{missing[0]}`")
    found: dict[str, Any] = value
    return found


def _case(value: Any, field: str) -> str:
    """The value of the field as a case is written."""
    chosen = value.get(field) if isinstance(value, dict) else None
    return str(chosen).lower() if isinstance(chosen, bool) else str(chosen)
