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
    outcome = _outcome(awaitable)
    if in_loop():
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            value, error = thread.submit(contextvars.copy_context().run, run, outcome).result()
    else:
        value, error = run(outcome)
    if error is None:
        return value
    try:
        raise error
    finally:
        # A frame that has its own error is a cycle.
        del error


async def _outcome(awaitable: Awaitable[Any]) -> tuple[Any, Exception | None]:
    """The result or the error. Frames of asyncio refer to an error that goes through them."""
    try:
        return await awaitable, None
    except Exception as error:
        return None, error
