"""What `client.py` calls."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import callboard as cb


@cb.function
def echo(value: Any) -> Any:
    return value


@cb.function
def add(a: int, b: int = 1) -> int:
    return a + b


@cb.function
def fail(text: str) -> str:
    raise ValueError(text)


@cb.function
def count(n: int) -> Iterator[int]:
    yield from range(n)


@cb.function
def pid() -> int:
    return os.getpid()


async def wait(name: str) -> str:
    """Notes when a call begins, and when it is cancelled."""
    Path(name + ".begun").touch()
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        Path(name + ".cancelled").touch()
        raise
    return name


@cb.service
class Wait:
    @cb.concurrent(max=64)
    async def predict(self, name: str) -> str:
        return await wait(name)


@cb.service
class WaitAlone:
    """One call at a time: the next one waits in the queue."""

    async def predict(self, name: str) -> str:
        return await wait(name)


@cb.service
class WaitInStream:
    @cb.concurrent(max=64)
    async def predict(self, name: str) -> AsyncIterator[str]:
        yield "first"
        yield await wait(name)
