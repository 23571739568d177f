"""Results that code may give at once or as an awaitable, and coroutines where no event loop runs, or another one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine
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
