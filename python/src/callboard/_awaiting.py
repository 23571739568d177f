"""Results that code may give at once or as an awaitable, and coroutines where no event loop runs, or another one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any


async def settled(result: Any) -> Any:
    """The result itself, awaited if it is an awaitable."""
    return await result if inspect.isawaitable(result) else result


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise TypeError("synchronous code waits for asynchronous code: make it `async def`")


def in_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def wait(run: Callable[[Any], Any], awaitable: Awaitable[Any]) -> Any:
    """The result of an awaitable, by `run`, which runs an event loop: `asyncio.run` or `loop.run_until_complete`.

    In a thread that runs a loop already, such as that of a notebook, it waits for another thread.
    """
    outcomes: list[tuple[Any, Exception | None]] = []
    if in_loop():
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(contextvars.copy_context().run, run, _put(outcomes, awaitable)).result()
    else:
        run(_put(outcomes, awaitable))
    return _taken(outcomes)


async def in_time(awaitable: Awaitable[Any], seconds: float | None, late: Callable[[], Exception]) -> Any:
    """The result of an awaitable, which is cancelled after this time: then it is the error `late`."""
    if seconds is None:
        return await awaitable
    outcomes: list[tuple[Any, Exception | None]] = []
    task = asyncio.ensure_future(_put(outcomes, awaitable))
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise late()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    # Cancelled by itself, it has put nothing.
    return _taken(outcomes) if outcomes else task.result()


def _taken(outcomes: list[tuple[Any, Exception | None]]) -> Any:
    value, error = outcomes.pop()
    try:
        if error is not None:
            raise error
        return value
    finally:
        # A frame that has its own error is a cycle. The errors of a batch are its value.
        del value, error


async def _put(outcomes: list[tuple[Any, Exception | None]], awaitable: Awaitable[Any]) -> None:
    """Appends the result or the error. Neither goes through asyncio: its frames refer to the task with its result, and
    since Python 3.12 the frame of a coroutine that is over refers to the frames that ran it."""
    try:
        outcomes.append((await awaitable, None))
    except Exception as error:
        outcomes.append((None, error))


# ---- Cancellation ----------------------------------------------------------------------------------------------------


class _OwnCancellation(asyncio.CancelledError):
    """The task that awaits is cancelled, and not the awaited one."""


class _Apart:
    """A task for Python 3.10, where no task knows whether it is cancelled: the cancellation of the task that awaits
    this one has a class of its own."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._error: BaseException | None = None
        self._task = asyncio.ensure_future(self._run(coroutine))
        self.cancel = self._task.cancel

    async def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await coroutine
        except BaseException as error:
            # A cancelled task loses its message and its traceback.
            self._error = error
            raise

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            # Unlike `await`, it leaves the task alone when it is cancelled.
            yield from asyncio.wait({self._task}).__await__()
        except asyncio.CancelledError:
            self._task.cancel()
            raise _OwnCancellation from None
        error, self._error = self._error, None
        context = None if error is None else _CONTEXT.__get__(error)
        try:
            if error is not None and self._task.cancelled():
                raise error
            return self._task.result()
        finally:
            if error is not None:
                # Not the error that the caller handles.
                _CONTEXT.__set__(error, context)
            # A frame that has its own error is a cycle.
            del error, context


# A class of user code may have another attribute of this name.
_CONTEXT: Any = BaseException.__dict__["__context__"]
_TASKS_KNOW = sys.version_info >= (3, 11)
# Starts a coroutine, so that `is_own_cancellation` knows about the errors of its `await`.
start: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.ensure_future if _TASKS_KNOW else _Apart


def apart(code: Callable[..., Any]) -> Callable[..., Any]:
    """The code, started as by `start` where that is needed: it cannot keep a cancellation from the task that awaits it.
    On Python 3.10 the task groups of anyio do so when all tasks of an event loop are cancelled."""
    return code if _TASKS_KNOW else lambda *values, **named: _Apart(code(*values, **named))


def is_own_cancellation(error: BaseException) -> bool:
    """Whether the running task is cancelled: the event loop ends, as after `sys.exit` in other code, or a test has a
    limit for the call. Else the awaited code was cancelled, or raised the error itself."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    if sys.version_info < (3, 11):
        return isinstance(error, _OwnCancellation)
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
