"""ASGI apps below paths: a plain one, one of FastAPI where that is installed, and one that is imported by its name."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import callboard as cb

# What the plain app has noted: its process sees it alone.
NOTES: list[str] = []


def stopping(what: str) -> None:
    if "STOPPED" in os.environ:
        with open(os.environ["STOPPED"], "a") as file:
            file.write(f"{what}\n")


async def plain(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        assert (await receive())["type"] == "lifespan.startup"
        scope["state"]["started"] = "yes"
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        if "STOPPED" in os.environ:
            # Longer than a node whose drain is over waits.
            await asyncio.sleep(1.5)
            stopping("stopped")
        await send({"type": "lifespan.shutdown.complete"})
        return
    await ANSWERS[scope["path"].removeprefix(scope["root_path"]).split("/")[1]](scope, receive, send)


async def begin(send: Any, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def text(send: Any, found: object) -> None:
    body = str(found).encode()
    await begin(send, (b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.body", "body": body})


async def scope_of(scope: dict[str, Any], receive: Any, send: Any) -> None:
    shown = {name: value for name, value in scope.items() if name not in ("headers", "callboard", "extensions")}
    await text(send, {**shown, "request_id": scope["callboard"].request_id})


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    request = await receive()
    length = str(len(request["body"])).encode()
    await begin(send, (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"x-length", length))
    # One message, which is larger than what the node takes at once.
    await send({"type": "http.response.body", "body": request["body"] * 3})


async def chunks(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await begin(send)
    for n in range(3):
        await send({"type": "http.response.body", "body": str(n).encode(), "more_body": True})
        await asyncio.sleep(0.05)
    await send({"type": "http.response.body"})


async def endless(scope: dict[str, Any], receive: Any, send: Any) -> None:
    NOTES.append("began")
    await begin(send)
    try:
        while True:
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
    except OSError as error:
        NOTES.append(str(error))
        stopping("left")


async def waits(scope: dict[str, Any], receive: Any, send: Any) -> None:
    NOTES.append((await receive())["type"])
    NOTES.append((await receive())["type"])
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        NOTES.append("cancelled")
        raise


async def notes(scope: dict[str, Any], receive: Any, send: Any) -> None:
    found = str(NOTES)
    NOTES.clear()
    await text(send, found)


async def fails(scope: dict[str, Any], receive: Any, send: Any) -> None:
    raise ValueError("no paper")


async def breaks(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await begin(send)
    await send({"type": "http.response.body", "body": b"some", "more_body": True})
    raise ValueError("no more paper")


async def silent(scope: dict[str, Any], receive: Any, send: Any) -> None:
    pass


async def dies(scope: dict[str, Any], receive: Any, send: Any) -> None:
    os._exit(3)


async def blocks(scope: dict[str, Any], receive: Any, send: Any) -> None:
    while True:
        time.sleep(0.01)


async def after(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await text(send, "answered")
    await asyncio.sleep(0.05)
    NOTES.append("after")


async def process(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await text(send, os.getpid())


_APPS = (scope_of, echo, chunks, endless, waits, notes, fails, breaks, silent, dies, blocks, after, process)
ANSWERS = {app.__name__.removesuffix("_of"): app for app in _APPS}

cb.asgi("/plain", plain)
patient = cb.asgi("/named", "asgi_app:plain", timeout="500ms")

try:
    import fastapi
    from fastapi.responses import RedirectResponse, StreamingResponse
except ImportError:
    pass
else:
    whole = fastapi.FastAPI()

    @whole.get("/items/{item_id}")
    async def item(item_id: int, request: fastapi.Request, response: fastapi.Response, q: str = "") -> dict[str, Any]:
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        url = str(request.url_for("item", item_id=1))
        return {"id": item_id, "q": q, "user": request.headers.get("x-user"), "url": url}

    @whole.post("/items", status_code=201)
    def create(name: str = fastapi.Body(embed=True)) -> dict[str, str]:
        return {"name": name}

    @whole.get("/old")
    def old() -> RedirectResponse:
        return RedirectResponse("/fastapi/items/1", status_code=308)

    @whole.get("/stream")
    def stream() -> StreamingResponse:
        return StreamingResponse((f"line {n}\n" for n in range(100)), media_type="text/plain")

    def note(text: str) -> None:
        NOTES.append(text)

    @whole.post("/note")
    def take(tasks: fastapi.BackgroundTasks) -> str:
        tasks.add_task(note, "background")
        return "taken"

    @whole.get("/notes")
    def all_notes() -> list[str]:
        return NOTES

    @whole.get("/error")
    def error() -> None:
        raise ValueError("no paper")

    @whole.get("/slow")
    def slow() -> float:
        time.sleep(0.3)
        return time.monotonic()

    cb.asgi("/fastapi", whole)


@cb.function
def double(number: int) -> int:
    return 2 * number
