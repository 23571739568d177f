"""Services that hold something large while they fail. Their processes collect no cycles."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import callboard as cb

# The arrays that they held, as long as anything refers to one.
HELD: weakref.WeakSet[Large] = weakref.WeakSet()
# Since Python 3.11.
GROUP = getattr(builtins, "ExceptionGroup", ValueError)
gc.disable()


class Large:
    """In the place of an array."""

    def __init__(self) -> None:
        self.memory = bytearray(8 << 20)
        HELD.add(self)


def fail(how: str, large: Large) -> None:
    """Raises in one of the ways in which code refers to its own exceptions."""
    if how == "simply":
        raise ValueError("no")
    kept: Exception | None = None
    try:
        {}[how]
    except KeyError as error:
        kept = error
    if how == "itself":
        assert kept is not None
        raise kept
    if how == "cause":
        raise ValueError("no") from kept
    if how == "another":
        raise ValueError("no")
    if how == "group":
        raise GROUP("no", [kept, ValueError("no")])
    raise ValueError(kept)


@cb.function
def plain(how: str) -> int:
    large = Large() if how != "count" else None
    if large is not None:
        fail(how, large)
    return len(HELD)


@cb.function
@cb.batched
def batch(hows: list[str]) -> list[int]:
    return [plain(how) for how in hows]


@cb.function
@cb.batched
def placed(hows: list[str]) -> list[Any]:
    """An exception in the place of each output."""
    outcomes: list[Any] = []
    for how in hows:
        try:
            outcomes.append(plain(how))
        except Exception as error:
            outcomes.append(error)
    return outcomes


@cb.function
async def later(how: str) -> int:
    large = Large() if how != "count" else None
    await asyncio.sleep(0)
    if large is not None:
        fail(how, large)
    return len(HELD)


@cb.service
class Concurrent:
    @cb.concurrent(max=8)
    async def predict(self, how: str) -> int:
        return await later(how)


@cb.function
@cb.batched
async def later_batch(hows: list[str]) -> list[int]:
    return [await later(how) for how in hows]


@cb.function
def stream(how: str) -> Iterator[int]:
    large = Large() if how != "count" else None
    yield 1
    if large is not None:
        fail(how, large)
    yield len(HELD)


@cb.function
async def later_stream(how: str) -> AsyncIterator[int]:
    large = Large() if how != "count" else None
    yield 1
    await asyncio.sleep(0)
    if large is not None:
        fail(how, large)
    yield len(HELD)


@cb.function
def unsendable(how: str) -> Any:
    large = Large() if how != "count" else None
    return {"a": [large]} if large is not None else len(HELD)


@cb.function
def after(how: str, context: cb.Context) -> int:
    """Fails after its answer: in the thread for that, and there in a loop."""
    if how != "count":
        context.after(fail_after, how)
        context.after(lambda: fail_after_later(how))
    return len(HELD)


@cb.function
async def later_after(how: str, context: cb.Context) -> int:
    """Fails after its answer, in the loop of the replica."""
    if how != "count":
        context.after(fail_after_later, how)
    return len(HELD)


def fail_after(how: str) -> None:
    fail(how, Large())


async def fail_after_later(how: str) -> None:
    large = Large()
    await asyncio.sleep(0)
    fail(how, large)


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Fails before, within or after its response. Its lifespan fails while it serves."""
    if scope["type"] == "lifespan":
        large = Large()
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await asyncio.sleep(0.01)
        fail("itself", large)
    _, _, when, how = scope["path"].split("/")
    failing = Large() if how != "count" else None
    if failing is not None and when == "before":
        fail(how, failing)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(HELD)).encode(), "more_body": True})
    if failing is not None and when == "within":
        fail(how, failing)
    await send({"type": "http.response.body"})
    if failing is not None:
        await asyncio.sleep(0.01 if when == "later" else 0)
        fail(how, failing)


cb.asgi("/mounted", app, max=1)


@cb.keyed(durable=False)
class Keyed:
    state: int = 0

    def predict(self, how: str) -> int:
        large = self.large = Large() if how != "count" else None
        if large is not None:
            fail(how, large)
        return len(HELD)


@cb.keyed(durable=False)
class KeyedLater:
    state: int = 0

    async def predict(self, how: str) -> int:
        large = self.large = Large() if how != "count" else None
        await asyncio.sleep(0)
        if large is not None:
            fail(how, large)
        return len(HELD)


class Odd(Exception):
    """Its attributes are not what `BaseException` and groups have under these names, and it can be given none."""

    def __init__(self, exceptions: Any) -> None:
        super().__init__()
        self.__dict__["exceptions"] = exceptions

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    args = __cause__ = __context__ = 5  # type: ignore[assignment]


class Raising(Exception):
    @property
    def exceptions(self) -> Any:
        raise SystemExit(3)


class Endless(Exception):
    @property
    def exceptions(self) -> Any:
        return [Endless()]


class Proxy:
    """It stands for an object that is not there."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no object")


ODD = {
    "None": lambda: Odd(None),
    "texts": lambda: Odd(["a"]),
    "number": lambda: Odd(5),
    "raises": Raising,
    "endless": Endless,
    "proxy": lambda: ValueError(Proxy()),
}


@cb.function
def odd(how: str) -> int:
    large = Large() if how != "count" else None
    if large is not None:
        raise ODD[how]()
    return len(HELD)


class Health:
    def health(self) -> bool:
        return plain("itself") == 0


class Warm:
    examples = ("itself", "another")

    def predict(self, how: str) -> int:
        return plain(how)


@cb.service
class Calls:
    other = cb.depends("/other")

    def predict(self, how: str) -> int:
        large = Large() if how != "count" else None
        if large is not None:
            try:
                self.other(how)
            except cb.CallError:
                raise ValueError("no") from None
        return len(HELD)


class CallsLater:
    other = cb.depends("/other")

    async def predict(self, how: str) -> int:
        large = Large() if how != "count" else None
        if large is not None:
            try:
                await self.other(how)
            except cb.CallError:
                return 0
        return len(HELD)


class Fallback:
    """Catches the error of a dependency in this process."""

    other = cb.depends(plain)
    other_later = cb.depends(later)

    def predict(self, how: str) -> int:
        large = Large() if how != "count" else None
        if large is not None:
            for each in (self.other, self.other_later):
                with contextlib.suppress(cb.CallError):
                    each(how)
        return len(HELD)


# ---- Cancellations, and ends of the process --------------------------------------------------------------------------


@cb.function
async def own_task(how: str) -> int:
    """A task of its own is cancelled."""
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task
    return 0


@cb.function
def lock(how: str) -> int:
    raise asyncio.CancelledError("a lock was cancelled")


@cb.function
@cb.batched
async def locks(hows: list[str]) -> list[int]:
    raise asyncio.CancelledError("a lock was cancelled")


@cb.service
class Leaves:
    @cb.concurrent(max=8)
    async def predict(self, how: str) -> int:
        if how == "exit":
            raise SystemExit(3)
        await asyncio.sleep(60)
        return 0
