"""Operators on results as they come: `client.stream("/embed", texts).batch(100).parmap(store)`.

A `Stream` is over any iterable, an `AsyncStream` also over an asynchronous one. Each operator gives a further stream,
keeps the order, and pulls from the one before it, which is then its own.

* **Full:** no operator holds more items than its argument says: what is before it waits until there is room.
* **Failed:** an exception of a source comes out after the items before it. One of a `parmap` is in its item's place.
* **Left:** `close`, or the end of a loop over the last stream, closes all before it, and so the calls in flight. A
  thread that waits for an item of `replies`, or of a source that is no stream, ends with that wait.
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
# A function may wait for what was cancelled, which does not cancel its own call.
_FAILURES = (Exception, asyncio.CancelledError)


class Stream(Iterator[T]):
    """The items of an iterable, one after the other, with operators."""

    def __init__(
        self, source: Iterable[T], *, before: Stream[Any] | None = None, leave: Callable[[], None] | None = None
    ) -> None:
        self._source = iter(source)
        self._before = before
        # Wakes the threads that wait in the source.
        self._leave = leave

    def __next__(self) -> T:
        return next(self._source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream, and the calls that it has in flight. Another thread may be waiting in it."""
        if self._leave is not None:
            self._leave()
        # A generator that has not begun would close nothing.
        _close(self._before)
        _close(self._source)

    def batch(self, size: int) -> Stream[list[T]]:
        """Lists of `size` items each; the last one may be shorter."""
        return Stream(_batches(self, positive("size", size)), before=self)

    def buffer(self, size: int) -> Stream[T]:
        """The same items, of which a thread pulls up to `size` ahead of the consumer."""
        lane = _Lane(positive("size", size))
        return Stream(_ahead(self, lane, lambda item: item), before=self, leave=lane.leave)

    def parmap(self, function: Callable[[T], Any], *, workers: int = WORKERS) -> Stream[Any]:
        """What the function returns for each item, by up to `workers` threads, in the order of the items.

        An exception of the function is in the place of its result, and an item that is an exception stays as it is. A
        further thread pulls the items.
        """
        lane = _Lane(positive("workers", workers))
        return Stream(_ahead(_begun(self, function, workers), lane, Future.result), before=self, leave=lane.leave)

    def tee(self, count: int = 2, *, ahead: int = AHEAD) -> tuple[Stream[T], ...]:
        """`count` streams that have all items each.

        The fastest is at most `ahead` items before the slowest, and waits for it: read them at the same time, each in a
        thread of its own. One that is closed or dropped is not waited for.
        """
        fork = _Fork(self, positive("count", count), positive("ahead", ahead))
        return tuple(Stream(_Branch(fork, waiting)) for waiting in list(fork.waiting))


class AsyncStream(AsyncIterator[T]):
    """`Stream` for tasks: `async for`, and `aclose`."""

    def __init__(
        self,
        source: AsyncIterable[T] | Iterable[T],
        *,
        before: AsyncStream[Any] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        self._source = aiter(source) if isinstance(source, AsyncIterable) else _of_iterable(source)
        self._before = before
        self._leave = leave

    def __anext__(self) -> Awaitable[T]:
        return self._source.__anext__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """As `Stream.close`."""
        if self._leave is not None:
            self._leave()
        await _aclose(self._source)
        await _aclose(self._before)

    def batch(self, size: int) -> AsyncStream[list[T]]:
        """As `Stream.batch`."""
        return AsyncStream(_async_batches(self, positive("size", size)), before=self)

    def buffer(self, size: int) -> AsyncStream[T]:
        """As `Stream.buffer`, with a task."""
        lane = _AsyncLane(positive("size", size))
        return AsyncStream(_async_ahead(self, lane, of_tasks=False), before=self, leave=lane.leave)

    def parmap(self, function: Callable[[T], Any], *, workers: int = WORKERS) -> AsyncStream[Any]:
        """As `Stream.parmap`. The function may be asynchronous: then up to `workers` tasks run it."""
        lane = _AsyncLane(positive("workers", workers))
        tasks = _async_begun(self, function, workers)
        return AsyncStream(_async_ahead(tasks, lane, of_tasks=True), before=self, leave=lane.leave)

    def tee(self, count: int = 2, *, ahead: int = AHEAD) -> tuple[AsyncStream[T], ...]:
        """As `Stream.tee`, for a task each."""
        fork = _AsyncFork(self, positive("count", count), positive("ahead", ahead))
        return tuple(AsyncStream(_AsyncBranch(fork, waiting)) for waiting in list(fork.waiting))


# ---- For threads -----------------------------------------------------------------------------------------------------


def _close(source: object) -> None:
    # Other iterators, such as files, are their owner's.
    if isinstance(source, (Stream, _Branch)):
        source.close()
    elif isinstance(source, Generator):
        try:
            source.close()
        except ValueError:
            # Another thread is in it, and closes it afterwards.
            if not getattr(source, "gi_running", False):
                raise


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


class _Lane:
    """The items between a thread that pulls them and the consumer."""

    def __init__(self, size: int) -> None:
        self.items: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        # For items that are being pulled, and those that wait.
        self.room = threading.Semaphore(size)
        self.is_left = False

    def leave(self) -> None:
        """Nothing further is wanted. Both sides wake."""
        self.is_left = True
        self.room.release()
        self.items.put((_END, None))


def _ahead(source: Iterator[Any], lane: _Lane, read: Callable[[Any], T]) -> Generator[T, None, None]:
    # Without a reference to this generator, which is closed when nobody has it any more.
    threading.Thread(target=_pull, args=(source, lane), name="callboard-stream", daemon=True).start()
    try:
        while not lane.is_left:
            item, error = lane.items.get()
            if error is not None:
                raise error
            if item is _END:
                return
            result = read(item)
            del item
            lane.room.release()
            yield result
    finally:
        lane.leave()


def _pull(source: Iterator[Any], lane: _Lane) -> None:
    end: BaseException | None = None
    try:
        try:
            while lane.room.acquire() and not lane.is_left:
                lane.items.put((next(source), None))
        finally:
            _close(source)
    except StopIteration:
        pass
    except BaseException as error:
        end = error
    lane.items.put((_END, end))


def _begun(source: Iterator[T], function: Callable[[T], Any], workers: int) -> Generator[Future[Any], None, None]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="callboard-parmap")
    try:
        for item in source:
            yield pool.submit(_outcome, function, item)
    finally:
        _close(source)
        # What has begun ends.
        pool.shutdown(wait=False)


def _outcome(function: Callable[[T], Any], item: T) -> Any:
    if isinstance(item, _FAILURES):
        return item
    try:
        return function(item)
    except _FAILURES as error:
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
            with fork.changed:
                fork.changed.wait_for(lambda: self._is_closed or mine or fork.end or fork.may_pull())
                if self._is_closed:
                    raise StopIteration
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
                is_left = not fork.waiting
                fork.changed.notify_all()
            if is_left:
                # All branches were closed meanwhile, when the source could not be.
                _close(fork.source)

    def close(self) -> None:
        with self._fork.changed:
            self._is_closed = True
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


class _AsyncLane:
    """As `_Lane`, for tasks."""

    def __init__(self, size: int) -> None:
        self.items: asyncio.Queue[tuple[Any, BaseException | None]] = asyncio.Queue()
        self.room = asyncio.Semaphore(size)
        self.is_left = False

    def leave(self) -> None:
        self.is_left = True
        self.items.put_nowait((_END, None))


async def _async_ahead(source: AsyncIterator[Any], lane: _AsyncLane, *, of_tasks: bool) -> AsyncGenerator[Any, None]:
    async def pull() -> None:
        end: BaseException | None = None
        try:
            while await lane.room.acquire():
                lane.items.put_nowait((await anext(source), None))
        except StopAsyncIteration:
            pass
        except BaseException as error:
            # Also where the source waits for what another has cancelled.
            end = error
        lane.items.put_nowait((_END, end))

    pulling = asyncio.ensure_future(pull())
    item: Any = None
    try:
        while not lane.is_left:
            item, error = await lane.items.get()
            if error is not None:
                raise error
            if item is _END:
                return
            if of_tasks:
                # To await it would cancel it together with the consumer.
                await asyncio.wait((item,))
            lane.room.release()
            yield item.result() if of_tasks else item
    finally:
        lane.leave()
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)
        await _aclose(source)
        if of_tasks:
            begun = [item, *(lane.items.get_nowait()[0] for _ in range(lane.items.qsize()))]
            tasks = [each for each in begun if isinstance(each, asyncio.Future)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _async_begun(
    source: AsyncIterator[T], function: Callable[[T], Any], workers: int
) -> AsyncGenerator[asyncio.Future[Any], None]:
    pool = None if inspect.iscoroutinefunction(function) else ThreadPoolExecutor(workers)

    async def outcome(called: Future[Any] | None, item: T) -> Any:
        if isinstance(item, _FAILURES):
            return item
        try:
            result = function(item) if called is None else await asyncio.wrap_future(called)
            return await result if inspect.isawaitable(result) else result
        except _FAILURES as error:
            return error

    try:
        async for item in source:
            # Here, as the pool takes no more once the source has ended.
            called = None if pool is None or isinstance(item, _FAILURES) else pool.submit(function, item)
            yield asyncio.ensure_future(outcome(called, item))
    finally:
        await _aclose(source)
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
