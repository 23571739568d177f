"""What `client.py` calls."""

import asyncio
import os
from collections.abc import Iterator
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


@cb.service
class Wait:
    """Notes when a call begins, and when it is cancelled."""

    @cb.concurrent(max=64)
    async def predict(self, name: str) -> str:
        Path(name + ".begun").touch()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            Path(name + ".cancelled").touch()
            raise
        return name
