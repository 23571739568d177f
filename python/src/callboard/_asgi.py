"""ASGI apps below a path of the node: `callboard.asgi`.

An app is the private route `@asgi/…` of a service that streams: the node gives it each request whole, and takes the
head of the response and then the pieces of its body. The requests of one replica share its event loop, and the app with
its lifespan.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import inspect
import logging
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from callboard._api import ASGI_ROUTE, NOTED, SERVICE, Service, concurrent, service_of
from callboard._context import Context
from callboard._elsewhere import nearest_name
from callboard._errors import forget
from callboard._exceptions import HTTPException
from callboard._options import route_path

Message = MutableMapping[str, Any]
App = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Any]

_VERSION = {"version": "3.0", "spec_version": "2.4"}
# A larger body is sent in pieces, each of which waits for its reader.
_PIECE_BYTES = 256 * 1024
# What a client has left behind may end by itself; then it is cancelled, as is at once what is more than this.
_LEFT_SECONDS = 5.0
_MAX_LEFT = 100
# The same when the replica stops: its stop timeout may be short.
_LEFT_AT_STOP_SECONDS = 0.5
# How often an app may send what nobody reads.
_UNREAD_SECONDS = 0.01

log = logging.getLogger("callboard")
# The loop refers to tasks weakly.
_LEFT: set[asyncio.Task[None]] = set()


class AsgiRequest(msgspec.Struct, frozen=True):
    """A request as the node gives it. The characters of its headers are bytes."""

    method: str
    scheme: str
    http_version: str
    root_path: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    client: str | None
    body: bytes

    def scope(self, state: dict[str, Any], context: Context) -> dict[str, Any]:
        """The scope of its connection."""
        return {
            "type": "http",
            "asgi": dict(_VERSION),
            "http_version": self.http_version,
            "method": self.method,
            "scheme": self.scheme,
            "path": unquote(self.path),
            "raw_path": self.path.encode(),
            "query_string": self.query.encode(),
            "root_path": self.root_path,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in self.headers],
            # The node does not know the port.
            "client": None if self.client is None else (self.client, 0),
            "server": self._server(),
            "state": state.copy(),
            "extensions": {},
            "callboard": context,
        }

    def _server(self) -> tuple[str, int | None] | None:
        host = next((value for name, value in self.headers if name == "host"), None)
        with contextlib.suppress(ValueError):
            url = urlsplit(f"{self.scheme}://{host}")
            if host is not None and url.hostname is not None:
                return url.hostname, url.port or (443 if self.scheme == "https" else 80)
        return None


def asgi(
    path: str,
    app: App | str,
    *,
    replicas: int | tuple[int, int] = 1,
    max: int = 100,
    timeout: str | float | None = None,
    queue: int | None = None,
    start_timeout: str | float | None = None,
    memory_limit: str | int | None = None,
    env: Mapping[str, str] | None = None,
    warm: bool = True,
) -> type:
    """Mounts an ASGI app, such as one of FastAPI, Starlette or Django, below a path: `cb.asgi("/legacy", app)`.

    Written at the top of a file that is served, it gives the app all requests to `/legacy` and below, of any method, in
    `replicas` processes of its own. `app` is the app, or a text such as `"legacy.main:app"`, which replicas import. The
    app sees the `root_path` `/legacy` and the whole path. Its lifespan is that of the replica. `scope["callboard"]`
    is the `Context` of the request, with its caller.

    * `max`: the most requests at a time in one replica. Others wait in the queue, for at most `queue` of them.
    * `timeout`: the longest time until the app begins its response, by default that of the node; then the answer is
      504. The body may take any time. The app is told of a client that leaves (`http.disconnect`), and cancelled if it
      still runs five seconds later.

    The other options are as of `service`. Guards, keys, limits of bodies and the access log are those of the node.
    WebSockets are answered with 501.

    Raises `TypeError` for anything but an app, and `ValueError` for a wrong path or a value out of its range.
    """
    path = route_path(path)
    if path == "/" or "{" in path:
        raise ValueError(f"asgi: {path!r}: an app has a path of its own without parameters, such as '/legacy'")
    if isinstance(app, str):
        if not re.fullmatch(r"[\w.]+:[\w.]+", app):
            raise ValueError(f"asgi: {app!r}: write the name of the module and the app, such as 'legacy.main:app'")
    elif not callable(app) or isinstance(app, type):
        raise TypeError(f"asgi: {app!r} is no ASGI app: give the object that a server such as uvicorn gets")
    else:
        _refuse_wsgi(app, repr(app))

    class Mount:
        async def setup(self) -> None:
            self._lifespan = _Lifespan(_loaded(app) if isinstance(app, str) else app, path)
            await self._lifespan.start()

        async def cleanup(self) -> None:
            await _end_left()
            await self._lifespan.stop()

        @concurrent(max=max)
        async def predict(self, request: AsgiRequest, context: Context) -> AsyncIterator[Any]:
            lifespan = self._lifespan
            exchange = _Exchange(request)
            call = lifespan.app(request.scope(lifespan.state, context), exchange.receive, exchange.send)
            async for part in exchange.parts(call, context, path):
                yield part

    Mount.__doc__ = f"The ASGI app below {path}."
    found = service_of(
        Mount,
        False,
        name=f"asgi{path}",
        route=path,
        replicas=replicas,
        timeout=timeout,
        queue=queue,
        start_timeout=start_timeout,
        memory_limit=memory_limit,
        env=env,
        warm=warm,
    )
    setattr(Mount, SERVICE, dataclasses.replace(found, route=ASGI_ROUTE + path))
    _name(Mount, path, sys._getframe(1).f_globals)
    NOTED.append(("asgi", Mount))
    return Mount


def is_asgi(value: Any) -> bool:
    """Whether `asgi` has made this."""
    service = vars(value).get(SERVICE) if isinstance(value, type) else None
    return isinstance(service, Service) and service.route.startswith(f"{ASGI_ROUTE}/")


def _name(mount: type, path: str, names: dict[str, Any]) -> None:
    """Gives it a name in the module that mounts it, by which a replica finds it."""
    name = "@asgi" + re.sub(r"[/.:]", "-", path)
    while name in names:
        name += "-"
    mount.__name__ = mount.__qualname__ = name
    mount.__module__ = names["__name__"]
    names[name] = mount


def _loaded(target: str) -> Any:
    module, _, names = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        if not hasattr(found, name):
            near = nearest_name(name, dir(found))
            raise AttributeError(f"asgi: {target}: no {name!r}" + (f": did you mean {near!r}?" if near else ""))
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"asgi: {target} is no ASGI app, but {found!r}")
    _refuse_wsgi(found, target)
    return found


def _refuse_wsgi(app: Any, shown: str) -> None:
    """Raises `TypeError` for an app that takes two arguments, as those of WSGI do, and not three."""
    try:
        signature = inspect.signature(app)
    except (TypeError, ValueError):
        return
    if _takes(signature, 2) and not _takes(signature, 3):
        adapter = "wrap it in an adapter, such as `a2wsgi.WSGIMiddleware(app)` or `asgiref.wsgi.WsgiToAsgi(app)`"
        raise TypeError(f"asgi: {shown} takes two arguments, as an app of WSGI does, such as one of Flask: {adapter}")


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


# ---- The life of the app ---------------------------------------------------------------------------------------------


class _Lifespan:
    """An app from its startup to its shutdown, in a task of its own. An app without a lifespan has neither."""

    def __init__(self, app: Any, path: str) -> None:
        self.app = app
        self.state: dict[str, Any] = {}
        self._path = path
        self._asked: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        # Whether the app takes part, whether its startup is over, and why that has failed.
        self._has_asked = self._is_started = False
        self._error: Exception | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._asked.put_nowait({"type": "lifespan.startup"})
        answer = await self._answers.get()
        self._is_started = True
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError("the startup of the ASGI app failed") from error
        if answer is not None and answer["type"] != "lifespan.startup.complete":
            failed = answer["type"] == "lifespan.startup.failed"
            why = answer.get("message", "") if failed else f"it has sent {answer['type']!r}"
            raise RuntimeError(f"the startup of the ASGI app failed: {why}".rstrip(": "))

    async def stop(self) -> None:
        if self._task is None or self._task.done():
            return
        self._asked.put_nowait({"type": "lifespan.shutdown"})
        answer = await self._answers.get()
        if answer is not None and answer["type"] == "lifespan.shutdown.failed":
            log.error("the shutdown of the ASGI app at %s failed: %s", self._path, answer.get("message", ""))
        await asyncio.wait({self._task}, timeout=1)

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": dict(_VERSION), "state": self.state}
        try:
            await self.app(scope, self._receive, self._answer)
        except Exception as error:
            if self._has_asked:
                log.error("the lifespan of the ASGI app at %s failed", self._path, exc_info=error)
            else:
                # By ASGI an app refuses a scope that it does not know by any exception.
                log.info("the ASGI app at %s has no lifespan: %r", self._path, error)
            if self._has_asked and not self._is_started:
                self._error = error
            else:
                forget(error)
        finally:
            self._answers.put_nowait(None)

    async def _receive(self) -> Message:
        self._has_asked = True
        return await self._asked.get()

    async def _answer(self, message: Message) -> None:
        self._answers.put_nowait(message)


# ---- Requests --------------------------------------------------------------------------------------------------------


class _Exchange:
    """One request and its response."""

    def __init__(self, request: AsgiRequest) -> None:
        self._body: bytes | None = request.body
        self._is_head = request.method == "HEAD"
        self._has_begun = self._is_complete = self._has_left = self._is_unread = False
        # Set when there is nothing more to receive.
        self._over = asyncio.Event()
        # The parts that are sent, and None at the end. One of them waits for the node.
        self._sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(1)

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if self._has_left:
            raise OSError("the client has left")
        if kind == "http.response.start" and not self._has_begun:
            head = {"status": message["status"], "headers": list(map(_texts, message.get("headers", ())))}
            # After a wrong one the app may send another, such as that of an error.
            self._has_begun = True
            await self._put(head)
        elif kind == "http.response.body" and self._has_begun and not self._is_complete:
            body, has_more = message.get("body", b""), message.get("more_body", False)
            if not self._is_head:
                for start in range(0, len(body), _PIECE_BYTES):
                    await self._put({"body": bytes(body[start : start + _PIECE_BYTES])})
            self._is_unread = self._is_head and has_more
            if self._is_head or not has_more:
                self._is_complete = True
                self._over.set()
                self._sent.put_nowait(None)
        elif kind == "http.response.body" and self._is_unread:
            self._is_unread = message.get("more_body", False)
            # The rest of a body that nobody reads may have no end.
            await asyncio.sleep(_UNREAD_SECONDS)
        else:
            raise RuntimeError(f"{kind!r} comes at the wrong time: a response is a start, and then a body to its end")

    async def _put(self, part: dict[str, Any]) -> None:
        await self._room.acquire()
        if self._has_left:
            raise OSError("the client has left")
        self._sent.put_nowait(part)

    async def parts(self, call: Any, context: Context, path: str) -> AsyncIterator[dict[str, Any]]:
        """The parts of the response, as the app sends them."""
        task = asyncio.ensure_future(call)
        task.add_done_callback(lambda _: self._sent.put_nowait(None))
        try:
            while (part := await self._sent.get()) is not None:
                self._room.release()
                yield part
        except BaseException:
            # The client has left, or its time is over.
            self._has_left = True
            self._over.set()
            self._room.release()
            _leave(task)
            raise
        if not task.done() and self._is_unread:
            _leave(task)
        elif not task.done():
            try:
                context.after(after_asgi_response, task)
            except HTTPException as error:
                log.error("the ASGI app at %s is cancelled after its response: %s", path, error)
                _cancel(task)
        elif failure := _error_of(task):
            when = "after" if self._is_complete else "within" if self._has_begun else "before"
            log.error("the ASGI app at %s has failed %s its response", path, when, exc_info=failure)
            forget(failure)
        if not self._is_complete:
            if task.done() and _error_of(task) is None:
                log.error(
                    "the ASGI app at %s has ended %s its response", path, "within" if self._has_begun else "without"
                )
            # What it says is not for its clients.
            raise HTTPException(500, "the app failed")


def _texts(header: Any) -> tuple[str, str]:
    """The name and the value of a header, whose bytes are characters."""
    name, value = header
    return bytes(name).decode("latin-1"), bytes(value).decode("latin-1")


async def after_asgi_response(task: asyncio.Future[Any]) -> None:
    """What the app does after its response, such as a background task. An exception is logged."""
    await task


def _leave(task: asyncio.Future[Any]) -> None:
    """Ends what the app does for a client that has left. It takes no place of work after answers."""
    if len(_LEFT) >= _MAX_LEFT:
        _cancel(task)
    elif not task.done():
        ending = asyncio.get_running_loop().create_task(_end(task))
        _LEFT.add(ending)
        ending.add_done_callback(_LEFT.discard)


async def _end_left() -> None:
    """Ends what clients have left behind: the shutdown of the app takes away what it uses."""
    if _LEFT:
        _, running = await asyncio.wait(set(_LEFT), timeout=_LEFT_AT_STOP_SECONDS)
        for ending in running:
            ending.cancel()
        if running:
            await asyncio.wait(running, timeout=_LEFT_AT_STOP_SECONDS)


async def _end(task: asyncio.Future[Any]) -> None:
    try:
        await asyncio.wait({task}, timeout=_LEFT_SECONDS)
    finally:
        _cancel(task)
        # Where this is cancelled, the app has the time of its own cancellation.
        await asyncio.wait({task}, timeout=_LEFT_AT_STOP_SECONDS)


def _cancel(task: asyncio.Future[Any]) -> None:
    # Its error is that of a response that nothing reads.
    task.add_done_callback(_forget_error)
    task.cancel()


def _forget_error(task: asyncio.Future[Any]) -> None:
    if error := _error_of(task):
        forget(error)


def _error_of(task: asyncio.Future[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
