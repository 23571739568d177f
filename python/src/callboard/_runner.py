"""Runs user code for a batch of items. It knows neither frames nor envelopes: the worker and the test client use it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

from callboard._api import Context, SetupContext, nearest_name
from callboard._target import Route

# The call whose code runs now, for log records.
CURRENT: contextvars.ContextVar[Context | None] = contextvars.ContextVar("callboard_current", default=None)

# Takes the index of an item, and its next output.
Emit = Callable[[int, Any], None]
EmitAsync = Callable[[int, Any], Awaitable[None]]


@dataclasses.dataclass
class Failure:
    """An item without an output."""

    error: BaseException


class Cancelled(Exception):
    """The caller has left."""


class Runner:
    """One instance of a service, ready for items."""

    def __init__(self, route: Route, instance: Any) -> None:
        self.signature = route.signature
        self.concurrency = route.method.concurrency
        self.name = route.signature.where
        self._call = route.bind(instance)

    # ---- One after the other -----------------------------------------------------------------------------------------

    def run(self, inputs: list[Any], contexts: list[Context], emit: Emit) -> list[Any]:
        """An output or a `Failure` for each item; None if it streams. An input may be a `Failure` already."""
        arguments = self._arguments(inputs, contexts)
        if self.signature.batched:
            return self._batch(arguments, contexts)
        return [self._one(index, item, contexts[index], emit) for index, item in enumerate(arguments)]

    def _batch(self, arguments: list[Any], contexts: list[Context]) -> list[Any]:
        good = _good(arguments, contexts)
        outputs: list[Any] = []
        if good:
            token = CURRENT.set(contexts[good[0]] if len(good) == 1 else None)
            try:
                outputs = self._counted(self._call(**self._columns(arguments, contexts, good)), len(good))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                outputs = [Failure(error)] * len(good)
            finally:
                CURRENT.reset(token)
        return _merge(arguments, good, outputs)

    def _one(self, index: int, item: dict[str, Any] | Failure, context: Context, emit: Emit) -> Any:
        if isinstance(item, Failure):
            return item
        # The first item has just come.
        if context.cancelled if index else context._cancelled:
            return Failure(Cancelled())
        token = CURRENT.set(context)
        try:
            if not self.signature.streams:
                return _outcome(self._call(**item))
            return self._stream(index, self._call(**item), context, emit)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # Some extension modules raise panics that are no `Exception`.
            return Failure(error)
        finally:
            CURRENT.reset(token)

    def _stream(self, index: int, outputs: Iterable[Any], context: Context, emit: Emit) -> Failure | None:
        with _closing(outputs):
            for output in outputs:
                if context.cancelled:
                    return Failure(Cancelled())
                emit(index, output)
        return None

    # ---- At the same time --------------------------------------------------------------------------------------------

    async def run_async(
        self,
        inputs: list[Any],
        contexts: list[Context],
        emit: EmitAsync,
        started: Callable[[Callable[[int], None]], None],
    ) -> list[Any]:
        """As `run`, for async code. `started` receives what cancels one item."""
        arguments = self._arguments(inputs, contexts)
        if self.signature.batched:
            return await self._batch_async(arguments, contexts)
        room = asyncio.Semaphore(self.concurrency)
        tasks = [
            asyncio.ensure_future(self._one_async(index, item, contexts[index], emit, room))
            for index, item in enumerate(arguments)
        ]
        started(lambda index: _cancel(tasks[index]))
        return [await _result(task) for task in tasks]

    async def _one_async(
        self, index: int, item: dict[str, Any] | Failure, context: Context, emit: EmitAsync, room: asyncio.Semaphore
    ) -> Any:
        if isinstance(item, Failure):
            return item
        async with room:
            if context.cancelled:
                return Failure(Cancelled())
            CURRENT.set(context)
            result = self._call(**item)
            if inspect.isawaitable(result):
                result = await result
            if not self.signature.streams:
                return _outcome(result)
            async with _aclosing(result):
                async for output in result:
                    await emit(index, output)
            return None

    async def _batch_async(self, arguments: list[Any], contexts: list[Context]) -> list[Any]:
        good = _good(arguments, contexts)
        outputs: list[Any] = []
        if good:
            CURRENT.set(contexts[good[0]] if len(good) == 1 else None)
            try:
                outputs = self._counted(await self._call(**self._columns(arguments, contexts, good)), len(good))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                outputs = [Failure(error)] * len(good)
        return _merge(arguments, good, outputs)

    # ---- Arguments and outputs ---------------------------------------------------------------------------------------

    def _arguments(self, inputs: list[Any], contexts: list[Context]) -> list[dict[str, Any] | Failure]:
        found: list[dict[str, Any] | Failure] = []
        for value, context in zip(inputs, contexts, strict=True):
            try:
                item = value if isinstance(value, Failure) else self.signature.arguments(value)
            except Exception as error:
                item = Failure(error)
            if isinstance(item, dict) and self.signature.context and not self.signature.batched:
                item[self.signature.context] = context
            found.append(item)
        return found

    def _columns(self, arguments: list[Any], contexts: list[Context], good: list[int]) -> dict[str, Any]:
        """The arguments of a batched method: a list for each parameter."""
        columns: dict[str, Any] = {name: [arguments[index][name] for index in good] for name in self.signature.hints}
        if self.signature.context:
            columns[self.signature.context] = [contexts[index] for index in good]
        return columns

    def _counted(self, outputs: Any, count: int) -> list[Any]:
        if isinstance(outputs, (str, bytes, dict)) or not hasattr(outputs, "__len__"):
            raise TypeError(f"{self.name} returned `{type(outputs).__name__}`, not a list of {count} outputs")
        if len(outputs) != count:
            raise ValueError(f"{self.name} returned {len(outputs)} outputs for {count} items")
        return list(outputs)


def _outcome(output: Any) -> Any:
    """An exception in an item's place fails that item."""
    return Failure(output) if isinstance(output, BaseException) else output


def _good(arguments: list[Any], contexts: list[Context]) -> list[int]:
    """The indices of the items that can run."""
    return [
        index
        for index, (item, context) in enumerate(zip(arguments, contexts, strict=True))
        if not isinstance(item, Failure) and not context._cancelled
    ]


def _merge(arguments: list[Any], good: list[int], outputs: list[Any]) -> list[Any]:
    """The outputs in the places of the items that ran."""
    results = [item if isinstance(item, Failure) else Failure(Cancelled()) for item in arguments]
    for index, output in zip(good, outputs, strict=True):
        results[index] = _outcome(output)
    return results


async def _result(task: asyncio.Future[Any]) -> Any:
    try:
        return await task
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return Failure(error)


def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()


@contextlib.contextmanager
def _closing(outputs: Any) -> Iterator[None]:
    try:
        yield
    finally:
        if hasattr(outputs, "close"):
            outputs.close()


@contextlib.asynccontextmanager
async def _aclosing(outputs: Any) -> AsyncIterator[None]:
    try:
        yield
    finally:
        if hasattr(outputs, "aclose"):
            await outputs.aclose()


# ---- Setup and cleanup -----------------------------------------------------------------------------------------------


def setup_arguments(setup: Callable[..., Any], context: SetupContext) -> dict[str, Any]:
    """The arguments of `setup` by name: device, replica, context, settings, and each setting under its own name."""
    known = {
        **context.settings,
        "device": context.device,
        "replica": context.replica,
        "settings": context.settings,
        "context": context,
    }
    arguments = {}
    for parameter in inspect.signature(setup).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in known:
            arguments[parameter.name] = known[parameter.name]
        elif parameter.default is parameter.empty:
            near = nearest_name(parameter.name, known)
            hint = f": did you mean `{near}`?" if near else f": there are {', '.join(sorted(known))}"
            raise TypeError(f"setup has a parameter `{parameter.name}` that nothing is known for{hint}")
    return arguments
