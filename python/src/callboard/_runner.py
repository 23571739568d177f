"""Runs user code for a batch of items. It knows neither frames nor envelopes: the worker and the test client use it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from callboard._awaiting import apart, is_own_cancellation, settled, start
from callboard._context import Context, SetupContext
from callboard._current import running
from callboard._elsewhere import nearest_name
from callboard._envelope import PACKED, Buffer, encode_pieces, forms_of
from callboard._fetch import FileRules, Files, fetch_all, taken
from callboard._media import has_url, resolving
from callboard._response import ANSWERS, output_of
from callboard._target import Route

# Between items and outputs, how often it is asked whether callers have left.
_LOOK_SECONDS = 0.001

# The tag of a call by a gateway of evaluations: `crates/grpc/src/relay`.
RELAY = "callboard-relay"
# Outputs that need more than encoding: errors and answers.
_SPECIAL = (BaseException, *ANSWERS)
# Texts, mappings and unordered sets are no list of outputs.
_NO_BATCHES = (str, bytes, dict, set, frozenset)

log = logging.getLogger("callboard")
_NOTHING: contextlib.nullcontext[None] = contextlib.nullcontext()

# By the index of its item, the output that a thread sends.
Unread = dict[int, "Future[None]"]

# Takes the index of an item, and its next output.
Emit = Callable[[int, Any], None]
EmitAsync = Callable[[int, Any], Coroutine[Any, Any, None]]


@dataclasses.dataclass
class Failure:
    """An item without an output."""

    error: BaseException


class Cancelled(Exception):
    """The caller has left."""


def stage_of(route: Route) -> Any:
    """The same value for all routes that run in the same replicas."""
    host = route.host or route
    return id(host.owner), host.attribute


class Runner:
    """One instance of a service, ready for items."""

    def __init__(
        self, route: Route, instance: Any, files: FileRules | None = None, contract: str | None = None
    ) -> None:
        self.signature = route.signature
        self.stage = stage_of(route)
        self.concurrency = route.method.concurrency
        self.in_loop = route.in_loop
        # Of synchronous code that runs for several calls at once.
        self._threads: ThreadPoolExecutor | None = None
        self._may_run_again = (contract or route.service.contract) != "at_most_once"
        self.name = route.signature.where
        self.encode = route.signature.encode_output
        self._forms = forms_of(route.signature.output)
        # The names of the arguments of a batch.
        self._names = (*self.signature.hints, *(argument.name for argument in self.signature.request))
        # The name of the route, if several methods of HTTP call it.
        self._of_methods = route.public_name if len(route.methods) > 1 else None
        has_context = self.signature.context and not self.signature.batched
        # What comes from the call of an item, and not from its input.
        self._complete = self._with_request if self.signature.request else self._with_context if has_context else None
        call = route.bind(instance)
        self._call = apart(call) if route.signature.batched and route.signature.is_async else call
        # When it looks again for callers that have left.
        self._next_look = 0.0
        # Which files may be fetched.
        self._files = files

    def encoded(self, output: Any, context: Context) -> Sequence[Buffer]:
        """An output, which has the type of its hint unless it was returned in a `Response`."""
        is_checked = context._response is None or not context._response._is_returned
        if RELAY in context.tags:
            packed = self.signature.encode_packed
            return packed(output) if is_checked else encode_pieces(output, self._forms | PACKED)
        return self.encode(output) if is_checked else encode_pieces(output, self._forms)

    # ---- One after the other -----------------------------------------------------------------------------------------

    def run(self, inputs: list[Any], contexts: list[Context], emit: Emit) -> list[Any]:
        """An output or a `Failure` for each item; None if it streams. An input may be a `Failure` already."""
        # The batch is new.
        self._next_look = time.monotonic() + _LOOK_SECONDS
        wanted = self._wanted(inputs, contexts)
        arguments = self._arguments(inputs, contexts, fetch_all(*wanted) if wanted else None)
        if self.signature.batched:
            return self._batch(arguments, contexts)
        return [self._one(index, item, contexts[index], emit) for index, item in enumerate(arguments)]

    def _batch(self, arguments: list[Any], contexts: list[Context]) -> list[Any]:
        good = _good(arguments, contexts)
        outputs: list[Any] = []
        if good:
            try:
                with running(contexts[good[0]] if len(good) == 1 else None):
                    outputs = self._counted(self._call(**self._columns(arguments, contexts, good)), len(good))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                if halves := self._halves(error, good, contexts):
                    outputs = [each for half in halves for each in self._batch(*_of(half, arguments, contexts))]
                else:
                    outputs = [_failure(error, contexts[index]) for index in good]
        return _merge(arguments, good, outputs, contexts)

    def _one(self, index: int, item: dict[str, Any] | Failure, context: Context, emit: Emit) -> Any:
        if isinstance(item, Failure):
            return item
        if self._has_left(context):
            return Failure(Cancelled())
        try:
            with running(context):
                if not self.signature.streams:
                    return _outcome(self._call(**item), context)
                return self._stream(index, self._call(**item), context, emit)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # Some extension modules raise panics that are no `Exception`.
            return _failure(error, context)

    def _has_left(self, context: Context) -> bool:
        """Whether the caller has left. To look for new frames is a system call, so it is done now and then."""
        now = time.monotonic()
        if now < self._next_look:
            return context._cancelled
        self._next_look = now + _LOOK_SECONDS
        return context.cancelled

    def _stream(self, index: int, outputs: Iterable[Any], context: Context, emit: Emit) -> Failure | None:
        with _closing(outputs):
            for output in outputs:
                if self._has_left(context):
                    return Failure(Cancelled())
                emit(index, output)
        return None

    def outputs(self, value: Any, context: Context) -> Generator[Any, None, None]:
        """The outputs of one item that streams, as they are asked for."""
        (item,) = self._arguments([value], [context], None)
        if isinstance(item, Failure):
            raise item.error
        with running(context):
            outputs = self._call(**item)
            with _closing(outputs):
                yield from outputs

    # ---- At the same time --------------------------------------------------------------------------------------------

    async def run_async(
        self,
        inputs: list[Any],
        contexts: list[Context],
        emit: EmitAsync,
        started: Callable[[Callable[[int], None]], None],
    ) -> list[Any]:
        """As `run`, for async code, and for other code in threads. `started` receives what cancels one item."""
        wanted = self._wanted(inputs, contexts)
        files = await asyncio.get_running_loop().run_in_executor(None, fetch_all, *wanted) if wanted else None
        arguments = self._arguments(inputs, contexts, files)
        if self.signature.batched:
            return await self._batch_async(arguments, contexts)
        room, unread = asyncio.Semaphore(self.concurrency), Unread()
        tasks = [
            start(self._one_async(index, item, contexts[index], emit, room, unread))
            for index, item in enumerate(arguments)
        ]
        # A thread cannot be cancelled: its code asks the context, and its call is over when it returns.
        started(lambda index: _cancel(tasks[index] if self.signature.is_async else unread.get(index)))
        try:
            return [await _result(task, context) for task, context in zip(tasks, contexts, strict=True)]
        except BaseException:
            for task in tasks:
                task.cancel()
            raise

    async def _one_async(
        self,
        index: int,
        item: dict[str, Any] | Failure,
        context: Context,
        emit: EmitAsync,
        room: asyncio.Semaphore,
        unread: Unread,
    ) -> Any:
        if isinstance(item, Failure):
            return item
        async with room:
            if context.cancelled:
                return Failure(Cancelled())
            if not self.signature.is_async:
                return await self._apart(index, item, context, emit, unread)
            with running(context):
                result = await settled(self._call(**item))
                if not self.signature.streams:
                    return _outcome(result, context)
                async with _aclosing(result):
                    async for output in result:
                        await emit(index, output)
                return None

    async def _apart(self, index: int, item: dict[str, Any], context: Context, emit: EmitAsync, unread: Unread) -> Any:
        """Runs synchronous code for one item in a thread, which waits for the reader of each output."""
        loop = asyncio.get_running_loop()

        def emit_apart(index: int, output: Any) -> None:
            sent = unread[index] = asyncio.run_coroutine_threadsafe(emit(index, output), loop)
            # The cancellation may have come before there was something to cancel.
            if context._cancelled:
                sent.cancel()
            try:
                sent.result()
            except FutureCancelledError:
                raise Cancelled from None

        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.concurrency, f"callboard-{self.name}")
        # A log record of the thread has the call, as the variables of this task say.
        call = functools.partial(contextvars.copy_context().run, self._one_apart, index, item, context, emit_apart)
        return await loop.run_in_executor(self._threads, call)

    def _one_apart(self, index: int, item: dict[str, Any], context: Context, emit: Emit) -> Any:
        try:
            with running(context):
                if not self.signature.streams:
                    return _outcome(self._call(**item), context)
                outputs = self._call(**item)
                with _closing(outputs):
                    for output in outputs:
                        # The loop takes the cancellations.
                        if context._cancelled:
                            return Failure(Cancelled())
                        emit(index, output)
                return None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return _failure(error, context)

    async def _batch_async(self, arguments: list[Any], contexts: list[Context]) -> list[Any]:
        good = _good(arguments, contexts)
        outputs: list[Any] = []
        if good:
            try:
                with running(contexts[good[0]] if len(good) == 1 else None):
                    outputs = self._counted(await self._call(**self._columns(arguments, contexts, good)), len(good))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                if is_own_cancellation(error):
                    raise
                if halves := self._halves(error, good, contexts):
                    outputs = [
                        each for half in halves for each in await self._batch_async(*_of(half, arguments, contexts))
                    ]
                else:
                    outputs = [_failure(error, contexts[index]) for index in good]
        return _merge(arguments, good, outputs, contexts)

    def _halves(
        self, error: BaseException, good: list[int], contexts: list[Context]
    ) -> tuple[list[int], list[int]] | None:
        """The halves in which a batch runs again that found no memory, once what it held is freed."""
        # Few processes need it.
        from callboard._out_of_memory import free_memory, is_out_of_memory

        if not is_out_of_memory(error):
            return None
        if not self._may_run_again:
            log.warning('%s: no memory for %d items; with contract="pure" they run in halves', self.name, len(good))
            return None
        log.warning("%s: no memory for %d items", self.name, len(good), exc_info=error)
        # Errors are told by means of this module.
        from callboard._errors import forget

        forget(error)
        free_memory()
        if len(good) < 2:
            return None
        # What it has chosen of its answers does not count.
        for index in good:
            contexts[index]._response = None
        middle = (len(good) + 1) // 2
        return good[:middle], good[middle:]

    # ---- Arguments and outputs ---------------------------------------------------------------------------------------

    def _wanted(
        self, inputs: list[Any], contexts: list[Context]
    ) -> tuple[FileRules, list[tuple[list[str], float | None]]] | None:
        """The URLs in the places of files, of each item. None if there are none, or if none are fetched here."""
        if self._files is None or not any(map(has_url, inputs)):
            return None
        calls: list[tuple[list[str], float | None]] = []
        for value, context in zip(inputs, contexts, strict=True):
            urls: list[str] = []
            # Other errors of the input are found again, before the files are looked at.
            try:
                with resolving(urls.append):
                    self.signature.arguments(value)
            except Exception:
                urls = []
            calls.append((urls, context.deadline))
        return self._files, calls

    def _arguments(
        self, inputs: list[Any], contexts: list[Context], files: list[Files] | None
    ) -> list[dict[str, Any] | Failure]:
        found: list[Any] | None = None
        if files is None and Failure not in map(type, inputs):
            found = self.signature.all_arguments(inputs)
        if found is None:
            found = self._arguments_of_each(inputs, files)
        if self._of_methods is not None:
            for context in contexts:
                context._has_methods = context.route in (None, self._of_methods)
        if self._complete is not None:
            self._complete(found, contexts)
        return found

    def _with_context(self, found: list[Any], contexts: list[Context]) -> None:
        for item, context in zip(found, contexts, strict=True):
            if isinstance(item, dict):
                item[self.signature.context] = context

    def _with_request(self, found: list[Any], contexts: list[Context]) -> None:
        for index, (item, context) in enumerate(zip(found, contexts, strict=True)):
            if isinstance(item, dict):
                try:
                    item.update(self.signature.request_arguments(context))
                except Exception as error:
                    found[index] = Failure(error)
        if self.signature.context and not self.signature.batched:
            self._with_context(found, contexts)

    def _arguments_of_each(self, inputs: list[Any], files: list[Files] | None) -> list[dict[str, Any] | Failure]:
        found: list[dict[str, Any] | Failure] = []
        for index, value in enumerate(inputs):
            try:
                with resolving(functools.partial(taken, files[index])) if files else _NOTHING:
                    item = value if isinstance(value, Failure) else self.signature.arguments(value)
            except Exception as error:
                item = Failure(error)
            found.append(item)
        return found

    def _columns(self, arguments: list[Any], contexts: list[Context], good: list[int]) -> dict[str, Any]:
        """The arguments of a batched method: a list for each parameter."""
        columns: dict[str, Any] = {name: [arguments[index][name] for index in good] for name in self._names}
        if self.signature.context:
            columns[self.signature.context] = [contexts[index] for index in good]
        return columns

    def _counted(self, outputs: Any, count: int) -> list[Any]:
        if isinstance(outputs, _NO_BATCHES) or not hasattr(outputs, "__len__"):
            raise TypeError(f"{self.name} returned `{type(outputs).__name__}`, not a list of {count} outputs")
        if len(outputs) != count:
            raise ValueError(f"{self.name} returned {len(outputs)} outputs for {count} items")
        return list(outputs)


def _outcome(output: Any, context: Context) -> Any:
    """An exception in an item's place fails that item."""
    if not isinstance(output, _SPECIAL):
        return output
    if isinstance(output, BaseException):
        return Failure(output)
    try:
        return output_of(output, context)
    except ValueError as error:
        return Failure(error)


def _good(arguments: list[Any], contexts: list[Context]) -> list[int]:
    """The indices of the items that can run."""
    return [
        index
        for index, (item, context) in enumerate(zip(arguments, contexts, strict=True))
        if type(item) is not Failure and not context._cancelled
    ]


def _of(indices: list[int], arguments: list[Any], contexts: list[Context]) -> tuple[list[Any], list[Context]]:
    """These items of a batch as a batch."""
    return [arguments[index] for index in indices], [contexts[index] for index in indices]


def _merge(arguments: list[Any], good: list[int], outputs: list[Any], contexts: list[Context]) -> list[Any]:
    """The outputs in the places of the items that ran."""
    if len(good) == len(arguments):
        if not any(isinstance(output, _SPECIAL) for output in outputs):
            return outputs
        return [_outcome(output, context) for output, context in zip(outputs, contexts, strict=True)]
    results = [item if isinstance(item, Failure) else Failure(Cancelled()) for item in arguments]
    for index, output in zip(good, outputs, strict=True):
        results[index] = _outcome(output, contexts[index])
    return results


async def _result(task: Awaitable[Any], context: Context) -> Any:
    try:
        return await task
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if is_own_cancellation(error):
            raise
        return _failure(error, context)


def _failure(error: BaseException, context: Context) -> Failure:
    """The failure of an item. `CancelledError` does not tell whose task was cancelled: it may be one of the code."""
    return Failure(Cancelled() if isinstance(error, asyncio.CancelledError) and context._cancelled else error)


def _cancel(task: asyncio.Future[Any] | Future[None] | None) -> None:
    if task is not None:
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


def setup_arguments(setup: Callable[..., Any], context: SetupContext, **more: Any) -> dict[str, Any]:
    """The arguments of `setup` by name: device, replica, cache, context, settings, each setting as itself, and more."""
    known = {
        "cache": context.cache,
        **context.settings,
        "device": context.device,
        "replica": context.replica,
        "settings": context.settings,
        "context": context,
        **more,
    }
    return hook_arguments(setup, known)


def hook_arguments(hook: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a hook by name."""
    arguments = {}
    for parameter in inspect.signature(hook).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in known:
            arguments[parameter.name] = known[parameter.name]
        elif parameter.default is parameter.empty:
            near = nearest_name(parameter.name, known)
            hint = f": did you mean `{near}`?" if near else f": there are {', '.join(sorted(known))}"
            raise TypeError(f"{hook.__name__} has a parameter `{parameter.name}` that nothing is known for{hint}")
    return arguments
