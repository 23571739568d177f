"""Results that code may give at once or as an awaitable, and coroutines where no event loop runs."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
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
