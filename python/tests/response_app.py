"""Services that choose the status, headers and media type of their answers, for `test_response.py`."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import callboard as cb


@cb.service
class Items:
    @cb.route("/items", methods=["POST"])
    def create(self, name: str, context: cb.Context) -> str:
        context.response.status_code = 201
        context.response.headers["location"] = f"/items/{name}"
        context.response.set_cookie("last", name, httponly=True)
        context.response.set_cookie("seen", "1")
        return name

    @cb.route("/items/{name}", methods=["GET", "DELETE"])
    def item(self, name: str, context: cb.Context) -> cb.Response | str:
        if name == "old":
            return cb.Redirect("/items/new", 308)
        if name == "none":
            return cb.Response(status_code=204, headers={"x-model": "m1"})
        if name == "wrong":
            context.response.headers["Content-Length"] = "7"
        return cb.Response(f"<b>{name}</b>", media_type="text/html")

    @cb.route("/items/batch")
    @cb.batched(max_batch_size=8)
    def batch(self, numbers: list[int]) -> list[int | cb.Response]:
        return [cb.Response(number, 200 + number) if number else number for number in numbers]

    @cb.route("/report", methods=["GET"])
    def report(self) -> cb.File:
        return cb.File(b"a,b\n", "text/csv", name="report.csv")


@cb.function(status_code=201, media_type="text/csv", response_description="A table.")
def table(rows: int) -> str | cb.Response:
    return "a\n" * rows if rows else cb.Response("none", 404, media_type="text/plain")


@cb.function(methods=["GET"])
def page() -> cb.Response:
    return cb.Response("<p>", media_type="text/html")


@cb.function
@cb.batched(max_batch_size=10_000)
def crowded(numbers: list[int]) -> list[cb.Response]:
    headers = {f"x-{number}": "a" * 100 for number in range(16)}
    return [cb.Response(number, 201, headers) for number in numbers]


@cb.service
class Chat:
    async def predict(self, text: str, context: cb.Context) -> AsyncIterator[str]:
        context.response.headers["x-model"] = "m1"
        for letter in text:
            if letter == "!":
                context.response.status_code = 500
            yield letter


@cb.service
class Count:
    def predict(self, below: int, context: cb.Context) -> Iterator[int]:
        context.response.status_code = 203
        yield from range(below)


@cb.function
def first(name: str, context: cb.Context) -> str:
    context.response.status_code = 202
    context.response.headers["x-first"] = "1"
    context.response.headers["x-both"] = "1"
    return name


@cb.function
def last(name: str, context: cb.Context) -> str:
    context.response.headers["x-both"] = "2"
    return name.upper()


steps = cb.pipeline(first, last, route="/steps")


@cb.service
class Outer:
    inner = cb.depends(first)

    async def predict(self, name: str) -> str:
        return await self.inner(name)


def note(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{text}\n")


def wait_and_note(path: str, text: str) -> None:
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    note(path, text)


async def note_later(path: str, text: str) -> None:
    while not Path(f"{path}.go").exists():
        await asyncio.sleep(0.01)
    note(path, text)


def fail() -> None:
    raise KeyError("after")


@cb.service
class After:
    def predict(self, path: str, context: cb.Context) -> int:
        context.after(fail)
        context.after(wait_and_note, path, text="sync")
        return os.getpid()

    @cb.route("/after/coroutine")
    async def coroutine(self, path: str, context: cb.Context) -> int:
        context.after(note_later, path, "async")
        context.after(note, path, "thread")
        return os.getpid()

    @cb.route("/after/stream")
    def stream(self, path: str, context: cb.Context) -> Iterator[str]:
        context.after(note, path, "stream")
        yield "a"
        assert not Path(path).exists()
        yield "b"

    @cb.route("/after/batch")
    @cb.batched
    def batch(self, paths: list[str], contexts: list[cb.Context]) -> list[str]:
        for path, context in zip(paths, contexts, strict=True):
            context.after(note, path, "batch")
        return paths


@cb.function
def who(context: cb.Context) -> str | None:
    return context.caller


async def ask(who: Any, path: str) -> None:
    await until_free(path)
    try:
        note(path, str(await who()))
    except cb.CallError as error:
        note(path, error.message)


def ask_plain(who: Any, path: str) -> None:
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    try:
        note(path, str(who()))
    except cb.CallError as error:
        note(path, error.message)


async def until_free(path: str) -> None:
    while not Path(f"{path}.go").exists():
        await asyncio.sleep(0.01)


@cb.service
class Asks:
    who = cb.depends(who)

    @cb.concurrent(max=8)
    async def predict(self, path: str, context: cb.Context) -> None:
        if context.caller == "alice":
            context.after(ask, self.who, path)
        elif path:
            await until_free(f"{path}.end")


@cb.service
class PlainAsks:
    who = cb.depends(who)

    def predict(self, path: str, context: cb.Context) -> None:
        if context.caller == "alice":
            context.after(ask_plain, self.who, path)
        while path and context.caller != "alice" and not Path(f"{path}.end.go").exists():
            time.sleep(0.01)


@cb.service
class Many:
    """Has more work after its answers than there is room for."""

    @cb.batched(max_batch_size=40)
    def predict(self, counts: list[int], contexts: list[cb.Context]) -> list[int]:
        return [self.noted(count, context) for count, context in zip(counts, contexts, strict=True)]

    def noted(self, count: int, context: cb.Context) -> int:
        for number in range(count):
            try:
                context.after(time.sleep, 0)
            except cb.HTTPException:
                return number
        return count


@cb.service
class Late:
    """Names work after the answer of an earlier call, and ends its process in work after an answer."""

    kept: cb.Context | None = None

    async def predict(self, path: str, context: cb.Context) -> str:
        if self.kept is not None:
            try:
                self.kept.after(print)
            except RuntimeError as error:
                return str(error)
        self.kept = context
        context.after(leave)
        return "first"


async def leave() -> None:
    sys.exit(3)


@cb.service
class UnwellAfter:
    async def predict(self, path: str, context: cb.Context) -> None:
        context.after(note_soon, path)

    def health(self) -> bool:
        return False


async def note_soon(path: str) -> None:
    await asyncio.sleep(0.05)
    note(path, "done")


@cb.service
class Busy:
    """Chooses the statuses of refusals for its outputs."""

    def predict(self, path: str, status: int) -> cb.Response:
        note(path, "busy")
        return cb.Redirect("/other", status) if status < 400 else cb.Response("later", status)

    @cb.route("/busy/stream")
    def stream(self, status: int, context: cb.Context) -> Iterator[str]:
        context.response.status_code = status
        yield "later"
