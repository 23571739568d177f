"""Calls of other services where no node is, in tests and notebooks: their classes run in this process.

They mean what they mean on a node: values as after the way between two processes, the deadline and the caller of the
call that makes them, the errors, and no way back into the stage that calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from typing import Any

from callboard._after import run_now
from callboard._awaiting import finish, in_loop, in_time, settled, wait
from callboard._context import OVER, Context, SetupContext
from callboard._current import CURRENT
from callboard._envelope import Buffer, Decoder, encode_pieces
from callboard._errors import call_error, error_of, let_go
from callboard._exceptions import CallError
from callboard._hooks import clean_up
from callboard._inner import CREDIT, InnerOptions, after_error
from callboard._runner import Emit, EmitAsync, Failure, Runner, setup_arguments, stage_of
from callboard._said import said
from callboard._target import Route, TargetError

_END = object()


class Local:
    """Dependencies in this process: one instance of each class, from its first call on."""

    def __init__(self) -> None:
        self._instances: dict[int, Any] = {}
        self._decoder = Decoder()
        self._loop: asyncio.AbstractEventLoop | None = None

    def is_async(self) -> bool:
        return in_loop() and not _RUNS_SYNC.get()

    def call(self, path: str, route: Route | None, value: Any, options: InnerOptions) -> Any:
        return self.wait(route, self.call_async(path, route, value, options))

    def map(self, path: str, route: Route | None, values: Iterable[Any], options: InnerOptions) -> list[Any]:
        return [self.call(path, route, value, options) for value in values]

    async def call_async(self, path: str, route: Route | None, value: Any, options: InnerOptions) -> Any:
        attempts = options.attempts()
        while True:
            try:
                return await self._call_once(path, route, value, options)
            except CallError as error:
                pause = attempts.pause(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause) if in_loop() else time.sleep(pause)

    def outputs(
        self, path: str, route: Route | None, value: Any, options: InnerOptions, read: Callable[[Any], Any]
    ) -> LocalOutputs:
        return LocalOutputs(self, route, self._stream(path, route, value, options), read)

    def wait(self, route: Route | None, awaitable: Any) -> Any:
        """The result of what an asynchronous route gives to synchronous code."""
        if route is None or not (route.signature.is_async or _has_async_setup(route.owner)):
            return finish(awaitable)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return wait(self._loop.run_until_complete, awaitable)

    def close(self) -> None:
        """Cleans up all instances."""
        instances, self._instances = self._instances, {}
        loop, self._loop = self._loop or asyncio.new_event_loop(), None
        try:
            for instance in instances.values():
                wait(loop.run_until_complete, settled(clean_up(instance, None)))
        finally:
            loop.close()

    # ---- One call ----------------------------------------------------------------------------------------------------

    async def _call_once(self, path: str, route: Route | None, value: Any, options: InnerOptions) -> Any:
        runner, inputs, context = await self._prepared(path, route, value, options)
        running = run_here(runner, inputs, [context], _no_stream)
        limit = context.remaining() if runner.signature.is_async else None
        (outcome,) = await in_time(running, limit, lambda: _late(path))
        _check_time(path, context)
        if isinstance(outcome, Failure):
            try:
                raise call_error(outcome.error) from let_go(outcome.error)
            finally:
                # A frame that has its own error is a cycle.
                del outcome
        return self._received(runner, outcome, context)

    async def _stream(
        self, path: str, route: Route | None, value: Any, options: InnerOptions
    ) -> AsyncGenerator[Any, None]:
        async with contextlib.aclosing(self.steps(path, *await self._prepared(path, route, value, options))) as outputs:
            async for output in outputs:
                yield output

    async def steps(self, path: str, runner: Runner, inputs: list[Any], context: Context) -> AsyncGenerator[Any, None]:
        """The outputs of a streaming route for its one input, as they are asked for. `path` is for errors."""
        steps = self._steps_async(path, runner, inputs, context) if runner.signature.is_async else None
        if steps is not None:
            async with contextlib.aclosing(steps):
                async for output in steps:
                    yield output
            return
        # The code runs in a context of its own, which what reads its outputs does not see.
        own, outputs = contextvars.copy_context(), _steps(runner, inputs[0], context)
        try:
            while (output := own.run(_next, outputs)) is not _END:
                _check_time(path, context)
                yield self._received(runner, output, context)
        finally:
            try:
                own.run(outputs.close)
            finally:
                await _work_after(runner, [context])

    async def _steps_async(
        self, path: str, runner: Runner, inputs: list[Any], context: Context
    ) -> AsyncGenerator[Any, None]:
        """The outputs of asynchronous code, which runs as a task and pauses while they are not read."""
        loop, room = asyncio.get_running_loop(), asyncio.Semaphore(CREDIT)
        came: asyncio.Queue[Any] = asyncio.Queue()
        cancel: list[Callable[[int], None]] = []

        async def emit(_: int, output: Any) -> None:
            await room.acquire()
            came.put_nowait(self._received(runner, output, context))

        def leave() -> None:
            context._cancelled = True
            for each in cancel:
                each(0)

        task = asyncio.ensure_future(_run_async_here(runner, inputs, [context], emit, cancel.append))
        task.add_done_callback(lambda _: came.put_nowait(_END))
        remaining = context.remaining()
        timer = None if remaining is None else loop.call_later(remaining, leave)
        try:
            while (output := await came.get()) is not _END:
                room.release()
                yield output
            (outcome,) = task.result()
            _check_time(path, context)
            if isinstance(outcome, Failure):
                try:
                    raise call_error(outcome.error) from let_go(outcome.error)
                finally:
                    # A frame that has its own error is a cycle.
                    del outcome
        finally:
            if timer is not None:
                timer.cancel()
            if not task.done():
                leave()
                await asyncio.wait({task})

    async def _prepared(
        self, path: str, route: Route | None, value: Any, options: InnerOptions
    ) -> tuple[Runner, list[Any], Context]:
        if route is None:
            raise TargetError(f"{path}: only a node knows it")
        if stage_of(route) in _STAGES.get():
            message = f"the stage `{route.stage}` is called from within itself: it would wait for its own workers"
            raise error_of({"message": message, "kind": "failed", "status": 508, "stage": route.stage})
        context = _inner_context(route, options.deadline())
        _check_time(path, context)
        instance = self._instances.get(id(route.owner))
        if id(route.owner) not in self._instances:
            instance = route.instance()
            setup = getattr(instance, "setup", None)
            if setup is not None:
                await settled(setup(**setup_arguments(setup, SetupContext(stage=route.stage))))
            self._instances[id(route.owner)] = instance
        return Runner(route, instance), [self._sent(value, route)], context

    def _sent(self, value: Any, route: Route) -> Any:
        return self._decoded(encode_pieces(value), is_as_sent=route.signature.takes_frames_as_sent)

    def _received(self, runner: Runner, output: Any, context: Context) -> Any:
        try:
            return self._decoded(runner.encoded(output, context))
        except (TypeError, ValueError) as error:
            raise CallError(f"the output of {runner.name}: {said(error)}") from error

    def _decoded(self, pieces: Sequence[Buffer], *, is_as_sent: bool = True) -> Any:
        self._decoder.is_as_sent = is_as_sent
        return self._decoder.decode(b"".join(pieces))


class LocalOutputs:
    """The outputs of a stream in this process."""

    def __init__(
        self, local: Local, route: Route | None, outputs: AsyncGenerator[Any, None], read: Callable[[Any], Any]
    ) -> None:
        self._local = local
        self._route = route
        self._outputs = outputs
        self._read = read
        self._closing: asyncio.Future[None] | None = None

    def __iter__(self) -> LocalOutputs:
        return self

    def __aiter__(self) -> LocalOutputs:
        return self

    def __next__(self) -> Any:
        try:
            return self._read(self._local.wait(self._route, self._outputs.__anext__()))
        except StopAsyncIteration:
            raise StopIteration from None

    async def __anext__(self) -> Any:
        return self._read(await self._outputs.__anext__())

    def only(self) -> Any:
        return self

    async def only_async(self) -> Any:
        raise TypeError("this route answers with a stream: read it with `async for`")

    def close(self) -> None:
        if self._local.is_async():
            self._closing = asyncio.ensure_future(self._outputs.aclose())
        else:
            self._local.wait(self._route, self._outputs.aclose())

    async def aclose(self) -> None:
        await self._outputs.aclose()

    def __del__(self) -> None:
        # An event loop ends the generators of its own tasks.
        if not self._local.is_async():
            with contextlib.suppress(Exception):
                self.close()


# ---- Code of this process --------------------------------------------------------------------------------------------


def _has_async_setup(owner: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(owner, "setup", None))


# What an inner call has of the request that its outer call is for.
_OF_REQUEST = ("caller", "headers", "query", "path", "method", "client", "tags")


def _inner_context(route: Route, deadline: float | None) -> Context:
    """The context of a call that code of another call makes. It has what a node would give it."""
    outer = CURRENT.get() or Context()
    if outer._place == OVER:
        raise after_error(route.path)
    more = {name: getattr(outer, name) for name in _OF_REQUEST}
    return Context(
        request_id=outer.request_id, traceparent=outer.traceparent, route=route.public_name, deadline=deadline, **more
    )


def _check_time(path: str, context: Context) -> None:
    if context.remaining() == 0.0:
        raise _late(path)


def _late(path: str) -> CallError:
    message = f"{path}: the deadline passed before the outcome was there"
    return error_of({"message": message, "kind": "deadline_exceeded"})


def _no_stream(_: int, __: Any) -> None:
    raise TypeError("a call has one output")


async def run_here(runner: Runner, inputs: list[Any], contexts: list[Context], emit: Emit) -> list[Any]:
    """Runs items in this process. Synchronous code does not wait, and its dependencies do not either."""

    async def emit_async(index: int, output: Any) -> None:
        emit(index, output)

    if runner.signature.is_async:
        return await _run_async_here(runner, inputs, contexts, emit_async, lambda _: None)
    tokens = _enter(runner)
    try:
        results = runner.run(inputs, contexts, emit)
        await _work_after(runner, contexts)
        return results
    finally:
        _leave(tokens)


async def _run_async_here(
    runner: Runner,
    inputs: list[Any],
    contexts: list[Context],
    emit: EmitAsync,
    started: Callable[[Callable[[int], None]], None],
) -> list[Any]:
    tokens = _enter(runner)
    try:
        results = await runner.run_async(inputs, contexts, emit, started)
        await _work_after(runner, contexts)
        return results
    finally:
        _leave(tokens)


async def _work_after(runner: Runner, contexts: list[Context]) -> None:
    for context in contexts:
        await run_now(context, in_loop=runner.signature.is_async)


def _steps(runner: Runner, item: Any, context: Context) -> Generator[Any, None, None]:
    """The outputs of synchronous code, which runs as they are asked for."""
    tokens = _enter(runner)
    try:
        yield from runner.outputs(item, context)
    finally:
        _leave(tokens)


def _next(outputs: Generator[Any, None, None]) -> Any:
    """The next output, or `_END`. Raises the error of the code as its caller sees it."""
    try:
        return next(outputs, _END)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise call_error(error) from let_go(error)


_Tokens = tuple[contextvars.Token[bool], contextvars.Token[frozenset[Any]]]


def _enter(runner: Runner) -> _Tokens:
    return _RUNS_SYNC.set(not runner.signature.is_async), _STAGES.set(_STAGES.get() | {runner.stage})


def _leave(tokens: _Tokens) -> None:
    _RUNS_SYNC.reset(tokens[0])
    _STAGES.reset(tokens[1])


# Synchronous code of a dependency runs now, although in an event loop.
_RUNS_SYNC: contextvars.ContextVar[bool] = contextvars.ContextVar("callboard_runs_sync", default=False)
# The stages whose code waits.
_STAGES: contextvars.ContextVar[frozenset[Any]] = contextvars.ContextVar("callboard_stages", default=frozenset())
LOCAL = Local()
