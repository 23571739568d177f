"""Pipelines and dependencies, for tests."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import callboard as cb


@dataclass
class Label:
    name: str
    score: float


@cb.function
def clean(text: str) -> str:
    return text.strip()


@cb.service
class Shout:
    def setup(self) -> None:
        self.mark = "!"

    @cb.batched(max_batch_size=8)
    def predict(self, texts: list[str]) -> list[str | Exception]:
        return [text.upper() + self.mark if text else cb.HTTPException(422, "no text") for text in texts]


@cb.service(route="/size")
class Size:
    def predict(self, text: str) -> int:
        return len(text)


@cb.function
def mixed(item: dict[str, Any]) -> dict[str, Any]:
    return item


inner = cb.pipeline(clean, Shout)
app = cb.pipeline(inner, cb.ensemble(loud=Shout, size=Size, partial=True), route="/whole")
pick_one = cb.switch("want", loud=[cb.pick("text"), inner], size=[cb.pick("text"), Size], default=mixed)


@cb.service
class Embedder:
    async def setup(self) -> None:
        self.factor = 2

    @cb.concurrent(max=8)
    async def predict(self, text: str, extra: int = 0) -> Label:
        if text == "bad":
            raise cb.HTTPException(429, "too many", headers={"Retry-After": "3"})
        return Label(text, float(self.factor * len(text) + extra))

    @cb.route("/embedder/name")
    def name(self) -> str:
        return "E"


@cb.service
class Search:
    embed = cb.depends(Embedder)
    size = cb.depends("/size")

    @cb.concurrent(max=8)
    async def predict(self, text: str) -> dict[str, Any]:
        if text == "many":
            labels = await self.embed.predict.map([{"text": "x" * count} for count in range(100)])
            return {"scores": [label.score for label in labels]}
        label, size = await asyncio.gather(self.embed.predict(text, extra=1), self.size(text))
        assert isinstance(label, Label)
        return {"label": label, "size": size}


@cb.service
class Plain:
    """Calls from synchronous code, also from threads of its own."""

    shout = cb.depends(Shout)
    size = cb.depends("/size")

    def predict(self, texts: list[str]) -> list[Any]:
        if texts == ["threads"]:
            return self.threads()
        if texts == ["caught"]:
            try:
                self.shout("")
            except cb.CallError as error:
                return [error.kind, error.status_code, error.message]
        return [*self.shout.predict.map(texts), self.size.predict(texts[0])]

    def threads(self) -> list[Any]:
        found: list[Any] = [None] * 8

        def call(number: int) -> None:
            found[number] = self.shout(str(number))

        threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@cb.service
class Batches:
    shout = cb.depends(Shout)

    @cb.batched(max_batch_size=4)
    def predict(self, texts: list[str]) -> list[str]:
        return [self.shout(text) for text in texts]


@cb.service
class Nested:
    plain = cb.depends(Plain)

    async def predict(self, text: str) -> list[Any]:
        return await self.plain([text])  # type: ignore[no-any-return]


class Early:
    """Calls too early."""

    size = cb.depends("/size")

    def setup(self) -> None:
        self.size("a")

    def predict(self, text: str) -> str:
        return text


@cb.function
def fails(how: str) -> str:
    if how == "http":
        raise cb.HTTPException(409, {"a": [1]})
    if how == "cancelled":
        raise asyncio.CancelledError
    raise KeyError(how)


@cb.function
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


@cb.function
async def whisper(text: str) -> str:
    await asyncio.sleep(0)
    return text.lower()


class Hurried:
    slow = cb.depends(slow)

    async def predict(self, seconds: float) -> str:
        try:
            return await asyncio.wait_for(self.slow(seconds), 0.2)
        except asyncio.TimeoutError as error:
            return type(error).__name__


class Loop:
    async def setup(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def predict(self, text: str) -> int:
        return id(self.loop)
