"""A server that answers as a test says, byte by byte: what a real node does only in trouble."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import Any

import pytest

from callboard import AsyncClient, Client
from callboard._envelope import decode, encode

ENVELOPE = "application/vnd.callboard.envelope"
LIMIT = 30


class Cut(bytes):
    """The start of an answer, after which the connection ends."""


class Slow(bytes):
    """An answer that is sent byte by byte, with this pause in seconds."""

    PAUSE = 0.1


class Fault(bytes):
    """An answer that ends its stream of calls, of which no further one was read."""


class Request:
    def __init__(self, head: str, body: bytes, number: int) -> None:
        line, *lines = head.split("\r\n")
        self.path = line.split()[1]
        self.headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        self.body = body
        # The count of requests before it.
        self.number = number


def response(body: bytes, status: int = 200, media_type: str = ENVELOPE, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Test", f"content-type: {media_type}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def value(found: Any) -> bytes:
    return response(encode(found))


def problem(status: int, kind: str, *, retryable: bool = False, **headers: str) -> bytes:
    text = f'{{"kind": "{kind}", "message": "told so", "retryable": {str(retryable).lower()}, "request_id": "r-1"}}'
    return response(text.encode(), status, "application/problem+json", **headers)


def echo(request: Request) -> bytes:
    return value(decode(request.body))


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def frames(*outputs: Any, end: bool = True) -> bytes:
    bodies = [encode(output) for output in outputs]
    stream = b"".join(struct.pack("<B3xI", 0, len(body)) + body for body in bodies)
    stream += struct.pack("<B3xI", 2, 0) if end else b""
    return response(stream, media_type="application/vnd.callboard.envelope-stream")


def frame(answer: bytes) -> bytes:
    """An answer to one call, as a frame of a stream of calls."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if status != 200:
        body = encode({"status": status, **json.loads(body)})
    return struct.pack("<B3xI", int(status != 200), len(body)) + body


class Node:
    """Answers each request with what `answer` gives: bytes, or None to close the connection."""

    # Whether the body of a stream of calls reaches it before its end, as it does not through some proxies.
    takes_streams = True
    head_of_streams = (
        b"HTTP/1.1 200 Test\r\ncontent-type: application/vnd.callboard.envelope-stream\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )

    def __init__(
        self, answer: Callable[[Request], bytes | None], port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self._tls = tls
        self.requests: list[Request] = []
        self.connections = 0
        # The streams of calls that were told to end, and those that never began.
        self.ended_streams = self.refused_streams = 0
        # The connections that have not ended.
        self.open = 0
        self._lock = threading.Lock()
        # Set when a connection has ended.
        self.closed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port), reuse_port=False)
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server and its connections, as a process that ends does."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LIMIT)
        self.cut()

    def cut(self) -> None:
        """Closes the connections, as a proxy does with idle ones."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with self._lock:
                self.open += 1
            self._sockets.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._answer_all(self._tls.wrap_socket(connection, server_side=True) if self._tls else connection)
        with self._lock:
            self.open -= 1
        self.closed.set()

    def _answer_all(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                if stream.peek(1)[:1] == b"\x16":
                    # The hello of TLS.
                    return connection.sendall(response(b"", 400))
                line = stream.readline()
                if not line:
                    return None
                head += line
            text = head.decode().removesuffix("\r\n\r\n")
            if "transfer-encoding: chunked" in text.lower():
                return self._answer_calls(connection, stream, text)
            length = int(Request(text, b"", 0).headers.get("content-length", 0))
            body = stream.read(length)
            if len(body) < length:
                return None
            request = Request(text, body, len(self.requests))
            self.requests.append(request)
            answer = self.answer(request)
            if answer is None:
                return None
            for piece in [answer[at : at + 1] for at in range(len(answer))] if isinstance(answer, Slow) else [answer]:
                connection.sendall(piece)
                time.sleep(Slow.PAUSE if isinstance(answer, Slow) else 0)
            if isinstance(answer, Cut):
                return None

    def _answer_calls(self, connection: socket.socket, stream: Any, head: str) -> None:
        """A stream of calls: each frame is a request, they are answered at the same time, and in order."""
        if not self.takes_streams:
            self.refused_streams += 1
            stream.read()
            return
        connection.sendall(self.head_of_streams)
        answers: queue.Queue[Future[bytes | None] | None] = queue.Queue()
        limit = int(Request(head, b"", 0).headers["x-request-timeout-ms"]) / 1000
        sending = threading.Thread(target=_send_answers, args=(connection, answers, limit), daemon=True)
        sending.start()
        with ThreadPoolExecutor(100) as pool:
            for body in self._frames(stream):
                request = Request(head, body, len(self.requests))
                self.requests.append(request)
                answers.put(pool.submit(self.answer, request))
        answers.put(None)
        sending.join()

    def _frames(self, stream: Any) -> Iterator[bytes]:
        body = b""
        while size := int(stream.readline() or b"0", 16):
            body += stream.read(size)
            stream.readline()
            while len(body) >= 8:
                kind, length = struct.unpack_from("<B3xI", body)
                if len(body) < 8 + length:
                    break
                if kind == 2:
                    self.ended_streams += 1
                else:
                    yield body[8 : 8 + length]
                body = body[8 + length :]
        # What is not read would reset the connection when it is closed.
        stream.readline()


def _send_answers(connection: socket.socket, answers: queue.Queue[Future[bytes | None] | None], limit: float) -> None:
    with contextlib.suppress(OSError):
        while (outcome := answers.get()) is not None:
            try:
                answer = outcome.result(limit)
            except Late:
                answer = problem(504, "deadline_exceeded")
            if answer is None or isinstance(answer, Cut):
                connection.shutdown(socket.SHUT_RDWR)
                return
            piece = frame(response(answer) if isinstance(answer, Slow) else answer)
            connection.sendall(b"%x\r\n" % len(piece))
            for each in [piece[at : at + 1] for at in range(len(piece))] if isinstance(answer, Slow) else [piece]:
                connection.sendall(each)
                time.sleep(Slow.PAUSE if isinstance(answer, Slow) else 0)
            connection.sendall(b"\r\n")
            if isinstance(answer, Fault):
                connection.sendall(b"0\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                return
        connection.sendall(b"8\r\n" + struct.pack("<B3xI", 2, 0) + b"\r\n0\r\n\r\n")


class Blocking:
    """An `AsyncClient` in an event loop of its own, so that a test is of both clients."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(url, **settings)

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.close()

    def call(self, *args: Any, **options: Any) -> Any:
        return self._loop.run_until_complete(self._client.call(*args, **options))


# Of both clients.
both = pytest.mark.parametrize("kind", [Client, Blocking])
