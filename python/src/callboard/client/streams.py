"""Operators on results as they come: `client.stream("/embed", texts).batch(100).parmap(store)`.

A `Stream` is over any iterable, an `AsyncStream` also over an asynchronous one. Each operator gives a further stream,
keeps the order, and pulls from the one before it, which is then its own.

* **Full:** no operator holds more items than its argument says: what is before it waits until there is room.
* **Failed:** an exception of a source comes out after the items before it. One of a `parmap` is in its item's place.
* **Left:** `close`, or the end of a loop over the last stream, closes all before it, and so the calls in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from callboard._options import positive

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
WORKERS = 8
AHEAD = 64
# The end of a source, in a queue.
_END: Any = object()


class Stream(Iterator[T]):
    """The items of an iterable, one after the other, with operators."""

    def __init__(self, source: Iterable[T]) -> None:
        self._source = iter(source)

    def __next__(self) -> T:
        return next(self._source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream, and the calls that it has in flight."""
        _close(self._source)

    def batch(self, size: int) -> Stream[list[T]]:
        """Lists of `size` items each; the last one may be shorter."""
        return Stream(_batches(self, positive("size", size)))

    def buffer(self, size: int) -> Stream[T]:
        """The same items, of which a thread pulls up to `size` ahead of the consumer."""
        return Stream(_ahead(self, positive("size", size)))

    def parmap(self, function: Callable[[T], Any], *, workers: int = WORKERS) -> Stream[Any]:
        """What the function returns for each item, by up to `workers` threads, in the order of the items.

        An exception of the function is in the place of its result, and an item that is an exception stays as it is. A
        further thread pulls the items.
        """
        return Stream(_mapped(self, function, positive("workers", workers)))

    def tee(self, count: int = 2, *, ahead: int = AHEAD) -> tuple[Stream[T], ...]:
        """`count` streams that have all items each.

        The fastest is at most `ahead` items before the slowest, and waits for it: read them at the same time, each in a
        thread of its own. One that is closed or dropped is not waited for.
        """
        fork = _Fork(self, positive("count", count), positive("ahead", ahead))
        return tuple(Stream(_Branch(fork, waiting)) for waiting in list(fork.waiting))


class AsyncStream(AsyncIterator[T]):
    """`Stream` for tasks: `async for`, and `aclose`."""

    def __init__(self, source: AsyncIterable[T] | Iterable[T]) -> None:
        self._source = aiter(source) if isinstance(source, AsyncIterable) else _of_iterable(source)

    def __anext__(self) -> Awaitable[T]:
        return self._source.__anext__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """As `Stream.close`."""
        await _aclose(self._source)

    def batch(self, size: int) -> AsyncStream[list[T]]:
        """As `Stream.batch`."""
        return AsyncStream(_async_batches(self, positive("size", size)))

    def buffer(self, size: int) -> AsyncStream[T]:
        """As `Stream.buffer`, with a task."""
        return AsyncStream(_async_ahead(self, positive("size", size)))

    def parmap(self, function: Callable[[T], Any], *, workers: int = WORKERS) -> AsyncStream[Any]:
        """As `Stream.parmap`. The function may be asynchronous: then up to `workers` tasks run it."""
        return AsyncStream(_async_mapped(self, function, positive("workers", workers)))

    def tee(self, count: int = 2, *, ahead: int = AHEAD) -> tuple[AsyncStream[T], ...]:
        """As `Stream.tee`, for a task each."""
        fork = _AsyncFork(self, positive("count", count), positive("ahead", ahead))
        return tuple(AsyncStream(_AsyncBranch(fork, waiting)) for waiting in list(fork.waiting))


# ---- For threads -----------------------------------------------------------------------------------------------------


def _close(source: object) -> None:
    # Other iterators, such as files, are their owner's.
    if isinstance(source, (Generator, Stream, _Branch)):
        source.close()


def _batches(source: Iterator[T], size: int) -> Generator[list[T], None, None]:
    batch: list[T] = []
    try:
        for item in source:
            batch.append(item)
            if len(batch) == size:
                yield batch
                batch = []
    except Exception:
        if batch:
            yield batch
        raise
    finally:
        _close(source)
    if batch:
        yield batch


def _ahead(source: Iterator[T], size: int) -> Generator[T, None, None]:
    items: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(size)
    is_left = False

    def pull() -> None:
        end: tuple[Any, BaseException | None] = (_END, None)
        try:
            for item in source:
                items.put((item, None))
                if is_left:
                    break
        except BaseException as error:
            end = (_END, error)
        finally:
            _close(source)
        if not is_left:
            items.put(end)

    threading.Thread(target=pull, name="callboard-stream", daemon=True).start()
    try:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        # The thread finds room for what it has, and then no further item.
        is_left = True
        with contextlib.suppress(queue.Empty):
            while True:
                item, _ = items.get_nowait()
                if isinstance(item, Future):
                    item.cancel()


def _mapped(source: Iterator[T], function: Callable[[T], Any], workers: int) -> Generator[Any, None, None]:
    def begun() -> Generator[Future[Any], None, None]:
        pool = ThreadPoolExecutor(workers, thread_name_prefix="callboard-parmap")
        try:
            for item in source:
                yield pool.submit(_outcome, function, item)
        finally:
            _close(source)
            # What has begun and is wanted ends; what is not was cancelled.
            pool.shutdown(wait=False)

    with contextlib.closing(_ahead(begun(), workers)) as outcomes:
        for outcome in outcomes:
            yield outcome.result()


def _outcome(function: Callable[[T], Any], item: T) -> Any:
    if isinstance(item, Exception):
        return item
    try:
        return function(item)
    except Exception as error:
        return error


class _Fork:
    """The source of several branches: the one that needs an item pulls it for all."""

    def __init__(self, source: Any, count: int, ahead: int) -> None:
        self.source = source
        self.ahead = ahead
        self.changed = threading.Condition()
        # The items of each open branch.
        self.waiting: list[deque[Any]] = [deque() for _ in range(count)]
        self.is_pulling = False
        self.end: BaseException | None = None

    def may_pull(self) -> bool:
        return not self.is_pulling and all(len(each) < self.ahead for each in self.waiting)

    def add(self, item: Any) -> None:
        for each in self.waiting:
            each.append(item)

    def leave(self, mine: deque[Any]) -> bool:
        """Whether this was the last branch."""
        found = [each for each in self.waiting if each is not mine]
        is_last = not found and bool(self.waiting)
        self.waiting = found
        return is_last


class _Branch(Iterator[Any]):
    def __init__(self, fork: _Fork, mine: deque[Any]) -> None:
        self._fork = fork
        self._mine = mine
        self._is_closed = False

    def __next__(self) -> Any:
        fork, mine = self._fork, self._mine
        while True:
            if self._is_closed:
                raise StopIteration
            with fork.changed:
                fork.changed.wait_for(lambda: mine or fork.end or fork.may_pull())
                if mine:
                    fork.changed.notify_all()
                    return mine.popleft()
                if fork.end:
                    raise fork.end
                fork.is_pulling = True
            try:
                item, end = next(fork.source), None
            except BaseException as error:
                item, end = None, error
            with fork.changed:
                fork.is_pulling, fork.end = False, end
                if end is None:
                    fork.add(item)
                fork.changed.notify_all()

    def close(self) -> None:
        self._is_closed = True
        with self._fork.changed:
            is_last = self._fork.leave(self._mine)
            self._fork.changed.notify_all()
        if is_last:
            _close(self._fork.source)

    def __del__(self) -> None:
        self.close()


# ---- For tasks -------------------------------------------------------------------------------------------------------


async def _aclose(source: object) -> None:
    if isinstance(source, (AsyncGenerator, AsyncStream, _AsyncBranch)):
        # An event loop that ends closes all generators at the same time, so this one may be closed already.
        with contextlib.suppress(RuntimeError):
            await source.aclose()


async def _of_iterable(items: Iterable[T]) -> AsyncGenerator[T, None]:
    try:
        for item in items:
            yield item
    finally:
        _close(items)


async def _async_batches(source: AsyncIterator[T], size: int) -> AsyncGenerator[list[T], None]:
    batch: list[T] = []
    try:
        async for item in source:
            batch.append(item)
            if len(batch) == size:
                yield batch
                batch = []
    except Exception:
        if batch:
            yield batch
        raise
    finally:
        await _aclose(source)
    if batch:
        yield batch


async def _async_ahead(source: AsyncIterator[T], size: int) -> AsyncGenerator[T, None]:
    items: asyncio.Queue[tuple[Any, BaseException | None]] = asyncio.Queue(size)
    is_left = False

    async def pull() -> None:
        end: tuple[Any, BaseException | None] = (_END, None)
        try:
            async for item in source:
                await items.put((item, None))
        except BaseException as error:
            # A source may wait for what another has cancelled.
            if is_left:
                raise
            end = (_END, error)
        await items.put(end)

    pulling = asyncio.ensure_future(pull())
    try:
        while True:
            item, error = await items.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        is_left = True
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)
        await _aclose(source)


async def _async_mapped(
    source: AsyncIterator[T], function: Callable[[T], Any], workers: int
) -> AsyncGenerator[Any, None]:
    room = asyncio.Semaphore(workers)
    running: set[asyncio.Future[Any]] = set()
    pool = None if inspect.iscoroutinefunction(function) else ThreadPoolExecutor(workers)

    async def outcome(item: T) -> Any:
        if isinstance(item, Exception):
            return item
        async with room:
            try:
                if pool is None:
                    return await function(item)
                result = await asyncio.get_running_loop().run_in_executor(pool, function, item)
                return await result if inspect.isawaitable(result) else result
            except Exception as error:
                return error

    async def begun() -> AsyncGenerator[asyncio.Future[Any], None]:
        try:
            async for item in source:
                task = asyncio.ensure_future(outcome(item))
                running.add(task)
                task.add_done_callback(running.discard)
                yield task
        finally:
            await _aclose(source)

    outcomes = _async_ahead(begun(), workers)
    try:
        async for each in outcomes:
            yield await each
    finally:
        await _aclose(outcomes)
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if pool is not None:
            pool.shutdown(wait=False)


class _AsyncFork(_Fork):
    def __init__(self, source: AsyncIterator[Any], count: int, ahead: int) -> None:
        super().__init__(source, count, ahead)
        self.turn = asyncio.Event()
        # Not that of a branch, so that a cancelled branch costs the others no item.
        self.pulling: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """All that wait look again."""
        self.turn.set()
        self.turn = asyncio.Event()

    async def pull(self) -> None:
        try:
            self.add(await anext(self.source))
        except BaseException as error:
            self.end = error
        finally:
            self.is_pulling = False
            self.wake()


class _AsyncBranch(AsyncIterator[Any]):
    def __init__(self, fork: _AsyncFork, mine: deque[Any]) -> None:
        self._fork = fork
        self._mine = mine
        self._is_closed = False

    async def __anext__(self) -> Any:
        fork, mine = self._fork, self._mine
        while not mine:
            if self._is_closed:
                raise StopAsyncIteration
            if fork.end:
                raise fork.end
            if fork.may_pull():
                fork.is_pulling = True
                fork.pulling = asyncio.ensure_future(fork.pull())
            await fork.turn.wait()
        fork.wake()
        return mine.popleft()

    async def aclose(self) -> None:
        fork, self._is_closed = self._fork, True
        self._mine.clear()
        is_last = fork.leave(self._mine)
        fork.wake()
        if is_last:
            if fork.pulling is not None:
                fork.pulling.cancel()
                await asyncio.gather(fork.pulling, return_exceptions=True)
            await _aclose(fork.source)

    def __del__(self) -> None:
        self._fork.leave(self._mine)
        with contextlib.suppress(RuntimeError):
            # The event loop may be closed.
            self._fork.wake()
