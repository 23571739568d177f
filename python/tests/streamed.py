"""Services that read the streams of others, for tests. An order says what a stream does, and where it notes its end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import callboard as cb

# Longer than any of these takes, shorter than the limit of a call.
LIMIT = 20
# Looks at a stream without a change until it is taken for paused.
QUIET = 15


async def until_noted(order: dict[str, Any]) -> str:
    end = time.monotonic() + LIMIT
    path = Path(order["path"])
    # It is there a moment before its text.
    while not (path.exists() and path.read_text()) and time.monotonic() < end:
        await asyncio.sleep(0.01)
    return path.read_text()


@cb.service
class Words:
    """Counts, and then waits if it shall."""

    @cb.concurrent(max=8)
    async def predict(self, order: dict[str, Any]) -> AsyncIterator[Any]:
        made = 0
        try:
            while made < order["count"]:
                if made == order.get("fails_at"):
                    raise cb.HTTPException(409, "no more")
                if made == order.get("dies_at"):
                    os._exit(7)
                made += 1
                yield made
            if "begun" in order:
                Path(order["begun"]).touch()
            if order.get("waits"):
                await asyncio.sleep(1000)
        except asyncio.CancelledError:
            if "path" in order:
                Path(order["path"]).write_text("cancelled")
            raise
        except GeneratorExit:
            if "path" in order:
                Path(order["path"]).write_text(f"paused after {made}")
            raise


@cb.service
class PlainWords:
    """The same without waiting."""

    def predict(self, order: dict[str, Any]) -> Iterator[int]:
        made = 0
        try:
            while made < order["count"]:
                if made == order.get("fails_at"):
                    raise cb.HTTPException(409, "no more")
                made += 1
                yield made
        finally:
            if "path" in order:
                Path(order["path"]).write_text(f"paused after {made}")


@cb.function
def size(text: str) -> int:
    return len(text)


@cb.function
def timed(order: dict[str, Any]) -> int:
    return len(order)


@cb.service
class Relay:
    words = cb.depends(Words)
    plain = cb.depends(PlainWords)

    @cb.concurrent(max=8)
    async def predict(self, order: dict[str, Any]) -> AsyncIterator[Any]:
        words = self.plain if order.get("plain") else self.words
        try:
            async for word in words.predict(order, **order.get("options", {})):
                yield word
                if word == order.get("breaks_at"):
                    break
        except cb.CallError as error:
            yield [error.kind, error.status_code, type(error).__name__]
        if "breaks_at" in order:
            # This call goes on: nothing else ends the inner one.
            yield await until_noted(order)


@cb.service
class PlainRelay:
    words = cb.depends(Words)
    plain = cb.depends(PlainWords)

    def predict(self, order: dict[str, Any]) -> Iterator[Any]:
        words = self.plain if order.get("plain") else self.words
        try:
            for word in words.predict(order, **order.get("options", {})):
                yield word
                if word == order.get("breaks_at"):
                    break
        except cb.CallError as error:
            yield [error.kind, error.status_code, type(error).__name__]
        if "breaks_at" in order:
            yield asyncio.run(until_noted(order))


@cb.service
class ByPath:
    words = cb.depends("/words")
    size = cb.depends("/size")

    async def predict(self, order: dict[str, Any]) -> list[Any]:
        found = [word async for word in self.words(order)]
        size = asyncio.create_task(self.size("four"))
        return [*found, await self.size("a"), await size]


@cb.service
class PlainByPath:
    words = cb.depends("/words")
    size = cb.depends("/size")

    def predict(self, order: dict[str, Any]) -> list[Any]:
        return [*self.words(order), self.size("a")]


@cb.service
class Slow:
    words = cb.depends(Words)
    size = cb.depends(size)

    @cb.concurrent(max=8)
    async def predict(self, order: dict[str, Any]) -> list[Any]:
        words = self.words.predict(order)
        found = [await anext(words)]
        # Enough for a stream that does not pause.
        for _ in range(200):
            await self.size("a")
        words.close()
        return [*found, await until_noted(order)]


@cb.service
class Options:
    """Calls with options: of a method that has a parameter of that name, and of one that has none."""

    timed = cb.depends("/timed")
    size = cb.depends(size)

    async def predict(self, how: str) -> Any:
        if how == "path":
            return await self.timed.with_options(timeout="2s")({"timeout": 3})
        return await self.size(how, timeout="5s", retries=2)


@cb.service
class PlainOptions:
    size = cb.depends(size)

    def predict(self, texts: list[str]) -> list[int]:
        found: list[int] = self.size.with_options(retries=1).map(texts)
        return found


@cb.service
class Both:
    """Waits for two calls. The first that fails cancels the other."""

    size = cb.depends(size)

    async def predict(self, texts: list[str]) -> list[int]:
        tasks = [asyncio.ensure_future(self.size(text)) for text in texts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


@cb.service
class Closes:
    """Closes a stream for which a task, or another thread, waits."""

    words = cb.depends(Words)

    async def predict(self, order: dict[str, Any]) -> list[int]:
        outputs = self.words.predict(order)
        reading = asyncio.ensure_future(_all(outputs))
        while not Path(order["path"]).exists():
            await asyncio.sleep(0.01)
        outputs.close()
        return await reading


async def _all(outputs: Any) -> list[int]:
    return [output async for output in outputs]


@cb.service
class PlainCloses:
    words = cb.depends(Words)

    def predict(self, order: dict[str, Any]) -> list[int]:
        outputs = self.words.predict(order)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(list, outputs)
            while not Path(order["path"]).exists():
                time.sleep(0.01)
            outputs.close()
            return reading.result()


@cb.service
class Large:
    """Large outputs."""

    @cb.concurrent(max=8)
    async def predict(self, order: dict[str, Any]) -> AsyncIterator[bytes]:
        for _ in range(order["count"]):
            yield bytes(order["size"])


def unread_bytes(outputs: Any) -> int:
    """The bytes that a stream has and nobody has read."""
    return sum(map(len, outputs._call.outputs))


@cb.service
class Hoard:
    """Reads one output, tells how many bytes come before the next is read, and how many outputs there are in all."""

    large = cb.depends(Large)

    @cb.concurrent(max=8)
    async def predict(self, order: dict[str, Any]) -> list[int]:
        outputs = self.large.predict(order)
        read, unread, same = 1 if await anext(outputs) is not None else 0, -1, 0
        while same < QUIET:
            before, unread = unread, unread_bytes(outputs)
            same = same + 1 if before == unread else 0
            await asyncio.sleep(0.02)
        async for _ in outputs:
            read += 1
        return [unread, read]


@cb.service
class PlainHoard:
    """The same without waiting: what comes is taken before the next output is."""

    large = cb.depends(Large)

    def predict(self, order: dict[str, Any], context: cb.Context) -> list[int]:
        outputs = self.large.predict(order)
        read, unread, same = 1 if next(outputs) is not None else 0, -1, 0
        while same < QUIET:
            # It looks at what came.
            assert not context.cancelled
            before, unread = unread, unread_bytes(outputs)
            same = same + 1 if before == unread else 0
            time.sleep(0.02)
        return [unread, read + sum(1 for _ in outputs)]
