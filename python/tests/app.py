"""What the tests serve."""

from __future__ import annotations

import asyncio
import functools
import logging
import multiprocessing
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import callboard as cb

log = logging.getLogger("app")


@dataclass
class Label:
    name: str
    score: float


@cb.service(replicas=2, timeout="5s", contract="idempotent")
class Sentiment:
    """Labels texts.

    The second paragraph is not in the description.
    """

    examples = ("good", "fine")

    def setup(self, device: str, replica: int, context: cb.SetupContext, word: str = "good") -> None:
        self.place = f"{device} {replica} {context.stage}"
        self.word = word
        print(f"set up on {self.place}")

    @cb.batched(max_batch_size=32)
    def predict(self, texts: list[str]) -> list[Label | Exception]:
        if "short" in texts:
            texts = texts[1:]
        if "all" in texts:
            raise RuntimeError("the model is broken")
        return [self.label(text) for text in texts]

    def label(self, text: str) -> Label | Exception:
        return Label(self.word, len(text) / 2) if text else cb.HTTPException(422, "empty text")

    @cb.route("/where")
    def where(self) -> str:
        return self.place

    def cleanup(self) -> None:
        print("cleaned up")


class Silent(cb.InvalidInput):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Unshown:
    def __repr__(self) -> str:
        raise SystemExit(4)


class Odd(cb.InvalidInput):
    @property
    def fields(self) -> Any:
        raise SystemExit(5)

    @fields.setter
    def fields(self, _: Any) -> None:
        pass


@cb.service
class Errors:
    def predict(self, kind: str) -> Any:
        if kind == "silent":
            raise Silent("s")
        if kind == "leaving":
            raise Leaving
        if kind == "unshown":
            raise cb.HTTPException(409, {"a": Unshown()})
        if kind == "odd":
            raise Odd("o")
        if kind == "http":
            raise cb.HTTPException(503, {"busy": np.int64(3), 7: 1}, headers={"Retry-After": "2"})
        if kind == "headers":
            raise cb.HTTPException(401, headers={"WWW-Authenticate": "Basic", "Retry-After": "2", "x-a": "b"})
        if kind == "repeated":
            raise cb.HTTPException(401, headers=[("WWW-Authenticate", "Basic"), ("www-authenticate", "Bearer")])
        if kind == "value":
            raise ValueError("a bad kind")
        if kind == "deep":
            raise cb.HTTPException(400, functools.reduce(lambda inner, _: [inner], range(100), []))
        if kind == "long":
            raise ValueError("x" * 100_000)
        if kind == "object":
            return {"a": [object()]}
        if kind == "large":
            return np.zeros(2 << 20, np.uint8)
        if kind == "log":
            log.warning("kind %s", kind)
        return kind


@cb.service
class Numbers:
    def predict(
        self, count: Annotated[int, cb.Field(ge=0)], context: cb.Context, pause: float = 0.0
    ) -> Iterator[dict[str, int]]:
        for number in range(count):
            if context.cancelled:
                return
            yield {"n": number}
            time.sleep(pause)
        if count == 13:
            raise ValueError("unlucky")


@cb.service
class Chat:
    async def setup(self) -> None:
        self.cancelled = 0

    @cb.concurrent(max=64)
    async def predict(self, prompt: str, context: cb.Context) -> AsyncIterator[str]:
        if not prompt:
            raise cb.HTTPException(422, "empty prompt")
        try:
            for word in prompt.split():
                if word == "wait":
                    await asyncio.sleep(60)
                yield word
        except asyncio.CancelledError:
            log.info("left %s", context.request_id)
            raise


@cb.service
class Together:
    """Each item waits until all of them run."""

    async def setup(self) -> None:
        self.running = 0

    @cb.concurrent(max=3)
    async def predict(self, count: int) -> int:
        self.running += 1
        while self.running < count:
            await asyncio.sleep(0.001)
        return self.running


@cb.service
class Threads:
    """Each item waits in a thread until all of them run, or its caller has left."""

    def setup(self) -> None:
        self.running = 0
        self.changed = threading.Condition()

    @cb.concurrent(max=3)
    def predict(self, count: int, context: cb.Context) -> list[Any]:
        log.warning("counts to %d", count)
        with self.changed:
            self.running += 1
            self.changed.notify_all()
            while self.running < count and not context.cancelled:
                self.changed.wait(0.01)
        if count == 0:
            raise StopIteration("none")
        return [self.running >= count, context.cancelled, threading.current_thread().name]


@cb.service
class ThreadWords:
    @cb.concurrent(max=2)
    def predict(self, text: str) -> Iterator[str]:
        try:
            yield from text.split()
        finally:
            log.warning("closed %s", text)


def count_aloud(context: cb.Context, number: int) -> int:
    assert not context.cancelled
    log.warning("number %d", number)
    return number + 1


@cb.service
class Forks:
    """Works in processes of its own."""

    def setup(self) -> None:
        self.pool = multiprocessing.get_context("fork").Pool(2)

    def predict(self, numbers: list[int], context: cb.Context) -> list[int]:
        return self.pool.map(functools.partial(count_aloud, context), numbers)

    def cleanup(self) -> None:
        self.pool.terminate()
        self.pool.join()


@cb.service
class Waits:
    """Ends when its caller has left."""

    def predict(self, seconds: float, context: cb.Context) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not context.cancelled:
            time.sleep(0.005)
        return context.cancelled


@cb.service
class Sleeps:
    """Does not look whether its caller has left."""

    def predict(self, seconds: float) -> float:
        log.info("asleep")
        time.sleep(seconds)
        return seconds


@cb.service
class Repeats:
    @cb.batched(max_batch_size=1000)
    def predict(self, texts: list[str]) -> list[str]:
        log.info("begun")
        time.sleep(0.1)
        return [900 * text for text in texts]


@cb.service
class Fails:
    def setup(self) -> None:
        raise FileNotFoundError("model.bin")

    def predict(self, value: Any) -> Any:
        return value


@cb.service
class Scale:
    def predict(self, x: NDArray[np.float32], factor: float = 2.0) -> NDArray[np.float32]:
        return x * np.float32(factor)


@cb.function
def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


@cb.function
@cb.batched
async def twice(values: list[float]) -> list[float]:
    await asyncio.sleep(0)
    return [2 * value for value in values]


@cb.function
def about(question: str, context: cb.Context) -> dict[str, Any]:
    """All that code knows of its call."""
    log.info("asked for %s", question)
    names = ("request_id", "route", "caller", "traceparent", "session", "headers", "tags", "query", "path", "cancelled")
    remaining = context.remaining()
    return {name: getattr(context, name) for name in names} | {"in_time": remaining is not None and remaining > 1}


@cb.function
@cb.batched
def wrong_outputs(numbers: list[int]) -> list[str]:
    return [str(number) if number != 2 else None for number in numbers]  # type: ignore[misc]


@cb.function
def wrong_stream(count: int) -> Iterator[int]:
    for number in range(count):
        yield number if number < 1 else "oops"  # type: ignore[misc]


@cb.service(examples=[1])
class SlowStart:
    def setup(self) -> None:
        time.sleep(2.5)

    def predict(self, x: int) -> int:
        return x


def leave(how: str) -> None:
    if how == "interrupt":
        raise KeyboardInterrupt
    sys.exit({"text": "the licence has expired", "number": 3, "nothing": None}[how])


@cb.service
class Leaves:
    def predict(self, how: str) -> None:
        leave(how)


@cb.service
class LeavesAsync:
    async def predict(self, how: str) -> None:
        leave(how)


class Corner(NamedTuple):
    x: int
    y: int = 2


@dataclass
class Box:
    corners: list[Corner]
    lid: Corner | list[str] | None = None


@cb.function
def widen(box: Box, by: int = 1) -> Box:
    return Box([Corner(corner.x * by, corner.y) for corner in box.corners], box.lid)
