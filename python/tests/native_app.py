"""Services for the tests of the native transport."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np

import callboard as cb


@cb.function
def echo(value: Any) -> Any:
    return value


@cb.function
def add(a: int, b: int = 1) -> int:
    return a + b


@cb.function
def double(values: np.ndarray) -> np.ndarray:
    return values * 2


@cb.function
def refuse(text: str) -> str:
    raise cb.HTTPException(429, f"no {text}", headers={"retry-after": "3"})


@cb.function
def fail(text: str) -> str:
    raise ValueError(text)


@cb.function
def count(n: int) -> Iterator[int]:
    yield from range(n)


@cb.service
class Held:
    """Waits until its caller has left: `"stay"`. Counts: `"started 2"` answers when two calls have begun to wait."""

    def setup(self) -> None:
        self.counts = {"started": 0, "cancelled": 0}
        self.changed = asyncio.Condition()

    @cb.concurrent(max=64)
    async def predict(self, what: str) -> int:
        if what != "stay":
            name, _, number = what.partition(" ")
            async with self.changed:
                await self.changed.wait_for(lambda: self.counts[name] >= int(number or 0))
            return self.counts[name]
        await self.count("started")
        try:
            return await asyncio.sleep(600, 0)
        finally:
            await self.count("cancelled")

    async def count(self, name: str) -> None:
        async with self.changed:
            self.counts[name] += 1
            self.changed.notify_all()


@cb.service
class Endless:
    """Streams until its reader has left, and says how many outputs it has made."""

    made = 0

    @cb.concurrent(max=8)
    async def predict(self, what: str) -> AsyncIterator[int]:
        if what == "made":
            yield self.made
            return
        while True:
            self.made += 1
            yield self.made


@cb.function
def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
